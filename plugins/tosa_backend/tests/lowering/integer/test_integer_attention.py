"""Quantized softmax, norms and attention give the results of the quantized graph in eager
torch.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from delegraph.errors import Unsupported
from delegraph_tosa.backend import compile_program

from ...support.quantized_cases import SPECS, IntegerFamily, quantized_row
from ...support.rule_cases import WithConstant, randn

FAMILY = IntegerFamily()


def layer_norm(weight, bias, x):
    return F.layer_norm(x, weight.shape, weight, bias)


FAMILY.case("softmax", lambda x: x.softmax(-1), (3, 20, 64))
FAMILY.case("softmax-middle", lambda x: x.softmax(1), (3, 50, 6))
FAMILY.case(
    "layer-norm",
    WithConstant(layer_norm, randn(192) + 0.5, 0.3 * randn(192)),
    (2, 5, 192),
)
FAMILY.case("layer-norm-plain", lambda x: F.layer_norm(x, (7, 16)), (3, 7, 16))
affine = WithConstant(layer_norm, randn(48), randn(48))
FAMILY.case(
    "layer-norm-below-eps", affine, (7, 48), dtypes=[torch.int8], magnitudes=(-7, -6)
)
FAMILY.case(
    "rms-norm",
    WithConstant(lambda w, x: F.rms_norm(x, w.shape, w), randn(64)),
    (3, 7, 64),
)
FAMILY.case("instance-norm", F.instance_norm, (2, 8, 5, 5))
FAMILY.case(
    "group-norm",
    WithConstant(lambda w, b, x: F.group_norm(x, 4, w, b), randn(8), randn(8)),
    (2, 8, 5, 5),
)

FAMILY.case("var", lambda x: x.var(1, correction=0), (3, 20, 7))
FAMILY.case("std", lambda x: x.std((0, 2), keepdim=True), (3, 20, 7))
FAMILY.case("moments", lambda x: sum(torch.std_mean(x, 1)), (3, 20, 7))
FAMILY.case("norm", lambda x: x.norm(dim=1) + x.norm(1, dim=1), (3, 20, 7))
FAMILY.case(
    "norm-infinity", lambda x: x.norm(torch.inf, dim=1), (3, 20, 7), dtypes=[torch.int8]
)
FAMILY.case("normalize", F.normalize, (3, 20, 7))

HEADS = (2, 3, 20, 16)
FAMILY.case("attention", F.scaled_dot_product_attention, HEADS, HEADS, HEADS)
SMALL = [(1, 2, 32, 16)] * 3
FUTURE = torch.ones(32, 32).tril().log()
BIAS = randn(32, 32)
MASKS = {
    "causal": lambda q, k: torch.ones(32, 32).tril().bool(),
    "masked": lambda q, k: k[..., :1].transpose(-2, -1) > 0,
    "blind": lambda q, k: q[..., :1] > 0,
    "added": lambda q, k: FUTURE,
    "biased": lambda q, k: BIAS,
    "blind-added": lambda q, k: torch.where(q[..., :1] > 0, 0.0, -math.inf),
    "lowest": lambda q, k: torch.where(
        k[..., :1].transpose(-2, -1) > 0, 0.0, torch.finfo(torch.float32).min
    ),
}
for name, mask in MASKS.items():
    FAMILY.case(
        f"attention-{name}",
        lambda q, k, v, mask=mask: F.scaled_dot_product_attention(q, k, v, mask(q, k)),
        *SMALL,
    )
FAMILY.case("log-softmax", lambda x: x.log_softmax(-1), (3, 20, 64))
FAMILY.case("logsumexp", lambda x: x.logsumexp(1), (3, 64, 20))
FAMILY.case("softmax-added", lambda x: (x * 0.5 + FUTURE).softmax(-1), (3, 32, 32))
FAMILY.case(
    "softmax-filled",
    lambda x, y: x.masked_fill(y > 1, -1e9).softmax(-1),
    (3, 32, 32),
    (1, 32, 32),
)
FAMILY.case(
    "softmax-biased", lambda x, y: (x + y).softmax(-1), (3, 20, 64), (1, 20, 64)
)

judged, test_equals_eager = FAMILY.equals_eager()
# For larger scores, fp32 has too few digits for exp.
test_equals_eager_for_any_scales = FAMILY.sweep(least=-7, most=-0.8)


@pytest.mark.parametrize("order", [0, 3, -torch.inf])
def test_norms_of_other_orders_are_refused(order):
    module, inputs = quantized_row(
        lambda x: x.norm(order, dim=1), [(3, 20, 7)], torch.int8, 0
    )

    with pytest.raises(
        Unsupported, match=f"a norm of order {order} has no rule of its own"
    ):
        compile_program(torch.export.export(module, tuple(inputs)), SPECS[torch.int8])

"""Lowering rules for normalization give the results of eager torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from ...support.rule_cases import FP, Family, randn, random_halves, random_positive

aten = torch.ops.aten

FAMILY = Family()


def norm(module):
    """Batch norm with live statistics."""
    with torch.no_grad():
        for buffer in (
            module.running_mean,
            module.running_var,
            module.weight,
            module.bias,
        ):
            buffer.copy_(
                torch.rand(buffer.shape, generator=torch.Generator().manual_seed(3))
                + 0.5
            )
    return module


FAMILY.cases("batch-norm", norm(nn.BatchNorm2d(3)), randn(2, 3, 4, 5), spec=FP)
FAMILY.cases("batch-norm-1d", norm(nn.BatchNorm1d(3)), randn(2, 3, 4), randn(5, 3))
FAMILY.cases(
    "batch-norm-plain",
    lambda x, m, v: F.batch_norm(x, m, v),
    (randn(2, 3, 4), randn(3), random_positive(3)),
)
FAMILY.cases(
    "batch-norm-inner",
    lambda x, w, b, m, v: aten._native_batch_norm_legit_no_training(
        x, w, b, m, v, 0.1, 1e-3
    )[0],
    (randn(2, 3, 4), randn(3), randn(3, seed=2), randn(3, seed=4), random_positive(3)),
)

x = randn(2, 6, 4, 5) * 3 + 1
FAMILY.cases(
    "layer-norm",
    lambda x, w, b: F.layer_norm(x, (5,), w, b),
    (x, randn(5), randn(5, seed=1)),
)
FAMILY.cases(
    "layer-norm-two-axes",
    lambda x: F.layer_norm(x, (4, 5), eps=1e-3),
    x,
    random_halves(3, 4, 5),
)
FAMILY.cases(
    "layer-norm-inner",
    lambda x, w: aten.native_layer_norm(x, [4, 5], w, None, 1e-5),
    (x, randn(4, 5)),
)
FAMILY.cases(
    "statistics-half",
    lambda x: aten.native_layer_norm(x, [5], None, None, 1e-5),
    random_halves(3, 4, 5),
)
FAMILY.cases(
    "group-statistics-half",
    lambda x: aten.native_group_norm(x, None, None, 3, 4, 5, 2, 1e-5),
    random_halves(3, 4, 5),
)
FAMILY.cases(
    "layer-norm-overflows",
    lambda x: F.layer_norm(x, (5,)),
    torch.linspace(-3e19, 6e19, 5)[None],
)
FAMILY.cases(
    "rms-norm",
    lambda x, w: F.rms_norm(x, (5,), w) + F.rms_norm(x, (5,), eps=0.1),
    (x, randn(5)),
)
FAMILY.cases(
    "group-norm",
    lambda x, w, b: F.group_norm(x, 3, w, b),
    (x, randn(6), randn(6, seed=1)),
)
FAMILY.cases(
    "group-norm-inner",
    lambda x, w: aten.native_group_norm(x, w, None, 2, 6, 20, 2, 1e-5),
    (x, randn(6)),
)
FAMILY.cases("instance-norm", nn.InstanceNorm2d(6, affine=True), x)
FAMILY.cases(
    "instance-norm-running",
    lambda x, m, v: F.instance_norm(x, m, v, use_input_stats=False),
    (x, randn(6), random_positive(6)),
)


test_rows_call_every_rule = FAMILY.covers("norm")
test_equals_eager = FAMILY.equals_eager()
judged, test_equals_eager_through_the_reference_model = (
    FAMILY.equals_eager_through_the_reference_model()
)

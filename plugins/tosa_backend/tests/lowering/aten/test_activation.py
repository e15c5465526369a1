"""Lowering rules for activations and clamps give the results of eager torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from delegraph_tosa.evaluate import evaluate
from delegraph_tosa.lowering import Tosa, lower_program

from ...support.rule_cases import (
    EDGES,
    FP,
    SPEC,
    Family,
    Function,
    inf,
    nan,
    randn,
    random_halves,
    random_integers,
)

FAMILY = Family()

for name in (
    "relu",
    "relu6",
    "hardtanh",
    "hardswish",
    "hardsigmoid",
    "silu",
    "leaky_relu",
    "elu",
    "selu",
    "gelu",
):
    FAMILY.cases(
        name,
        getattr(F, name),
        randn(2, 3, 4),
        random_halves(2, 5),
        randn(3) * 1e-4,
        spec=FP,
    )
for name in ("relu", "relu6", "hardtanh", "hardsigmoid", "leaky_relu", "elu"):
    FAMILY.cases(f"{name}-edges", getattr(F, name), EDGES, spec=FP)
FAMILY.cases("rrelu", F.rrelu, randn(2, 3), EDGES)
FAMILY.cases("celu", lambda x: F.celu(x, 0.4), randn(2, 3), EDGES)
FAMILY.cases(
    "softplus",
    lambda x: F.softplus(x, 2, 5),
    randn(2, 3) * 3,
    randn(9).abs() - 5,
    torch.tensor([-13.0]),
)
FAMILY.cases(
    "mish",
    F.mish,
    randn(2, 3),
    random_halves(2, 5) * 5,
    EDGES,
    torch.tensor(-30.0),
    torch.tensor(7.9),
    spec=FP,
)
FAMILY.cases("gelu-tanh", lambda x: F.gelu(x, approximate="tanh"), randn(2, 3))
for slope in (0.0, 0.3, 1.0, 2.0, -0.5):
    FAMILY.cases(
        f"slope{slope}",
        lambda x, s=slope: F.leaky_relu(x, s),
        randn(2, 3),
        torch.tensor([1.0, -inf, nan]),
    )
SLOPES = torch.tensor([0.25, -0.5, 2.0])
FAMILY.cases(
    "prelu",
    lambda x: F.prelu(x, SLOPES),
    randn(2, 3, 4),
    torch.tensor([[1.0, -inf, nan]]),
)
FAMILY.cases(
    "prelu-computed",
    lambda x: F.prelu(x, x.flatten()[:1]),
    randn(2, 3),
    randn(2, 3, 2, 2),
    randn(4),
)
FAMILY.cases(
    "clamp",
    lambda x: x.clamp(-0.5, 0.25) + x.clamp(min=0.1) * x.clamp(max=0.2),
    randn(2, 3),
    random_halves(5),
)
FAMILY.cases(
    "clamp-min-max",
    lambda x: torch.clamp_min(x, 0.1) + torch.clamp_max(x, 0.3),
    randn(2, 3),
)
FAMILY.cases("clip", lambda x: torch.clip(x, -0.5, 0.25), randn(2, 3))
FAMILY.cases("clamp-crossed", lambda x: x.clamp(2, 1), randn(2, 3))
FAMILY.cases("clamp-ints", lambda x: x.clamp(-2, 3), random_integers(2, 3))
FAMILY.cases("clamp-tensors", torch.clamp, (randn(2, 3), randn(3), randn(2, 3, seed=7)))
for name in ("sigmoid", "tanh"):
    FAMILY.cases(
        name,
        getattr(torch, name),
        randn(2, 3, 4),
        random_halves(5),
        torch.tensor(0.7),
        EDGES,
        spec=FP,
    )


@pytest.mark.parametrize("function", [F.elu, F.selu, F.celu])
def test_activations_keep_the_sign_of_zero(function):
    """The comparison with eager torch treats -0.0 and 0.0 as equal."""
    x = torch.tensor([-0.0, 0.0])
    program = torch.export.export(Function(function), (x,))

    (result,) = evaluate(lower_program(program, Tosa(SPEC)), [x.numpy()])

    # 1 / -0.0 is -inf
    assert (1 / torch.from_numpy(result)).tolist() == [-inf, inf]


test_rows_call_every_rule = FAMILY.covers("activation")
test_equals_eager = FAMILY.equals_eager()
judged, test_equals_eager_through_the_reference_model = (
    FAMILY.equals_eager_through_the_reference_model()
)

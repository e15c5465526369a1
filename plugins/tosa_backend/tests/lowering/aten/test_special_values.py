"""Lowering rules for signs, infinities and NaN give the results of eager torch."""

from __future__ import annotations

import pytest
import torch
from delegraph_tosa.evaluate import evaluate
from delegraph_tosa.lowering import Tosa, lower_program

from ...support.rule_cases import (
    EDGES,
    SPEC,
    Family,
    Function,
    inf,
    nan,
    randn,
    random_bools,
    random_halves,
    random_integers,
)

FAMILY = Family()

for name in ("sign", "sgn"):
    FAMILY.cases(
        name,
        getattr(torch, name),
        EDGES,
        random_integers(2, 3),
        random_bools(3),
        random_halves(5),
    )
for name in ("signbit", "isnan", "isinf", "isfinite", "isposinf", "isneginf"):
    FAMILY.cases(
        name,
        getattr(torch, name),
        EDGES,
        random_integers(2, 3),
        random_bools(3),
        EDGES.half(),
    )
FAMILY.cases(
    "copysign",
    torch.copysign,
    (randn(2, 12), EDGES[:-1].repeat(2)[:12]),
    (random_integers(3), randn(3)),
)
FAMILY.cases("copysign-of-nan", torch.copysign, (EDGES, -EDGES.nan_to_num()))
FAMILY.cases(
    "copysign-number",
    lambda x: torch.copysign(x, -0.0) + torch.copysign(x, 2) / 3,
    randn(9),
    random_integers(4),
)
FAMILY.cases(
    "heaviside",
    torch.heaviside,
    (EDGES, torch.tensor(0.5)),
    (random_integers(2, 3), random_integers(3)),
)
FAMILY.cases("nan-to-num", torch.nan_to_num, EDGES, EDGES.half(), random_integers(3))
FAMILY.cases("nan-to-num-given", lambda x: torch.nan_to_num(x, 7.0, 8.0, -9.0), EDGES)
FAMILY.cases(
    "nan-to-num-infinite", lambda x: torch.nan_to_num(x, inf, posinf=-inf), EDGES
)
for name in ("fmax", "fmin"):
    pairs = (
        torch.tensor([nan, 1.0, nan, inf, -0.5]),
        torch.tensor([2.0, nan, nan, 3.0, -1.0]),
    )
    FAMILY.cases(
        name,
        getattr(torch, name),
        pairs,
        (random_integers(2, 3), random_integers(3)),
        (randn(2, 3), random_integers(3)),
    )


@pytest.mark.parametrize(
    "function",
    [torch.sign, lambda x: torch.copysign(torch.ones(2), x)],
    ids=["sign", "copysign"],
)
def test_sign_functions_keep_the_sign_of_zero(function):
    """The comparison with eager torch treats -0.0 and 0.0 as equal."""
    x = torch.tensor([-0.0, 0.0])
    program = torch.export.export(Function(function), (x,))

    (result,) = evaluate(lower_program(program, Tosa(SPEC)), [x.numpy()])

    # 1 / -0.0 is -inf
    assert (1 / torch.from_numpy(result)).tolist() == (1 / function(x)).tolist()


test_rows_call_every_rule = FAMILY.covers("special_values")
test_equals_eager = FAMILY.equals_eager()
judged, test_equals_eager_through_the_reference_model = (
    FAMILY.equals_eager_through_the_reference_model()
)

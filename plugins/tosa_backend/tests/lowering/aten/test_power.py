"""Lowering rules for powers give the results of eager torch."""

from __future__ import annotations

import delegraph
import pytest
import torch

from ...support.rule_cases import (
    EDGES,
    Family,
    Function,
    inf,
    nan,
    randn,
    random_halves,
    random_integers,
    random_positive,
)

FAMILY = Family()
BASES = torch.tensor([-inf, -2.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 2.0, inf, nan])
EXPONENTS = torch.tensor([-inf, -3.0, -2.5, -2.0, -0.0, 0.3, 1.0, 2.0, 3.0, inf, nan])

for exponent in (
    1,
    2,
    3,
    4,
    7,
    0.5,
    -0.5,
    1.5,
    -2.5,
    -1,
    1.7,
    -2,
    0,
    -1.3,
    17,
    20,
    -17,
    100,
):
    FAMILY.cases(
        f"pow{exponent}",
        lambda x, e=exponent: torch.pow(x, e),
        random_positive(2, 3),
        random_halves(5).abs(),
        EDGES,
        BASES,
    )
FAMILY.cases("pow-of-negative", lambda x: x**2 + x**3, randn(2, 3))
FAMILY.cases("pow-of-int", lambda x: x**2, random_integers(2, 3))
FAMILY.cases("pow-pairs", torch.pow, (random_positive(2, 3), randn(3)))
FAMILY.cases("pow-base", lambda x: torch.pow(2.5, x), randn(2, 3))
FAMILY.cases(
    "pow-edges",
    torch.pow,
    (BASES, EXPONENTS[:, None]),
    (randn(2, 9), random_integers(9).float()),
    (random_halves(5), random_halves(5)),
)
FAMILY.cases(
    "pow-of-base",
    lambda x: torch.cat([torch.pow(b, x) for b in (0.0, -2, 0.5, 1, inf)]),
    EXPONENTS,
)
FAMILY.cases("pow-infinite", lambda x: torch.cat([x**inf, x**-inf, x**nan]), BASES)
FAMILY.cases(
    "pow-promoted",
    torch.pow,
    (random_integers(2, 3), randn(3)),
    (randn(2, 3), random_integers(3)),
)


@pytest.mark.parametrize(
    ("function", "x"),
    [
        (lambda x: x**True, torch.tensor([True, False])),
        (lambda x: torch.logsumexp(x, ()), torch.randn(2, 3)),
    ],
    ids=["bool ** bool", "logsumexp over no dimensions"],
)
def test_results_have_the_type_and_shape_of_the_exported_program(function, x):
    """The tracer of torch records another type or shape than eager returns."""
    lowered = delegraph.lower(Function(function).eval(), (x,), backends=["tosa"])
    (output,) = lowered.exported_program().graph.output_node().args[0]
    recorded = output.meta["val"]

    result = lowered(x)

    assert result.dtype == recorded.dtype
    assert result.shape == recorded.shape


test_rows_call_every_rule = FAMILY.covers("power")
test_equals_eager = FAMILY.equals_eager()
judged, test_equals_eager_through_the_reference_model = (
    FAMILY.equals_eager_through_the_reference_model()
)

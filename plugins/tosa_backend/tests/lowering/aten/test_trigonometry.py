"""Lowering rules for trigonometric and hyperbolic functions give the results of eager
torch.
"""

from __future__ import annotations

import torch

from ...support.rule_cases import (
    EDGES,
    FP,
    Family,
    inf,
    randn,
    random_halves,
    random_integers,
)

FAMILY = Family()
UNIT = torch.linspace(-1, 1, 41)
WIDE = torch.tensor(
    [-1e30, -3e5, -40.0, -2.5, -1e-4, -1e-20, 1e-20, 1e-4, 2.5, 40.0, 3e5, 1e30]
)

for name in ("tan", "sinh", "cosh"):
    FAMILY.cases(
        name,
        getattr(torch, name),
        randn(2, 3, 4),
        random_halves(5),
        UNIT,
        random_integers(4),
        spec=FP,
    )
for name in ("sinh", "cosh", "asinh", "atan"):
    FAMILY.cases(f"{name}-edges", getattr(torch, name), EDGES)
for name in ("asinh", "atan"):
    FAMILY.cases(
        name,
        getattr(torch, name),
        randn(2, 3, 4),
        random_halves(5),
        UNIT,
        WIDE,
        random_integers(4),
        spec=FP,
    )
for name in ("asin", "acos", "atanh"):
    FAMILY.cases(
        name,
        getattr(torch, name),
        UNIT,
        UNIT.half(),
        torch.tensor([1e-6, -1e-6, 2.0, -2.0]),
        EDGES,
    )
FAMILY.cases(
    "acosh",
    torch.acosh,
    randn(2, 3).abs() + 1,
    torch.tensor([1.0, 1.0 + 1e-6, 0.5, 1e6, 1e30, inf]),
)
FAMILY.cases(
    "atan2",
    torch.atan2,
    (randn(2, 3), randn(3)),
    (random_halves(4), random_halves(1)),
    (random_integers(5), random_integers(1)),
)
FAMILY.case(
    "atan2-edges",
    torch.atan2,
    *[a.flatten() for a in torch.meshgrid(EDGES, EDGES, indexing="ij")],
)
FAMILY.case("acosh-beyond", torch.acosh, torch.tensor([-1e38, -inf, -5.0]))
for name in ("arctan", "arcsin", "arccos", "arcsinh", "arctanh"):
    FAMILY.cases(name, getattr(torch, name), UNIT * 0.9)
FAMILY.cases(
    "second-names", lambda x: torch.arccosh(x) + torch.arctan2(x, x + 1), UNIT + 2.5
)


test_rows_call_every_rule = FAMILY.covers("trigonometry")
test_equals_eager = FAMILY.equals_eager()
judged, test_equals_eager_through_the_reference_model = (
    FAMILY.equals_eager_through_the_reference_model()
)

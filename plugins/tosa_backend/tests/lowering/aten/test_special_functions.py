"""Lowering rules for functions computed by polynomials give the results of eager
torch.
"""

from __future__ import annotations

import torch

from ...support.rule_cases import (
    EDGES,
    Family,
    inf,
    nan,
    randn,
    random_bools,
    random_halves,
    random_integers,
)

FAMILY = Family()
UNIT = torch.linspace(-1, 1, 201)

FAMILY.cases(
    "erfinv",
    torch.erfinv,
    UNIT,
    UNIT[90:110] * 1e-3,
    UNIT[1:-1].half(),
    EDGES,
    1 - 10.0 ** torch.arange(-7, 0),
)
FAMILY.cases(
    "erfc", torch.erfc, randn(2, 3) * 3, random_halves(5), EDGES, random_integers(4)
)
FAMILY.cases(
    "hypot",
    torch.hypot,
    (randn(2, 9), randn(9)),
    (EDGES, EDGES.flip(0)),
    (EDGES * 1e37, EDGES.roll(5) * 1e37),
)
FAMILY.cases("hypot-half", torch.hypot, (random_halves(5), random_halves(1)))
FAMILY.cases(
    "logaddexp2",
    torch.logaddexp2,
    (randn(2, 9) * 9, randn(9)),
    (EDGES, EDGES.roll(3)),
    (EDGES, EDGES),
)
FAMILY.cases(
    "erfcx",
    torch.special.erfcx,
    randn(2, 3) * 3,
    EDGES,
    torch.tensor([0.49, 0.51, 12.0, 1e9]),
)
# each value has its own bound
for name, tails in (("erfc", (0.4, 2.0, 4.0, 9.0)), ("erfcx", (-9.0, -5.0, 3.0, 1e7))):
    for x in tails:
        FAMILY.case(f"{name}-of-{x}", getattr(torch.special, name), torch.tensor(x))
FAMILY.cases(
    "special-names",
    lambda x: torch.special.erfinv(x) + torch.special.erfc(x),
    UNIT * 0.9,
)
FAMILY.cases("angle", torch.angle, EDGES, random_integers(5), random_bools(3))
for name in ("i0", "i0e"):
    function = getattr(torch.special, name)
    FAMILY.cases(
        name,
        function,
        randn(2, 30) * 4,
        EDGES,
        random_integers(4),
        torch.linspace(3, 4.5, 20),
        torch.tensor([50.0, 90.0]),
    )
FAMILY.cases("i0-old-name", torch.i0, randn(4))
FAMILY.cases("i0-overflows", torch.i0, torch.tensor([91.5, 100.0, nan, inf]))


test_rows_call_every_rule = FAMILY.covers("special_functions")
test_equals_eager = FAMILY.equals_eager()
judged, test_equals_eager_through_the_reference_model = (
    FAMILY.equals_eager_through_the_reference_model()
)

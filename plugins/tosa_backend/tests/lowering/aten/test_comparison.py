"""Lowering rules for comparisons, logic and selection give the results of eager
torch.
"""

from __future__ import annotations

import torch

from ...support.rule_cases import (
    EDGES,
    Family,
    inf,
    randn,
    random_bools,
    random_integers,
)

FAMILY = Family()

ints = random_integers(2, 3), random_integers(3)
for name in ("eq", "ne", "gt", "ge", "lt", "le"):
    compare = getattr(torch, name)
    FAMILY.cases(
        name,
        compare,
        (randn(2, 3).round(), randn(3).round()),
        ints,
        (ints[0], randn(3)),
        (EDGES, EDGES.flip(0)),
    )
    FAMILY.cases(
        f"{name}-number", lambda x, f=compare: f(x, 1), randn(2, 3).round(), ints[0]
    )
FAMILY.cases("eq-bools", torch.eq, (random_bools(2, 3), random_bools(3)))
for name in ("logical_and", "logical_or", "logical_xor"):
    FAMILY.cases(
        name,
        getattr(torch, name),
        (random_bools(2, 3), random_bools(3)),
        (randn(2, 3).round(), ints[1]),
    )
FAMILY.cases("logical_not", torch.logical_not, random_bools(2, 3), ints[0])
FAMILY.cases(
    "where",
    torch.where,
    (random_bools(2, 3), randn(2, 3), randn(3)),
    (random_bools(3), random_integers(2, 3), random_integers(1)),
)
FAMILY.cases(
    "where-promoted", torch.where, (random_bools(2, 3), randn(2, 3), random_integers(3))
)
FAMILY.cases(
    "where-number",
    lambda c, x: torch.where(c, x, 0.5),
    (random_bools(2, 3), randn(3)),
    (random_bools(3), random_integers(2, 3)),
)
FAMILY.case(
    "where-number-first",
    lambda c, x: torch.where(c, 0.5, x),
    random_bools(2, 3),
    randn(3),
)
FAMILY.case("where-numbers", lambda c: torch.where(c, 1, 2.5), random_bools(2, 3))
FAMILY.case(
    "where-whole-numbers", lambda c: torch.where(c, 1, 2).int(), random_bools(2, 3)
)
FAMILY.cases(
    "masked-fill",
    lambda x, m: x.masked_fill(m, -inf).softmax(-1),
    (randn(2, 3), torch.eye(2, 3) > 0),
)
FAMILY.cases(
    "masked-fill-tensor",
    lambda x, m, v: x.masked_fill(m, v),
    (randn(2, 3), random_bools(3), torch.tensor(2.0)),
)
for name in ("tril", "triu"):
    function = getattr(torch, name)
    FAMILY.cases(
        name,
        lambda x, f=function: f(x, 1),
        randn(2, 3, 5),
        random_integers(4, 2),
        random_bools(3, 3),
    )
    FAMILY.cases(
        f"{name}-below",
        lambda x, f=function: f(x, -2),
        randn(4, 4),
        torch.full((3, 3), inf),
    )


test_rows_call_every_rule = FAMILY.covers("comparison")
test_equals_eager = FAMILY.equals_eager()
judged, test_equals_eager_through_the_reference_model = (
    FAMILY.equals_eager_through_the_reference_model()
)

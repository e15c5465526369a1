"""Lowering rules for elementwise arithmetic give the results of eager torch."""

from __future__ import annotations

import torch

from ...support.rule_cases import (
    EDGES,
    FP,
    Family,
    WithConstant,
    inf,
    nan,
    randn,
    random_bools,
    random_halves,
    random_integers,
    random_positive,
)

aten = torch.ops.aten

FAMILY = Family()

for name in ("abs", "neg", "exp", "floor", "ceil", "erf", "square"):
    FAMILY.cases(
        name,
        getattr(torch, name),
        randn(2, 3, 4),
        random_halves(5),
        torch.tensor(0.7),
        EDGES,
        spec=FP,
    )
for name in ("log", "sqrt", "rsqrt", "reciprocal"):
    FAMILY.cases(
        name,
        getattr(torch, name),
        random_positive(2, 3),
        torch.tensor([0.0, 1e-3, inf, nan]),
        spec=FP,
    )
for name in ("sin", "cos"):
    FAMILY.cases(name, getattr(torch, name), randn(2, 3), random_halves(7))
FAMILY.cases("exp-of-int", torch.exp, random_integers(2, 3), random_bools(2, 3))
FAMILY.cases("floor-of-int", torch.floor, random_integers(2, 3))
FAMILY.cases("abs-of-int", torch.abs, random_integers(2, 3))
pairs = [
    (randn(2, 3, 4), randn(2, 3, 4, seed=5)),
    (randn(2, 3, 4), randn(3, 1)),
    (randn(4), randn(2, 1, 4)),
    (torch.tensor(2.5), randn(2, 3)),
    (random_halves(2, 3), random_halves(3)),
]
for name in ("add", "sub", "mul", "div", "maximum", "minimum", "rsub"):
    FAMILY.cases(name, getattr(torch, name), *pairs)
for name in ("add", "sub", "mul", "rsub"):
    FAMILY.cases(
        f"{name}-ints",
        getattr(torch, name),
        (random_integers(2, 3), random_integers(3)),
    )
for dtype in (torch.int8, torch.int16):
    ends = torch.tensor(
        [torch.iinfo(dtype).max, torch.iinfo(dtype).min, 100, -5, 0]
    ).to(dtype)
    others = torch.tensor([1, -1, 3, 7, 0]).to(dtype)
    FAMILY.cases(
        f"wrapping-{dtype}",
        lambda x, y: (x + y) * y - (-x * 3 - y).abs().sub(x, alpha=3) + 100,
        (ends, others),
    )
    FAMILY.cases(
        f"compared-{dtype}",
        lambda x, y: (x > y) ^ (x <= 2) ^ (x.maximum(y) == x.clamp(-3, 5)),
        (ends, others),
    )
FAMILY.cases(
    "alpha", lambda x, y: torch.add(x, y, alpha=0.5) - torch.sub(y, x, alpha=-2), *pairs
)
large_ints = random_integers(3) + 2**31 - 20
FAMILY.cases(
    "alpha-of-large-ints",
    lambda x, y: x.add(y, alpha=2) + x.sub(y, alpha=3),
    (randn(3), large_ints),
)
FAMILY.cases("rsub-alpha", lambda x, y: torch.rsub(x, y, alpha=3), *pairs)
scalars = [randn(2, 3), random_integers(2, 3), random_halves(3), torch.tensor(1.5)]
FAMILY.cases("number", lambda x: 1.5 - (x + 2) * 0.25 / 3 + 2 / (x.abs() + 1), *scalars)
FAMILY.cases("whole-number", lambda x: (x * 3 - 7).add(2, alpha=2), *scalars)
FAMILY.cases(
    "promoted",
    lambda x, y: x * y + y / x.abs().add(1),
    (random_integers(2, 3), randn(3)),
    (random_halves(3), random_integers(2, 3)),
)
FAMILY.cases(
    "promoted-bool",
    lambda x, y: (x + y) * y - 1,
    (randn(2, 3), random_bools(3)),
    (random_integers(3), random_bools(2, 3)),
)
FAMILY.cases(
    "rank-0-does-not-promote",
    lambda x, y: x * y,
    (random_halves(2, 3), torch.tensor(0.3)),
)
FAMILY.cases(
    "or-without-alpha",
    lambda x, y: torch.add(x, y, alpha=False),
    (random_bools(3), random_bools(2, 3)),
)
FAMILY.cases("and", lambda x, y: x * y, (random_bools(2, 3), random_bools(3)))
FAMILY.cases("half-of-ints", lambda x: x / 2, random_integers(2, 3))
tiny = torch.tensor([1e-40, -1e-39, 3e-45, 1e-38, 5e-41, 0.0])
large = torch.tensor([1e38, -3e38, 2.5e38, 7e37, inf, 1e20])
FAMILY.cases(
    "tiny-quotients",
    torch.div,
    (tiny, tiny.flip(0).abs() + 1e-42),
    (tiny, tiny),
    (tiny, large),
)
FAMILY.cases(
    "large-quotients",
    torch.div,
    (large, large.flip(0)),
    (large, large * -0.5),
    (large, tiny),
)
FAMILY.cases(
    "half-quotients",
    torch.div,
    (random_halves(9) * 1e-4, random_halves(9).abs() * 1e-5),
    (random_halves(9) * 1e4, random_halves(1) * 3e4),
)
FAMILY.cases("divided-by-zero", lambda x: x / 0.0 + x / -0.0, EDGES)
FAMILY.cases(
    "divided-by-a-parameter",
    WithConstant(lambda w, x: x / w, random_positive(3)),
    randn(2, 3),
)
FAMILY.cases("divided-by-infinity", lambda x: x / inf, randn(3))
FAMILY.cases(
    "scalar-overloads",
    lambda x: aten.add.Scalar(
        aten.div.Scalar(aten.mul.Scalar(aten.sub.Scalar(x, 2), 3), 7), 1, 2
    ),
    randn(2, 3),
)
FAMILY.cases(
    "second-names",
    lambda x, y: (
        torch.negative(torch.multiply(x, y))
        + torch.absolute(torch.subtract(x, y, alpha=2))
    ),
    (randn(2, 3), randn(3)),
)
FAMILY.cases(
    "division-names",
    lambda x, y: torch.true_divide(x, y) + torch.divide(y, x),
    (random_positive(2, 3), random_positive(3)),
)
FAMILY.cases(
    "max-min", lambda x, y: torch.max(x, y) - torch.min(x, y), (randn(2, 3), randn(3))
)


test_rows_call_every_rule = FAMILY.covers("elementwise")
test_equals_eager = FAMILY.equals_eager()
judged, test_equals_eager_through_the_reference_model = (
    FAMILY.equals_eager_through_the_reference_model()
)

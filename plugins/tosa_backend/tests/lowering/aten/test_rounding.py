"""Lowering rules for rounding, whole quotients and remainders give the results of eager
torch.
"""

from __future__ import annotations

import torch

from ...support.rule_cases import (
    EDGES,
    FP,
    SPEC,
    Family,
    randn,
    random_halves,
    random_integers,
    random_positive,
)

aten = torch.ops.aten
FAMILY = Family()
TIES = torch.tensor(
    [-3.5, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.5, 8388609.0, 1e30, 0.49999997]
)
MULTIPLES = torch.arange(-40, 41).float()

for name in ("trunc", "round", "frac"):
    FAMILY.cases(name, getattr(torch, name), randn(2, 3) * 3, TIES, random_halves(5))
for name in ("trunc", "round"):
    FAMILY.cases(f"{name}-edges", getattr(torch, name), EDGES, random_integers(4))
FAMILY.cases(
    "round-decimals",
    lambda x: torch.round(x, decimals=2) + torch.round(x, decimals=-1),
    randn(9) * 50,
)
for name in ("fmod", "remainder"):
    function = getattr(torch, name)
    FAMILY.cases(
        name,
        function,
        (randn(2, 9) * 9, random_positive(9)),
        (randn(2, 9) * 9, randn(9)),
        (random_halves(5) * 9, random_halves(5)),
    )
    FAMILY.cases(
        f"{name}-number",
        lambda x, f=function: f(x, 3) + f(x, -0.7),
        MULTIPLES,
        randn(9) * 20,
    )
    FAMILY.cases(
        f"{name}-sign-of-zero",
        lambda x, f=function: 1 / f(x, 2),
        torch.tensor([-4.0, 4.0, -0.0, 0.0, -3.0]),
    )
# quotients up to 2^24
angles = randn(99) * 2.0 ** torch.arange(99).remainder(23), random_positive(99) + 0.5
for name, function in (("fmod", torch.fmod), ("remainder", torch.remainder)):
    FAMILY.case(
        f"{name}-large-quotients", lambda x, y, f=function: f(x, y) / y, *angles
    )
    FAMILY.case(f"{name}-turns", lambda x, f=function: f(x, 6.2831855), angles[0])
grid = [a.flatten() for a in torch.meshgrid(EDGES, EDGES, indexing="ij")]
for name in ("fmod", "remainder"):
    FAMILY.case(f"{name}-edges", getattr(torch, name), *grid)
for mode in ("floor", "trunc"):
    FAMILY.case(
        f"div-{mode}-edges",
        lambda x, y, m=mode: torch.div(x, y, rounding_mode=m),
        *grid,
    )
FAMILY.cases("remainder-of-number", lambda x: torch.remainder(7.5, x), randn(9))
for mode in ("floor", "trunc", None):
    divide = lambda x, y, m=mode: torch.div(x, y, rounding_mode=m)
    FAMILY.cases(
        f"div-{mode}",
        divide,
        (MULTIPLES, MULTIPLES[41:44, None]),
        (randn(2, 9) * 9, randn(9)),
    )
    FAMILY.cases(
        f"div-{mode}-number", lambda x, f=divide: f(x, 7) + f(x, -0.3), MULTIPLES
    )
    FAMILY.cases(
        f"div-{mode}-by-zero",
        lambda x, f=divide: f(x, x - x),
        torch.tensor([-2.0, 0.0, 3.0]),
    )
FAMILY.cases("floor-divide", lambda x, y: x // y + x // 3, (MULTIPLES, MULTIPLES[:1]))
whole_pairs = (
    (random_integers(2, 9), random_integers(9).abs() + 1),
    (random_integers(2, 9), -random_integers(9).abs() - 1),
)
small_pairs = (
    random_integers(9, dtype=torch.int8),
    random_integers(1, dtype=torch.int8) | 1,
)
for name in ("fmod", "remainder", "floor_divide"):
    FAMILY.cases(f"{name}-ints", getattr(torch, name), *whole_pairs, small_pairs)
    function = getattr(torch, name)
    FAMILY.cases(
        f"{name}-int-number",
        lambda x, f=function: f(x, -4) + f(x, 3),
        random_integers(2, 9),
    )
for mode in ("floor", "trunc"):
    FAMILY.cases(
        f"div-{mode}-ints",
        lambda x, y, m=mode: torch.div(x, y, rounding_mode=m),
        *whole_pairs,
    )
largest = torch.tensor(
    [[7], [-9], [2**31 - 1], [-(2**31)], [0], [-1], [6], [-(2**31) + 1]],
    dtype=torch.int32,
)
divisors = torch.tensor(
    [[1, 3, -3, 7, -9, 2**31 - 1, -(2**31), 2**30, -(2**30)]], dtype=torch.int32
)
WHOLE = {
    "fmod": torch.fmod,
    "remainder": torch.remainder,
    "floor_divide": torch.floor_divide,
}
WHOLE |= {
    f"div-{m}": lambda x, y, m=m: torch.div(x, y, rounding_mode=m)
    for m in ("floor", "trunc")
}
for name, function in WHOLE.items():
    FAMILY.case(f"{name}-largest", function, largest, divisors)
    FAMILY.case(f"{name}-without-comparisons", function, largest, divisors, spec=FP)
    for spec in (SPEC, FP):  # of 32 bits, which no range says of quotient * 7
        FAMILY.case(
            f"{name}-int64-{spec}",
            lambda x, f=function: f(x.long(), 7).int(),
            largest,
            spec=spec,
        )
    FAMILY.case(
        f"{name}-number-without-comparisons",
        lambda x, f=function: f(x, -4) + f(x, 3),
        largest,
        spec=FP,
    )
FAMILY.cases(
    "second-names",
    lambda x, y: torch.fix(x) + torch.divide(x, y, rounding_mode="floor"),
    (MULTIPLES, MULTIPLES[:1]),
)
FAMILY.cases(
    "scalar-overloads",
    lambda x: (
        aten.div.Scalar_mode(x, 3, rounding_mode="floor")
        + aten.floor_divide.Scalar(x, 3)
    ),
    MULTIPLES,
)


test_rows_call_every_rule = FAMILY.covers("rounding")
test_equals_eager = FAMILY.equals_eager()
judged, test_equals_eager_through_the_reference_model = (
    FAMILY.equals_eager_through_the_reference_model()
)

"""Lowering rules for bitwise operators and shifts give the results of eager torch."""

from __future__ import annotations

import torch

from ...support.rule_cases import FP, Family, random_bools, random_integers

aten = torch.ops.aten
FAMILY = Family()
ints = random_integers(2, 3), random_integers(3)
small = random_integers(2, 3, dtype=torch.int8), random_integers(3, dtype=torch.int8)
SHIFTS = torch.tensor(
    [[-(2**31), -32, -1, 0, 1, 3, 30, 31, 32, 99, 2**31 - 1]], dtype=torch.int32
)
NUMBERS = torch.tensor(
    [[7], [-9], [2**31 - 1], [-(2**31)], [0], [-1]], dtype=torch.int32
)

FAMILY.cases("bitwise_not", torch.bitwise_not, random_bools(2, 3), ints[0], small[0])
for name in ("and", "or", "xor"):
    function = getattr(torch, f"bitwise_{name}")
    operator = getattr(aten, f"__{name}__")
    FAMILY.cases(
        name,
        function,
        (random_bools(2, 3), random_bools(3)),
        ints,
        small,
        (random_bools(2, 3), ints[1]),
    )
    FAMILY.cases(
        f"{name}-number", lambda x, f=function: f(f(x, 5), True), ints[0], small[0]
    )
    FAMILY.cases(f"{name}-of-number", lambda x, f=function: f(5, x), ints[0])
    FAMILY.cases(
        f"{name}-operator", lambda x, y, o=operator: o.Scalar(o.Tensor(x, y), 6), ints
    )
for name in ("left", "right"):
    function = getattr(torch, f"bitwise_{name}_shift")
    operator = getattr(aten, f"__{name[0]}shift__")
    FAMILY.cases(
        name,
        function,
        (NUMBERS, SHIFTS),
        (random_integers(2, 3, dtype=torch.int16), ints[1].abs().short()),
    )
    FAMILY.case(
        f"{name}-operator-without-comparisons",
        lambda x, y, o=operator: o.Tensor(x, y),
        NUMBERS,
        SHIFTS,
        spec=FP,
    )
    FAMILY.cases(
        f"{name}-without-comparisons",
        function,
        (NUMBERS, SHIFTS),
        (NUMBERS, SHIFTS.clamp(0, 31)),
        spec=FP,
    )
    FAMILY.cases(f"{name}-number", lambda x, f=function: f(x, 3), ints[0])
    FAMILY.cases(f"{name}-of-number", lambda x, f=function: f(-77, x), ints[0].abs())
    FAMILY.cases(
        f"{name}-operator",
        lambda x, y, o=operator: o.Scalar(o.Tensor(x, y), 2),
        (ints[0], ints[1].abs()),
    )
AMOUNTS = torch.tensor([[0, 5, 31, 40]], dtype=torch.int32)
FAMILY.case("right-known", lambda x: x >> AMOUNTS, NUMBERS, spec=FP)
FAMILY.case("right-int64", lambda x, y: (x.long() >> y).int(), NUMBERS, SHIFTS, spec=FP)


test_rows_call_every_rule = FAMILY.covers("bitwise")
test_equals_eager = FAMILY.equals_eager()
judged, test_equals_eager_through_the_reference_model = (
    FAMILY.equals_eager_through_the_reference_model()
)

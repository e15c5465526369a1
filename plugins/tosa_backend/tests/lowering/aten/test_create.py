"""Lowering rules for operators that create tensors give the results of eager torch."""

from __future__ import annotations

import math

import torch

from ...support.rule_cases import Family, randn, random_integers

aten = torch.ops.aten
inf = math.inf

FAMILY = Family()

FAMILY.cases(
    "full",
    lambda x: torch.full((2, 3), 1.5) + torch.full((3,), 2) * torch.full_like(x, 2.5),
    randn(2, 3),
)
FAMILY.cases(
    "ones",
    lambda x: (
        torch.ones(2, 3) + torch.ones_like(x) - torch.zeros(3) + torch.zeros_like(x)
    ),
    randn(2, 3),
)
FAMILY.cases(
    "arange",
    lambda x: x + torch.arange(3) - torch.arange(1, 4) * torch.arange(0, 6, 2.0),
    randn(2, 3),
)
FAMILY.case(
    "truth",
    lambda x: [
        torch.full_like(x, 0.5, dtype=torch.bool),
        *((x > 0).masked_fill(x < 0, n) for n in (inf, 0.1, 0)),
    ],
    randn(2, 3),
)
FAMILY.cases("scalar-tensor", lambda x: x * aten.scalar_tensor(2), randn(2, 3))
FAMILY.cases(
    "new",
    lambda x: (
        x.new_full((3,), 2) + x.new_ones(2, 3) - x.new_zeros(3, dtype=torch.int64)
    ),
    randn(2, 3),
)
FAMILY.case(
    "empty",
    lambda x: [
        x,
        *(
            torch.where(torch.zeros(e.shape, dtype=torch.bool), e, 1.0)
            for e in (torch.empty(3), x.new_empty(2), torch.empty_like(x))
        ),
    ],
    random_integers(2, 3),
)
FAMILY.case(
    "eye",
    lambda x: x + torch.eye(2) @ x - torch.eye(2, 3, dtype=torch.int64),
    randn(2, 3),
)
FAMILY.case(
    "linspace",
    lambda x: x + torch.linspace(-1, 2, 7) * torch.linspace(0, 9, 7, dtype=torch.int64),
    randn(7),
)
FAMILY.case(
    "int64",
    lambda x: (
        x.to(torch.int8)
        + torch.full((3,), 2) * torch.zeros(3, dtype=torch.int64)
        + torch.ones_like(x, dtype=torch.int64),
        torch.arange(3) * 2 + torch.full((1,), -5),
    ),
    random_integers(3),
)
FAMILY.cases("large", lambda x: x + torch.ones(200, 300), randn(200, 1))


test_rows_call_every_rule = FAMILY.covers("create")
test_equals_eager = FAMILY.equals_eager()
judged, test_equals_eager_through_the_reference_model = (
    FAMILY.equals_eager_through_the_reference_model()
)

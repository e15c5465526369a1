"""Operators that create tensors, each rule against eager torch."""

from __future__ import annotations

import torch

from ...support.rule_cases import Family, randn

aten = torch.ops.aten

FAMILY = Family()

FAMILY.cases("full", lambda x: torch.full((2, 3), 1.5) + torch.full((3,), 2) * torch.full_like(x, 2.5), randn(2, 3))
FAMILY.cases(
    "ones", lambda x: torch.ones(2, 3) + torch.ones_like(x) - torch.zeros(3) + torch.zeros_like(x), randn(2, 3)
)
FAMILY.cases("arange", lambda x: x + torch.arange(3) - torch.arange(1, 4) * torch.arange(0, 6, 2.0), randn(2, 3))
FAMILY.cases("scalar-tensor", lambda x: x * aten.scalar_tensor(2), randn(2, 3))
FAMILY.cases("large", lambda x: x + torch.ones(200, 300), randn(200, 1))


test_equals_eager = FAMILY.equals_eager()
judged, test_equals_eager_through_the_reference_model = FAMILY.equals_eager_through_the_reference_model()

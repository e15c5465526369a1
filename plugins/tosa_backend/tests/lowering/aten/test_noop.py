"""Lowering rules for operators that change nothing give the results of eager torch."""

from __future__ import annotations

import torch
from torch import nn

from ...support.rule_cases import Family, randn

aten = torch.ops.aten

FAMILY = Family()

FAMILY.cases("dropout", nn.Dropout(0.5), randn(2, 3))
FAMILY.cases("feature-dropout", nn.Dropout2d(0.5), randn(1, 2, 3, 3))
FAMILY.cases(
    "copies",
    lambda x: (
        (x.detach().clone().contiguous() + aten.alias(x)) * aten.lift_fresh_copy(x)
    ),
    randn(2, 3),
)
FAMILY.cases(
    "copies-by-name", lambda x: aten.detach_copy(x) * aten.alias_copy(x), randn(2, 3)
)
FAMILY.cases("asserted-metadata", lambda x: x.to(torch.float32) + 1, randn(2))
FAMILY.cases("positive", lambda x: +x, randn(2))
FAMILY.cases("returned-as-it-is", lambda x, y: (y, x * 1, x, y), (randn(2), randn(3)))
FAMILY.cases("contiguous", lambda x: x.t().contiguous(), randn(2, 3))


test_rows_call_every_rule = FAMILY.covers("noop")
test_equals_eager = FAMILY.equals_eager()
judged, test_equals_eager_through_the_reference_model = (
    FAMILY.equals_eager_through_the_reference_model()
)

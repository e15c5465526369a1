"""Lowering rules for distances give the results of eager torch."""

from __future__ import annotations

import torch

from ...support.rule_cases import Family, inf, randn

aten = torch.ops.aten
FAMILY = Family()
x = randn(2, 5, 3)
y = randn(2, 4, 3, seed=3)

for p in (0.0, 0.5, 1.0, 2.0, 3.0, inf):
    FAMILY.cases(
        f"cdist-{p}",
        lambda x, y, p=p: torch.cdist(x, y, p),
        (x, y),
        (x, y[0]),
        (x[0], x[0]),
    )
    FAMILY.cases(f"pdist-{p}", lambda x, p=p: torch.pdist(x, p), x[0])
FAMILY.cases(
    "inner",
    lambda x, y: aten._cdist_forward(x, y, 2.0, None) + aten._pdist_forward(x[0])[0],
    (x, y),
)


test_rows_call_every_rule = FAMILY.covers("distance")
test_equals_eager = FAMILY.equals_eager()
judged, test_equals_eager_through_the_reference_model = (
    FAMILY.equals_eager_through_the_reference_model()
)

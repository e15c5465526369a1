"""Lowering rules for exponentials and logarithms give the results of eager torch."""

from __future__ import annotations

import torch

from ...support.rule_cases import (
    EDGES,
    FP,
    Family,
    randn,
    random_halves,
    random_integers,
    random_positive,
)

FAMILY = Family()
SMALL = torch.tensor([-1e-3, -1e-6, -1e-12, -0.0, 0.0, 1e-12, 1e-6, 1e-3])

for name in ("exp2", "expm1"):
    FAMILY.cases(
        name,
        getattr(torch, name),
        randn(2, 3, 4),
        random_halves(5),
        EDGES,
        SMALL,
        random_integers(4),
        spec=FP,
    )
for name in ("log2", "log10", "log1p"):
    FAMILY.cases(
        name,
        getattr(torch, name),
        random_positive(2, 3),
        random_halves(5).abs() + 1,
        EDGES,
        random_integers(4).abs() + 1,
    )
FAMILY.cases("log1p-small", torch.log1p, SMALL, torch.tensor([3e38, -0.999, -0.5]))
FAMILY.cases(
    "logit",
    torch.logit,
    torch.rand(9) * 0.98 + 0.01,
    torch.tensor([0.0, 1.0, 0.5, 2.0, float("nan")]),
)
FAMILY.cases(
    "logit-eps",
    lambda x: torch.logit(x, 0.1),
    torch.tensor([-1.0, 0.0, 0.05, 0.5, 1.0]),
)
FAMILY.cases(
    "logaddexp",
    torch.logaddexp,
    (randn(2, 3), randn(3)),
    (EDGES, EDGES.flip(0)),
    (EDGES, EDGES),
)
FAMILY.cases(
    "xlogy",
    torch.xlogy,
    (randn(2, 3), random_positive(3)),
    (torch.zeros(5), EDGES[7:]),
    (EDGES, EDGES.flip(0)),
)
FAMILY.cases(
    "xlogy-number",
    lambda x: torch.xlogy(2.0, x) + torch.xlogy(x, 3.0),
    random_positive(2, 3),
)
for name in ("exp2", "expm1", "log1p", "logit"):
    FAMILY.cases(
        f"special-{name}", getattr(torch.special, name), torch.rand(4) * 0.5 + 0.2
    )


test_rows_call_every_rule = FAMILY.covers("exponential")
test_equals_eager = FAMILY.equals_eager()
judged, test_equals_eager_through_the_reference_model = (
    FAMILY.equals_eager_through_the_reference_model()
)

"""Lowering rules for running sums, products and extremes give the results of eager
torch.
"""

from __future__ import annotations

import torch

from ...support.rule_cases import (
    Family,
    inf,
    nan,
    randn,
    random_bools,
    random_halves,
    random_integers,
)

FAMILY = Family()
x = randn(2, 7, 4)
broken = torch.tensor([1.0, 2.0, inf, 3.0, -inf, 1.0, nan, 0.0])

for name in ("cumsum", "cumprod", "logcumsumexp"):
    function = getattr(torch, name)
    FAMILY.cases(name, lambda x, f=function: f(x, 1), x, random_halves(2, 9))
    FAMILY.cases(
        f"{name}-last",
        lambda x, f=function: f(x, -1),
        x,
        broken,
        randn(3, 1),
        torch.tensor(0.5),
    )
for name in ("cumsum", "cumprod"):
    function = getattr(torch, name)
    FAMILY.cases(
        f"{name}-of-ints",
        lambda x, f=function: f(x, 0, dtype=torch.int32),
        random_integers(9),
    )
    FAMILY.cases(
        f"{name}-as-float",
        lambda x, f=function: f(x, 0, dtype=torch.float32),
        random_integers(9),
        random_halves(5),
    )
FAMILY.cases(
    "cumsum-int64",
    lambda x: torch.cumsum(x, -1),
    random_bools(2, 9),
    random_integers(9).to(torch.int8),
)
FAMILY.cases(
    "masked-scatter",
    lambda x, m, s: x.masked_scatter(m, s),
    (randn(3, 4), random_bools(3, 4), randn(4, 4)),
    (random_integers(3, 4), random_bools(4), random_integers(20)),
    (random_bools(3, 4), random_bools(3, 1), random_bools(12)),
)


test_rows_call_every_rule = FAMILY.covers("scan")
test_equals_eager = FAMILY.equals_eager()
judged, test_equals_eager_through_the_reference_model = (
    FAMILY.equals_eager_through_the_reference_model()
)

"""Lowering rules for variance and standard deviation give the results of eager
torch.
"""

from __future__ import annotations

import pytest
import torch

from ...support.rule_cases import Family, inf, randn, random_halves

aten = torch.ops.aten
FAMILY = Family()
x = randn(2, 3, 4, 5) * 3 + 1
huge = torch.tensor(
    [[1e38, 3e38, -2e38], [2e18, -1e19, 1.5e19], [1e-30, 3e-30, 2e-30], [4.0, 4.0, 4.0]]
)


def _pair(result):
    return result if isinstance(result, tuple) else (result,)


for name in ("var", "std", "var_mean", "std_mean"):
    function = getattr(torch, name)
    FAMILY.cases(name, lambda x, f=function: f(x, (1, -1)), x, random_halves(2, 3, 4))
    FAMILY.cases(
        f"{name}-kept", lambda x, f=function: f(x, 1, correction=0, keepdim=True), x
    )
    FAMILY.cases(
        f"{name}-correction", lambda x, f=function: f(x, (0, 2), correction=2.5), x
    )
    FAMILY.cases(
        f"{name}-all",
        lambda x, f=function: f(x),
        x,
        torch.tensor([1.0, inf, 2.0]) if "_" not in name else x,
    )
    # twice, since torch sums a single row in another way
    for k, row in enumerate(huge):
        FAMILY.case(f"{name}-huge-{k}", lambda x, f=function: f(x, 1), row.repeat(2, 1))
    default = getattr(aten, name).default
    dim = getattr(aten, name).dim
    FAMILY.cases(
        f"{name}-old",
        lambda x, a=default, b=dim: (
            *_pair(a(x, False)),
            *_pair(b(x, [1], True, True)),
        ),
        x,
    )
for name in ("var", "std"):
    function = getattr(torch, name)
    FAMILY.cases(
        f"{name}-of-too-few", lambda x, f=function: f(x, 0), torch.tensor([[1.0, inf]])
    )
for order in (1, 2, inf):
    FAMILY.cases(
        f"norm-{order}",
        lambda x, p=order: torch.linalg.vector_norm(x, p, (1, -1)),
        x,
        random_halves(2, 3, 4),
    )
    FAMILY.cases(
        f"norm-{order}-whole",
        lambda x, p=order: torch.linalg.vector_norm(x, p, keepdim=True),
        x,
    )
pytestmark = pytest.mark.filterwarnings("ignore:.*degrees of freedom")


test_rows_call_every_rule = FAMILY.covers("statistics")
test_equals_eager = FAMILY.equals_eager()
judged, test_equals_eager_through_the_reference_model = (
    FAMILY.equals_eager_through_the_reference_model()
)

"""Lowering rules for reductions and softmax give the results of eager torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ...support.rule_cases import (
    EDGES,
    Family,
    inf,
    nan,
    randn,
    random_bools,
    random_halves,
    random_integers,
)

aten = torch.ops.aten

FAMILY = Family()

x = randn(2, 3, 4, 5)
for name in ("mean", "sum", "amax", "amin"):
    function = getattr(torch, name)
    FAMILY.cases(
        name, lambda x, f=function: f(x, dim=(1, -1)), x, random_halves(2, 3, 4)
    )
    FAMILY.cases(f"{name}-kept", lambda x, f=function: f(x, dim=(-2,), keepdim=True), x)
    if name in ("mean", "sum"):
        FAMILY.cases(f"{name}-all", lambda x, f=function: f(x), x)
    FAMILY.cases(
        f"{name}-of-rank-0", lambda x, f=function: f(x, dim=0), torch.tensor(2.0)
    )
FAMILY.cases(
    "amax-all",
    lambda x: torch.amax(x, ()) - torch.amin(x, ()),
    x,
    random_integers(2, 3),
)
FAMILY.cases("sum-int32", lambda x: x.sum(1, dtype=torch.int32), random_integers(2, 3))
FAMILY.cases(
    "sum-int64", lambda x: x.sum(1), random_bools(2, 9), random_integers(2, 9).short()
)
FAMILY.cases(
    "sum-of-ints-as-float", lambda x: x.sum(dtype=torch.float32), random_integers(2, 3)
)
FAMILY.cases(
    "mean-as-float",
    lambda x: x.mean(dtype=torch.float32),
    random_halves(2, 3),
    random_integers(2, 3),
)
FAMILY.cases(
    "max-min-all",
    lambda x: torch.max(x) - torch.min(x),
    x,
    random_integers(2, 3),
    torch.tensor(3.0),
)
FAMILY.cases(
    "prod",
    lambda x: x.prod(),
    x[0, 0],
    random_halves(2, 3),
    torch.tensor(2.0),
    torch.tensor([inf, 0.0]),
)
FAMILY.cases(
    "prod-axis",
    lambda x: x.prod(1) + x.prod(1, keepdim=True).squeeze(1),
    x,
    random_halves(2, 3),
)
FAMILY.cases(
    "prod-of-ints",
    lambda x: x.prod(1, dtype=torch.int32),
    random_integers(2, 5),
    random_integers(2, 5).to(torch.int8),
)
FAMILY.cases(
    "prod-int64",
    lambda x: x.prod(),
    random_bools(5),
    random_integers(2, 2).to(torch.int8),
    torch.tensor(3, dtype=torch.int8),
)
FAMILY.cases(
    "prod-as-float",
    lambda x: x.prod(dtype=torch.float32),
    random_integers(2, 3),
    random_bools(3),
)
for name in ("any", "all"):
    function = getattr(torch, name)
    inputs = (
        random_bools(2, 3, 4),
        x.round(),
        random_integers(2, 3, 4),
        torch.tensor([[[nan, 0.0]]]),
    )
    FAMILY.cases(
        name, function, *inputs, random_bools(2, 3) & False, torch.tensor(True), EDGES
    )
    FAMILY.cases(f"{name}-axis", lambda x, f=function: f(x, 1), *inputs)
    FAMILY.cases(f"{name}-kept", lambda x, f=function: f(x, -1, keepdim=True), *inputs)
    FAMILY.cases(f"{name}-axes", lambda x, f=function: f(x, (0, -1)), *inputs)
    FAMILY.cases(f"{name}-no-axes", lambda x, f=function: f(x, ()), *inputs)
for name in ("softmax", "log_softmax"):
    function = getattr(F, name)
    FAMILY.cases(
        name,
        lambda x, f=function: f(x, -1),
        x * 20,
        random_halves(2, 9),
        torch.tensor(3.0),
    )
    FAMILY.cases(f"{name}-channels", lambda x, f=function: f(x, 1), x)
    FAMILY.cases(
        f"{name}-as-float",
        lambda x, f=function: f(x, 0, dtype=torch.float32),
        random_halves(3, 4),
    )
FAMILY.cases(
    "softmax-inner",
    lambda x: aten._softmax(x, 1, False) + aten._log_softmax(x, 1, False),
    x,
)

FAMILY.cases(
    "logsumexp",
    lambda x: x.logsumexp((1, -1)),
    x * 20,
    random_halves(2, 3, 4),
    torch.tensor([[[inf]], [[-inf]]]),
)
FAMILY.cases(
    "logsumexp-kept",
    lambda x: x.logsumexp(0, keepdim=True),
    x,
    random_integers(2, 3),
    torch.tensor(3.0),
)


test_rows_call_every_rule = FAMILY.covers("reduce")
test_equals_eager = FAMILY.equals_eager()
judged, test_equals_eager_through_the_reference_model = (
    FAMILY.equals_eager_through_the_reference_model()
)

"""Lowering rules for extremes and sorting give the results of eager torch. Indices of
equal elements are compared only where torch defines them.
"""

from __future__ import annotations

import torch

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

FAMILY = Family()

x = randn(2, 7, 4)
ties = torch.tensor([[1.0, 3, 3, 2, 3], [-0.0, 0.0, -inf, -0.0, 0.0]])
broken = torch.tensor([[1.0, nan, inf, nan, -inf], [-0.0, 0.0, -inf, inf, 1.0]])
small = random_integers(3, 5)
long = torch.tensor([4, 0, 9, 9, 2])

for name in ("argmax", "argmin"):
    function = getattr(torch, name)
    FAMILY.cases(
        name,
        lambda x, f=function: f(x, 1),
        x,
        random_halves(2, 9),
        ties,
        broken,
        small,
        small.to(torch.int8),
    )
    FAMILY.cases(f"{name}-kept", lambda x, f=function: f(x, -1, keepdim=True), x, small)
    FAMILY.cases(
        f"{name}-all", lambda x, f=function: f(x), x, broken, small, torch.tensor(2.0)
    )
    FAMILY.case(f"{name}-all-kept", lambda x, f=function: f(x, keepdim=True), x)
    FAMILY.case(f"{name}-of-rank-0", lambda x, f=function: f(x, 0), torch.tensor(2.0))
for name in ("max", "min"):
    function = getattr(torch, name)
    FAMILY.cases(
        f"{name}-dim",
        lambda x, f=function: f(x, 1),
        x,
        random_halves(2, 9),
        ties,
        broken,
        small,
        random_bools(3, 4),
    )
    FAMILY.cases(
        f"{name}-dim-kept",
        lambda x, f=function: f(x, 0, keepdim=True),
        x,
        small.short(),
    )
    FAMILY.case(
        f"{name}-dim-of-rank-0", lambda x, f=function: f(x, 0), torch.tensor(2.0)
    )
    FAMILY.case(
        f"{name}-dim-of-int64",
        lambda x, i, f=function: (x[i], *f(i, 0)),
        randn(10),
        long,
    )
for name in ("cummax", "cummin"):
    function = getattr(torch, name)
    FAMILY.cases(
        name,
        lambda x, f=function: f(x, 1),
        x,
        random_halves(2, 9),
        ties,
        broken,
        small,
        small.short(),
    )
    FAMILY.cases(
        f"{name}-first",
        lambda x, f=function: f(x, 0),
        x,
        torch.tensor(2.0),
        randn(1, 3),
    )

for descending in (False, True):
    FAMILY.cases(
        f"sort-{descending}",
        lambda x, d=descending: torch.sort(x, 1, d),
        x,
        random_halves(2, 9),
        random_integers(1, 4).unique()[None],
    )
    FAMILY.cases(
        f"sort-stable-{descending}",
        lambda x, d=descending: torch.sort(x, dim=0, descending=d, stable=True),
        x,
        ties.T.contiguous(),
        broken.T.contiguous(),
        EDGES,
        small,
        random_bools(5),
        torch.tensor(1.0),
    )
    FAMILY.cases(
        f"argsort-{descending}", lambda x, d=descending: torch.argsort(x, -1, d), x
    )
    FAMILY.cases(
        f"topk-{descending}",
        lambda x, d=descending: x.topk(3, 1, d),
        x,
        random_halves(2, 9),
        broken[:, 2:],
    )
    few = torch.cat([randn(1, 2100), broken[:1], EDGES[None], broken[1:]], 1)
    FAMILY.cases(
        f"topk-few-{descending}",
        lambda x, d=descending: x.topk(12, 1, d)[0],
        few,
        few.clamp(-2, 0).nan_to_num(),
    )
    FAMILY.case(
        f"topk-few-ints-{descending}",
        lambda x, d=descending: x.topk(5, 1, d),
        random_integers(1, 1).repeat(1, 2100) + torch.arange(2100).int(),
    )
FAMILY.case("topk-values-of-ties", lambda x: x.topk(3)[0], ties)
FAMILY.case("topk-of-int64", lambda x, i: (x[i], i.topk(2)[0]), randn(10), long)
FAMILY.cases(
    "kthvalue",
    lambda x: x.kthvalue(2, -1),
    x,
    torch.tensor([1.0, nan, 0.5]),
    torch.tensor([3, 1, 2]).int(),
)
FAMILY.case("kthvalue-kept", lambda x: x.kthvalue(2, 1, keepdim=True), x)
FAMILY.cases("median", lambda x: x.median(), x, broken, small, torch.tensor(1.5), ties)
FAMILY.cases("median-dim", lambda x: x.median(1), x, randn(2, 6), broken)
FAMILY.cases(
    "median-dim-kept", lambda x: x.median(0, keepdim=True), x, torch.tensor(1.5)
)
FAMILY.case("msort", lambda x: x.msort(), x)

row = torch.tensor([-1.0, 0.0, 0.0, 0.5, 3.0])
for right in (False, True):
    FAMILY.cases(
        f"bucketize-{right}",
        lambda x, b, r=right: torch.bucketize(x, b, right=r),
        (EDGES, row),
        (randn(2, 3), row.half()),
        (random_integers(4), row.int()),
        (torch.tensor(0.5), row),
    )
    FAMILY.cases(
        f"searchsorted-{right}",
        lambda b, x, r=right: torch.searchsorted(b, x, right=r),
        (row, EDGES),
        (row, randn(2, 3, 4)),
        (randn(2, 5).sort()[0], randn(2, 3)),
        (row[None], broken[:1]),
    )
    FAMILY.case(
        f"searchsorted-number-{right}",
        lambda b, r=right: torch.searchsorted(b, 0.0, right=r),
        row,
    )
FAMILY.case(
    "searchsorted-int32",
    lambda b, x: torch.searchsorted(b, x, out_int32=True, side="right"),
    row,
    EDGES,
)
FAMILY.case(
    "searchsorted-sorter",
    lambda b, x, i: torch.searchsorted(b, x, sorter=i),
    row.flip(0),
    EDGES,
    torch.arange(4, -1, -1),
)


test_rows_call_every_rule = FAMILY.covers("order")
test_equals_eager = FAMILY.equals_eager()
judged, test_equals_eager_through_the_reference_model = (
    FAMILY.equals_eager_through_the_reference_model()
)

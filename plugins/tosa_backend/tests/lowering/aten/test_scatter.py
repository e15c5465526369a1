"""Lowering rules for operators that write at indices give the results of eager
torch.
"""

from __future__ import annotations

import pytest
import torch

from ...support.rule_cases import (
    FP,
    Family,
    inf,
    nan,
    randn,
    random_bools,
    random_halves,
    random_integers,
)

aten = torch.ops.aten
pytestmark = [
    pytest.mark.filterwarnings("ignore:index_reduce.. is in beta"),
    pytest.mark.filterwarnings("ignore:The reduce argument of torch.scatter"),
]

FAMILY = Family()

x = randn(3, 5, 4)
y = randn(3, 2, 4, seed=5)
apart = torch.stack(
    [
        torch.randperm(5, generator=torch.Generator().manual_seed(k))[:2]
        for k in range(12)
    ]
)
apart = apart.reshape(3, 4, 2).transpose(1, 2).contiguous()
"""[3,2,4]; no place twice"""
often = torch.tensor([4, 1, 4, 1, 0])
several = often[None, :, None].expand(3, 5, 4).contiguous()
ends = torch.tensor([-1, 0])
broken = torch.tensor([[1.0, inf, nan, -0.0, 2.0]])

FAMILY.cases(
    "scatter",
    lambda x, i, y: x.scatter(1, i, y),
    (x, apart, y),
    (x > 0, apart, y > 0),
    (x, apart[:2, :, :3], y),
)
FAMILY.case(
    "scatter-bool-in-fp",
    lambda x, i, y: x.scatter(1, i, y),
    random_bools(2, 5),
    apart[:2, :, 0],
    random_bools(2, 2),
    spec=FP,
)
FAMILY.case(
    "scatter-last",
    lambda x, i, y: x.scatter(-1, i, y),
    random_integers(2, 5),
    apart[0].T[:2].contiguous(),
    random_integers(2, 3),
)
FAMILY.case(
    "scatter-of-rank-0",
    lambda x, i, y: x.scatter(0, i, y),
    torch.tensor(1.0),
    ends[1],
    torch.tensor(2.0),
)
FAMILY.cases(
    "scatter-value",
    lambda x, i: x.scatter(1, i, 7),
    (x, several),
    (x, apart[:2]),
    (random_integers(3, 5), several[:, :, 0]),
)
FAMILY.case(
    "scatter-value-first", lambda x, i: x.scatter(0, i, -inf), x[0], several[0, :, :2]
)

for name in ("sum", "prod", "mean", "amax", "amin"):
    FAMILY.cases(
        f"scatter-reduce-{name}",
        lambda x, i, y, r=name: x.scatter_reduce(1, i, y, r),
        (x, several, randn(3, 5, 4, seed=1)),
        (x, apart[:2, :, :3], y),
        (broken, often[None], broken.flip(1)),
    )
    FAMILY.case(
        f"scatter-reduce-{name}-without-self",
        lambda x, i, y, r=name: x.scatter_reduce(1, i, y, r, include_self=False),
        *(x, several, randn(3, 5, 4, seed=1)),
    )
for name in ("sum", "amax", "amin"):
    FAMILY.cases(
        f"scatter-reduce-{name}-ints",
        lambda x, i, y, r=name: x.scatter_reduce(1, i, y, r),
        (random_integers(3, 5), several[:, :, 0], random_integers(3, 5)),
        (
            random_integers(3, 5).short(),
            several[:, :, 0],
            random_integers(3, 5).short(),
        ),
    )
FAMILY.cases(
    "scatter-add",
    lambda x, i, y: x.scatter_add(1, i, y),
    (x, several, x * 2),
    (random_halves(2, 5), several[:2, :, 0], random_halves(2, 5)),
)
for name in ("add", "multiply"):
    FAMILY.case(
        f"scatter-{name}",
        lambda x, i, y, r=name: x.scatter(1, i, y, reduce=r),
        x,
        several,
        x * 2,
    )
    FAMILY.case(
        f"scatter-value-{name}",
        lambda x, i, r=name: x.scatter(1, i, 3, reduce=r),
        x,
        several,
    )

FAMILY.cases(
    "index-add",
    lambda x, i, y: x.index_add(1, i, y),
    (x, often, x + 1),
    (x, often[:2], y),
    (random_integers(3, 5), often, random_integers(3, 5)),
)
FAMILY.case(
    "index-add-alpha", lambda x, i, y: x.index_add(1, i, y, alpha=-2), x, often, x + 1
)
FAMILY.case(
    "index-add-of-rank-0",
    lambda x, i, y: x.index_add(0, i, y),
    torch.tensor(1.0),
    ends[1:],
    torch.tensor(2.0),
)
for name in ("prod", "mean", "amax", "amin"):
    FAMILY.case(
        f"index-reduce-{name}",
        lambda x, i, y, r=name: x.index_reduce(1, i, y, r),
        x,
        often,
        x + 1,
    )
FAMILY.cases(
    "index-copy",
    lambda x, i, y: x.index_copy(1, i, y),
    (x, often[:2], y),
    (x > 0, often[:2], y > 0),
)
FAMILY.case(
    "index-copy-cache",
    lambda x, i, y: x.index_copy(2, i, y),
    randn(1, 2, 6, 3),
    often[1:2],
    randn(1, 2, 1, 3),
)
FAMILY.case(
    "index-copy-of-rank-0",
    lambda x, i, y: x.index_copy(0, i, y),
    torch.tensor(1.0),
    ends[1:],
    torch.tensor(2.0),
)
FAMILY.cases(
    "index-fill",
    lambda x, i: x.index_fill(1, i, 7),
    (x, often),
    (x, ends),
    (random_integers(3, 5), ends),
)
FAMILY.case(
    "index-fill-tensor",
    lambda x, i, v: x.index_fill(0, i, v),
    x,
    ends,
    torch.tensor(2.5),
)

FAMILY.case("index-put", lambda x, i, y: x.index_put((i,), y), x, ends, randn(2, 5, 4))
FAMILY.case(
    "index-put-number", lambda x, i: aten.index_put(x, [None, i], x[0, 0, :1]), x, ends
)
FAMILY.case(
    "index-put-two",
    lambda x, i, j, y: x.index_put((i, j), y),
    x,
    ends,
    often[:2],
    randn(4),
)
FAMILY.case(
    "index-put-apart",
    lambda x, i, j, y: aten.index_put(x, [i, None, j], y),
    x,
    ends,
    often[1:2],
    randn(2, 5),
)
FAMILY.case(
    "index-put-later",
    lambda x, i, y: aten.index_put(x, [None, None, i], y),
    x,
    ends,
    randn(3, 5, 2),
)
FAMILY.case(
    "index-put-unsafe",
    lambda x, i, y: aten._unsafe_index_put(x, [i], y),
    x,
    ends,
    randn(2, 5, 4),
)
FAMILY.cases(
    "index-put-accumulated",
    lambda x, i, y: aten.index_put(x, [None, i], y, True),
    (x, often, randn(3, 5, 4, seed=3)),
    (random_integers(3, 5), often, random_integers(3, 5)),
    (x, ends, randn(4)),
)
FAMILY.cases(
    "index-put-mask",
    lambda x, m, v: aten.index_put(x, [m], v),
    (x, x > 0, torch.tensor(2.0)),
    (x, random_bools(3), randn(4)),
)
FAMILY.case(
    "index-put-mask-row",
    lambda x, m, v: aten.index_put(x, [m], v),
    x,
    random_bools(3, 5),
    randn(1, 4),
)
FAMILY.case(
    "index-put-mask-later",
    lambda x, m, v: aten.index_put(x, [None, m], v),
    x,
    random_bools(5),
    torch.tensor([2.0]),
)
FAMILY.case(
    "index-put-mask-added",
    lambda x, m, v: aten.index_put(x, [m], v, True),
    x,
    x > 0,
    torch.tensor(2.0),
)
FAMILY.cases(
    "put",
    lambda x, i, y: x.put(i, y),
    (x, ends, randn(2)),
    (torch.tensor(1.0), ends[1], torch.tensor(2.0)),
)
FAMILY.case(
    "put-accumulated",
    lambda x, i, y: x.put(i, y, accumulate=True),
    x[0],
    several[0],
    randn(5, 4, seed=4),
)


test_rows_call_every_rule = FAMILY.covers("scatter")
test_equals_eager = FAMILY.equals_eager()
judged, test_equals_eager_through_the_reference_model = (
    FAMILY.equals_eager_through_the_reference_model()
)

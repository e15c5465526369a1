"""Lowering rules for operators that read at indices give the results of eager torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ...support.rule_cases import (
    FP,
    Family,
    WithConstant,
    randn,
    random_bools,
    random_halves,
    random_integers,
)

aten = torch.ops.aten

FAMILY = Family()

ids = torch.tensor([[1, 4, 0], [2, 2, 3]])
x = randn(3, 5, 4)
rows = torch.tensor([2, 0, 1, 2])
ends = torch.tensor([-1, 3, -5])

FAMILY.cases(
    "embedding",
    WithConstant(lambda w, i: F.embedding(i, w), randn(5, 4)),
    ids,
    ids.int(),
    ids[0, 0],
    ids[:1],
)
FAMILY.case(
    "embedding-padding",
    WithConstant(lambda w, i: F.embedding(i, w, 2), randn(5, 4)),
    ids,
)
FAMILY.case("embedding-half", F.embedding, ids, random_halves(5, 4))
FAMILY.case("embedding-computed", lambda w, i: F.embedding(i, w * 2), randn(5, 4), ids)

FAMILY.cases(
    "index-select",
    lambda x, i: x.index_select(1, i),
    (x, rows),
    (random_bools(2, 3), rows),
    (random_integers(2, 3), rows.int()),
)
FAMILY.cases(
    "index-select-first",
    lambda x, i: x.index_select(0, i),
    (x, rows),
    (torch.tensor([1.0, 2, 3]), rows[0]),
)
FAMILY.case("index-select-last", lambda x, i: x.index_select(-1, i), x, rows)
FAMILY.case(
    "index-select-constant", WithConstant(lambda i, x: x.index_select(-1, i), rows), x
)
FAMILY.case(
    "index-select-of-rank-0",
    lambda x, i: x.index_select(0, i),
    torch.tensor(2.0),
    torch.tensor([0]),
)
FAMILY.case(
    "index-select-int64",
    lambda x, i: x.clamp(0, 9).index_select(0, i),
    torch.arange(5),
    rows,
)

FAMILY.case("index-first", lambda x, i: x[i], x, rows)
FAMILY.case("index-negative", lambda x, i: x[:, i], x, ends)
FAMILY.case("index-negative-constant", WithConstant(lambda i, x: x[:, i], ends), x)
FAMILY.case("index-two", lambda x, i, j: x[i, j], x, rows[:3], ends)
FAMILY.case("index-broadcast", lambda x, i, j: x[:, i[:, None], j], x, ends, rows[:2])
FAMILY.case("index-apart", lambda x, i, j: x[i, :, j], x, rows[:3], ends[:1])
FAMILY.case(
    "index-apart-later",
    lambda x, i, j: x[None].repeat(2, 1, 1, 1)[:, i, :, j],
    x,
    rows[:3],
    rows[1:],
)
FAMILY.case("index-all", lambda x, i: x[i, i, i], x, rows)
FAMILY.case("index-of-rank-2", lambda x, i: x[:, i], x, ids)
FAMILY.case("index-of-rank-0", lambda x, i: aten.index(x, [None, i]), x, ids[0, 0])
FAMILY.case("index-bool", lambda x, i: x[i], random_bools(3, 2), rows)

FAMILY.cases(
    "gather",
    lambda x, i: x.gather(1, i),
    (x, ids[:, :, None]),
    (x, ids[:1, :, None].expand(3, 3, 4)),
)
FAMILY.case("gather-last", lambda x, i: x.gather(-1, i), x, ids.clamp(0, 3)[:, :, None])
FAMILY.case(
    "gather-shorter", lambda x, i: x.gather(0, i), x, ids.clamp(0, 2)[:, :, None]
)
FAMILY.case(
    "gather-of-rank-0",
    lambda x, i: x.gather(0, i),
    torch.tensor(3.0),
    torch.tensor([0, 0]),
)
FAMILY.case(
    "gather-bool-in-fp", lambda x, i: x.gather(1, i), random_bools(2, 5), ids, spec=FP
)
FAMILY.case("gather-bool", lambda x, i: x.gather(1, i), random_bools(2, 5), ids)

FAMILY.case(
    "take-along-dim", lambda x, i: x.take_along_dim(i, 1), x, ends[None, :, None]
)
FAMILY.case("take-along-dim-flat", lambda x, i: x.take_along_dim(i), x, ids)

FAMILY.case("take", lambda x, i: x.take(i), x, ends)
FAMILY.case("index-unsafe", lambda x, i: aten._unsafe_index(x, [None, i]), x, ends)

FAMILY.case("one-hot", lambda i: F.one_hot(i, 6), ids)


test_rows_call_every_rule = FAMILY.covers("index")
test_equals_eager = FAMILY.equals_eager()
judged, test_equals_eager_through_the_reference_model = (
    FAMILY.equals_eager_through_the_reference_model()
)

"""Lowering rules for bags of rows (EmbeddingBag) give the results of eager torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ...support.rule_cases import Family, inf, nan, randn, random_halves

aten = torch.ops.aten

FAMILY = Family()

ids = torch.tensor([4, 0, 4, 1, 2, 2, 3])
starts = torch.tensor([0, 3, 3, 4])
ends = torch.tensor([0, 2, 7])
broken = torch.tensor([[inf, 1.0], [nan, -2.0], [-inf, 3.0], [0.5, -0.0], [-inf, -1.0]])

for mode in ("sum", "mean", "max"):
    FAMILY.cases(
        f"bags-{mode}",
        lambda w, i, o, m=mode: F.embedding_bag(i, w, o, mode=m),
        (randn(5, 3), ids, starts),
        (broken, ids, starts),
        (randn(5, 3), ids, starts[:1]),
        (random_halves(5, 2), ids.int(), starts.int()),
    )
    FAMILY.case(
        f"bags-{mode}-of-rank-2",
        lambda w, i, m=mode: F.embedding_bag(i, w, mode=m),
        randn(5, 3),
        ids[:6].view(2, 3),
    )
    FAMILY.case(
        f"bags-{mode}-padding",
        lambda w, i, o, m=mode: F.embedding_bag(i, w, o, mode=m, padding_idx=-1),
        *(randn(5, 3), ids, starts),
    )
FAMILY.case(
    "bags-weighted",
    lambda w, i, o, s: F.embedding_bag(i, w, o, None, 2, False, "sum", False, s),
    *(randn(5, 3), ids, starts, randn(7)),
)
FAMILY.case(
    "bags-last-offset",
    lambda w, i, o: F.embedding_bag(i, w, o, mode="sum", include_last_offset=True),
    *(randn(5, 3), ids, ends),
)
FAMILY.case(
    "bags-without-padding",
    lambda w, i, o: aten.embedding_bag.default(w, i, o, False, 1, False, None, True)[0],
    *(randn(5, 3), ids, ends),
)
FAMILY.case(
    "bags-inner",
    lambda w, i, o: aten._embedding_bag(w, i, o, padding_idx=2)[0],
    randn(5, 3),
    ids,
    starts,
)
FAMILY.case(
    "bags-forward",
    lambda w, i, o: aten._embedding_bag_forward_only(w, i, o)[0],
    randn(5, 3),
    ids,
    starts,
)
for p in (1.0, 2.0, inf):
    FAMILY.cases(
        f"renorm-{p}",
        lambda w, i, p=p: aten.embedding_renorm(w, i, 1.25, p),
        *(
            (randn(5, 3), ids),
            (randn(5, 3), ids[:4].view(2, 2).int()),
            (broken, ids[:1]),
        ),
    )


test_rows_call_every_rule = FAMILY.covers("bag")
test_equals_eager = FAMILY.equals_eager()
judged, test_equals_eager_through_the_reference_model = (
    FAMILY.equals_eager_through_the_reference_model()
)

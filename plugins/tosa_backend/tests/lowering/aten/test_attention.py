"""Lowering rules for scaled dot-product attention give the results of eager torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ...support.rule_cases import FP, Family, inf, randn, random_halves

FAMILY = Family()
attend = F.scaled_dot_product_attention
q = randn(2, 4, 5, 8)
k = randn(2, 4, 7, 8, seed=1)
v = randn(2, 4, 7, 6, seed=2)
shown = randn(5, 7, seed=3) > -0.5
BLIND = shown & (torch.arange(5) != 2)[:, None]
"""In one row everything is hidden."""

FAMILY.cases(
    "plain",
    attend,
    (q, k, v),
    (q[0, 0], k[0, 0], v[0, 0]),
    (random_halves(2, 5, 8), random_halves(2, 7, 8), random_halves(2, 7, 8)),
    spec=FP,
)
FAMILY.case("scaled", lambda q, k, v: attend(q, k, v, scale=0.3), q, k, v)
FAMILY.case("causal", lambda q, k, v: attend(q, k, v, is_causal=True), q, k, v)
FAMILY.cases(
    "mask", attend, (q, k, v, shown), (q, k, v, randn(2, 1, 5, 7)), (q, k, v, BLIND)
)
FAMILY.case("infinite-mask", attend, q, k, v, torch.where(BLIND, 0.0, -inf))
FAMILY.case(
    "grouped", lambda q, k, v: attend(q, k[:, :2], v[:, :2], enable_gqa=True), q, k, v
)
FAMILY.case(
    "grouped-causal",
    lambda q, k, v: attend(q, k[:, :2], v[:, :2], is_causal=True, enable_gqa=True),
    q,
    k,
    v,
)


test_rows_call_every_rule = FAMILY.covers("attention")
test_equals_eager = FAMILY.equals_eager()
judged, test_equals_eager_through_the_reference_model = (
    FAMILY.equals_eager_through_the_reference_model()
)

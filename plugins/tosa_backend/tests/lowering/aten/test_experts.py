"""Lowering rules for grouped matrix products and histograms give the results of eager
torch.
"""

from __future__ import annotations

import torch
from delegraph_tosa.spec import TosaSpec

from ...support.rule_cases import EDGES, Family, inf, nan, randn

aten = torch.ops.aten

FAMILY = Family()

ends = torch.tensor([2, 2, 7], dtype=torch.int32)
"""Three groups of seven rows; nothing is in the second."""
BF16 = TosaSpec.parse("TOSA-1.0+FP+INT+bf16")


def grouped(x, matrices, *ends):
    """torch has this product for bfloat16 alone."""
    return aten._grouped_mm.default(x.bfloat16(), matrices.bfloat16(), *ends).float()


broken = randn(3, 8, 8)
broken[1] = nan  # the matrix of the group that is empty
broken[0, :, 0] = inf
# loose: results are rounded to 8 bits
FAMILY.cases(
    "grouped",
    grouped,
    (randn(7, 8), randn(3, 8, 8), ends),
    (randn(7, 8), broken, ends),
    (randn(7, 8), randn(3, 8, 8), torch.tensor([0, 0, 7], dtype=torch.int32)),
    (randn(2, 8), randn(3, 8, 8), torch.tensor([0, 1, 2], dtype=torch.int32)),
    (randn(2, 8), broken, torch.tensor([0, 0, 2], dtype=torch.int32)),
    (randn(3, 2, 8), randn(3, 8, 8)),
    spec=BF16,
    loose=800,
)

tokens = torch.tensor([3.0, 0, 3, 1, 7, 3, 0, 4, -1, 8])
FAMILY.case("histogram-experts", lambda x: torch.histc(x, 8, 0, 7), tokens)
FAMILY.case("histogram-one", lambda x: torch.histc(x, 1, 0, 0), tokens[:4] * 0)
FAMILY.cases(
    "histogram",
    lambda x: torch.histc(x, 7, -3, 0.3),
    randn(4, 50),
    EDGES[1:-1],
    randn(()),
)
"""Ends of bins that no float32 has: eager rounds where they are."""
FAMILY.case(
    "histogram-tenths", lambda x: torch.histc(x, 30, 0, 3), torch.arange(61) / 20
)

test_rows_call_every_rule = FAMILY.covers("experts")
test_equals_eager = FAMILY.equals_eager()
judged, test_equals_eager_through_the_reference_model = (
    FAMILY.equals_eager_through_the_reference_model()
)

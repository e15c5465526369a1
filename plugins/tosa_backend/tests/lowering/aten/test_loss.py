"""Lowering rules for losses of class labels give the results of eager torch."""

from __future__ import annotations

import delegraph
import torch
import torch.nn.functional as F

from ...support.rule_cases import Family, Function, randn, random_positive

FAMILY = Family()
FEW = torch.tensor([2, 0, -100, 4])
MANY = torch.tensor([[[1, 0], [3, -100], [4, 4]], [[2, 2], [0, 1], [-100, 0]]])
scores = randn(4, 5)
images = randn(2, 5, 3, 2)
weights = random_positive(5)

for reduction in ("mean", "sum", "none"):
    loss = lambda x, y, r=reduction: F.nll_loss(x, y, reduction=r)
    FAMILY.cases(
        f"nll-{reduction}", loss, (scores, FEW), (images, MANY), (scores[0], FEW[0])
    )
    smooth = lambda x, y, w, r=reduction: F.cross_entropy(
        x, y, w, reduction=r, label_smoothing=0.2
    )
    FAMILY.cases(
        f"cross-entropy-smooth-{reduction}",
        smooth,
        (scores, FEW, weights),
        (images, MANY, weights),
    )
    loss = lambda x, y, r=reduction: F.cross_entropy(x, y, reduction=r)
    FAMILY.cases(
        f"cross-entropy-{reduction}",
        loss,
        (scores, FEW),
        (scores, scores.softmax(1)),
        (scores[0], FEW[1]),
    )
    FAMILY.case(
        f"probabilities-{reduction}", smooth, images, images.softmax(1), weights
    )
FAMILY.cases(
    "nll-weighted",
    lambda x, y, w: F.nll_loss(x, y, w, ignore_index=2),
    (scores, FEW.clamp(0), weights),
)
FAMILY.cases(
    "all-ignored", lambda x, y: F.cross_entropy(x, y), (scores, torch.full((4,), -100))
)


def test_cross_entropy_with_int64_labels_lowers_completely():
    """TOSA has no int64 tensors; the loss bounds its labels by the number of classes."""
    program = torch.export.export(Function(F.cross_entropy), (scores, FEW))
    lowered = delegraph.lower(program, backends=["tosa"])
    assert lowered.report.host_operators == 0, lowered.report
    torch.testing.assert_close(lowered(scores, FEW), F.cross_entropy(scores, FEW))


test_rows_call_every_rule = FAMILY.covers("loss")
test_equals_eager = FAMILY.equals_eager()
judged, test_equals_eager_through_the_reference_model = (
    FAMILY.equals_eager_through_the_reference_model()
)

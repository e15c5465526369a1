"""The metrics with a name: classes and labels of several shapes, and NaN."""

import math

import numpy as np
import pytest
import torch
from delegraph_analysis.over_data.metrics import agreement, top1

SCORES = torch.tensor([[0.0, 2, 1], [3, 1, 2], [0, 1, 2], [5, 4, 6]])
"""The largest elements are 1, 0, 2 and 2."""


@pytest.mark.parametrize(
    "labels, share",
    [
        (torch.tensor([1, 0, 2, 2]), 1),
        (torch.tensor([1, 0, 2, 1]), 0.75),
        (torch.tensor([[1], [0], [2], [0]]), 0.75),
        (np.array([1, 0, 2, 2]), 1),
        ([1, 0, 2, 2], 1),
        ([torch.tensor(1), torch.tensor(0), 0, 0], 0.5),
        (torch.nn.functional.one_hot(torch.tensor([1, 0, 0, 2])), 0.75),
        (2, 0.5),
    ],
)
def test_top1_is_the_share_of_right_rows(labels, share):
    assert top1(SCORES, labels) == share


def test_top1_takes_the_first_output():
    assert top1((SCORES, 7), (SCORES + 1, 8)) == 1
    assert top1({"logits": SCORES[0]}, 1) == 1


def test_rows_with_nan_are_wrong():
    scores = SCORES.clone()
    scores[0, 1] = math.nan
    scores[1, 2] = math.nan
    assert top1(scores, torch.tensor([1, 0, 2, 2])) == 0.5
    assert top1(scores, scores) == 0.5


@pytest.mark.parametrize(
    "scores, labels, message",
    [
        (SCORES, torch.tensor([1, 0, 2]), r"\[4, 3\] need 4 labels, not 3"),
        (SCORES[:, :1], torch.zeros(4, 1), r"shape \[4, 1\] have no classes"),
        (SCORES.sum(), 1, r"shape \[\] have no classes"),
    ],
)
def test_labels_that_do_not_fit_are_refused(scores, labels, message):
    with pytest.raises(ValueError, match=message):
        top1(scores, labels)


def test_agreement_is_one_minus_the_ratio():
    assert agreement(SCORES, SCORES) == 1
    assert agreement(SCORES + 1.5, SCORES) == 0.75
    assert agreement(SCORES * 3, SCORES) == 0
    assert agreement(SCORES * math.nan, SCORES) == 0

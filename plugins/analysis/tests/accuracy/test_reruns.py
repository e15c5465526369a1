"""Outputs that differ because eager disagrees with itself, and outputs beside them that
are wrong.
"""

import pytest
import torch
from delegraph.host.verify import Verification
from delegraph_analysis.accuracy.other_rounding import OtherRounding
from delegraph_analysis.accuracy.reruns import SHARES, settle

RANDOM = torch.Generator().manual_seed(0)
BOXES = torch.randn(1, 40, 4, generator=RANDOM)


class Calls:
    """Eager, which counts how often it is called again."""

    def __init__(self, model, *inputs):
        self.model = model
        self.inputs = inputs
        self.count = 0

    def run(self, mode):
        self.count += 1
        with mode, torch.no_grad():
            return self.model(*self.inputs)

    def verify(self, got):
        with torch.no_grad():
            expected = self.model(*self.inputs)
        found = Verification.of(got, expected)
        return (
            found
            if found.agrees()
            else Verification(settle(found.outputs, got, expected, self.run))
        )


def detect(scores, order=None):
    """The best eight of 40: scores, places, boxes. ``order`` breaks ties as another
    backend does.
    """
    k = scores.topk(8, -1).indices if order is None else order(scores)[:, :8]
    return scores.gather(1, k), k, BOXES.gather(1, k[..., None].expand(-1, -1, 4))


def last_first(scores):
    return (
        scores.shape[1]
        - 1
        - scores.flip(1).sort(dim=1, descending=True, stable=True).indices
    )


def first_first(scores):
    return scores.sort(dim=1, descending=True, stable=True).indices


QUANTIZED = (torch.randn(1, 40, generator=RANDOM) * 3).round() / 4
NEAR = torch.randn(1, 40, generator=RANDOM) @ torch.eye(40)
NEAR[0, 7] = NEAR[0, 19] = NEAR.max() * 1.1
CLOSE = NEAR.clone()
CLOSE[0, 19] *= 1 + 2e-7


@pytest.mark.parametrize(
    "scores",
    [QUANTIZED, NEAR, CLOSE, QUANTIZED.masked_fill(QUANTIZED < 0.9, -torch.inf)],
)
@pytest.mark.parametrize("order", [first_first, last_first])
def test_detections_that_tie_agree_and_are_noted(scores, order):
    calls = Calls(detect, scores)
    if scores is CLOSE:  # which rounds to what ties
        order = lambda _: last_first(NEAR)
    actual = detect(scores, order)
    found = calls.verify(actual)
    assert found.agrees()
    assert found.relative_error < 1e-5
    assert calls.count <= 12
    same = all(map(torch.equal, actual, detect(scores)))
    assert ("compared with another run of eager at" in str(found)) is not same


def wrong_box_beside(got):
    got[2][0, 5, 1] += 0.1


def wrong_box_in_the_tie(got):
    got[2][0, 0, 1] += 0.1


def boxes_in_another_order_than_labels(got):
    got[2][:, [0, 1]] = got[2][:, [1, 0]]


def one_of_both_twice(got):
    for output in got:
        output[:, 1] = output[:, 0]


def another_label_beside(got):
    got[1][0, 6] += 1


@pytest.mark.parametrize(
    "defect",
    [
        wrong_box_beside,
        wrong_box_in_the_tie,
        boxes_in_another_order_than_labels,
        one_of_both_twice,
        another_label_beside,
    ],
)
def test_wrong_numbers_next_to_ties_are_found(defect):
    ours = max(
        (detect(NEAR, order) for order in (first_first, last_first)),
        key=lambda o: o[1][0, 0] != detect(NEAR)[1][0, 0],
    )
    assert Calls(detect, NEAR).verify(ours).agrees()
    defect(ours)
    found = Calls(detect, NEAR).verify(ours)
    assert not found.agrees()
    assert "differs" in str(found)


def test_argmax_of_integers_that_are_equal():
    pick = lambda x: x.argmax(1)
    x = torch.tensor([[1, 5, 5, 5, 2], [9, 1, 2, 3, 4]])
    for ours, agrees in (
        ([3, 0], True),
        ([2, 0], True),
        ([3, 1], False),
        ([4, 0], False),
    ):
        assert Calls(pick, x).verify(torch.tensor(ours)).agrees() is agrees, ours


@pytest.mark.parametrize("mask", [torch.finfo(torch.float32).min, -1e9, float("-inf")])
def test_a_mask_makes_no_scores_about_equal(mask):
    """Only what is equal beside scores of their own size: the masked ones, and 0.75
    twice.
    """
    best = lambda x: x.topk(3).indices
    x = torch.tensor([0.5, mask, 0.75, 0.125, mask, 0.75])
    for ours, agrees in (
        ([2, 5, 0], True),
        ([5, 2, 0], True),
        ([0, 2, 5], False),
        ([2, 5, 3], False),
    ):
        assert Calls(best, x).verify(torch.tensor(ours)).agrees() is agrees, ours
    worst = lambda x: x.argmin()
    for ours, agrees in ((1, True), (4, True), (3, False)):
        assert Calls(worst, x).verify(torch.tensor(ours)).agrees() is agrees, ours


def test_scores_that_are_not_contiguous():
    """Warnings are errors in tests; torch's search warns of other strides."""
    best = lambda x: x.t().argmax(1)
    x = torch.tensor([[0.5, 0.1], [0.5, 0.2], [0.25, 0.3]])
    for ours, agrees in (([0, 2], True), ([1, 2], True), ([2, 2], False)):
        assert Calls(best, x).verify(torch.tensor(ours)).agrees() is agrees, ours


def test_a_decision_that_hangs_on_rounding():
    over = lambda x: (x * 3.0) > 0.3
    x = torch.tensor([0.1, 0.5, 0.0999])
    found = Calls(over, x).verify(over(x) ^ torch.tensor([True, False, False]))
    assert found.agrees()
    assert "at 1 of 3 places" in str(found)
    found = Calls(over, x).verify(over(x) ^ torch.tensor([True, False, True]))
    assert not found.agrees()
    assert "at 1 of 3 places" in str(found)


def test_exact_results_are_not_rounded_differently():
    cells = lambda x: ((x + 0.5) * 0.25).floor().long()
    x = torch.arange(8.0)
    wrong = cells(x)
    wrong[2] += 1  # as if 0.625 were 1
    assert not Calls(cells, x).verify(wrong).agrees()


def test_stable_sorts_leave_the_order_of_ties_fixed():
    places = lambda x: x.sort(stable=True).indices
    x = torch.tensor([2.0, 1.0, 2.0])
    assert not Calls(places, x).verify(torch.tensor([1, 2, 0])).agrees()
    loose = lambda x: x.sort().indices
    assert Calls(loose, x).verify(torch.tensor([1, 2, 0])).agrees()


def test_plain_differences_take_four_runs():
    calls = Calls(lambda x: x.sin(), torch.linspace(0, 1, 5))
    found = calls.verify(torch.linspace(0, 1, 5).sin() * 1.01)
    assert not found.agrees()
    assert calls.count == 4
    assert "another run" not in str(found)
    assert found.relative_error == pytest.approx(0.01, rel=1e-3)


def test_outputs_that_cannot_be_compared_are_not_run_again():
    calls = Calls(lambda: (torch.ones(3),))
    assert not calls.verify((torch.ones(2),)).agrees()
    assert calls.count == 0
    calls = Calls(lambda: (None, torch.ones(0), 3))
    assert not calls.verify((1, torch.ones(0), 3)).agrees()
    assert calls.count == 0


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16]
)
def test_results_are_off_by_less_than_their_tolerance(dtype):
    x = torch.linspace(0.1, 1, 50, dtype=torch.float64).to(dtype)
    with OtherRounding("rounding", SHARES[0], 1):
        y = x * 3
        held = torch.cat([x, x])
        z = x.clone().mul_(3)
    off = ((y.double() - (x * 3).double()) / (x * 3).double()).abs().max()
    assert 0 < off <= max(1.01 * SHARES[0] * 5e-2, 2 * torch.finfo(dtype).eps)
    assert torch.equal(held, torch.cat([x, x]))
    assert not torch.equal(z, x * 3)


class Branching(torch.nn.Module):
    def forward(self, x):
        y = torch.cond(x.sum() > 0, lambda v: v * 2, lambda v: v - 1, (x,))
        return y.topk(1).indices, (y * 1.1).tolist()


def test_branches_and_numbers_that_are_no_tensors():
    x = torch.tensor([1.0, 2.0, 2.0])
    first, numbers = Branching()(x)
    assert Calls(Branching(), x).verify((3 - first, numbers)).agrees()
    assert torch.equal(Branching()(x)[0], first)
    assert (
        not Calls(Branching(), x)
        .verify((3 - first, [numbers[0] * 1.1, *numbers[1:]]))
        .agrees()
    )
    assert not Calls(Branching(), x).verify((first * 0, numbers)).agrees()


class Strict(torch.nn.Module):
    """Its own rounding breaks what it asserts."""

    def forward(self, x):
        if float((x * 3.3 - 3.3).abs().max()) > 0:
            raise RuntimeError("too much")
        return x.topk(1).indices


def test_reruns_continue_after_failing_assertions():
    x = torch.ones(3)
    calls = Calls(Strict(), x)
    assert calls.verify(2 - Strict()(x)).agrees()
    assert calls.count <= 2
    calls = Calls(Strict(), x)
    assert not calls.verify(5 - Strict()(x)).agrees()
    assert 4 <= calls.count <= 12


def test_moved_values_are_not_rounded_and_stay_finite():
    largest = torch.finfo(torch.float32).max
    given = torch.tensor([-largest, 0.1, largest, 0.7 * largest])
    for sign in (1, -1):
        with OtherRounding("rounding", 0.5, sign):
            assert torch.equal(
                torch.sort(given, stable=True).values, given.sort().values
            )
            assert (given * 1).isfinite().all(), (
                "a mask of the largest number stays one"
            )

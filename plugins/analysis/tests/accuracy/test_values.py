"""Values that are measured together have the figures that each has by itself."""

import delegraph
import pytest
import torch
from delegraph.host.output_statistics import compare
from delegraph_analysis.accuracy import reference
from delegraph_analysis.accuracy.values import Measured, measure, measure_together

NAN, INF = float("nan"), float("inf")


def measured(got, eager, exact, dtype=torch.float32):
    return Measured("v", torch.tensor(got, dtype=dtype), torch.tensor(eager), torch.tensor(exact, dtype=torch.float64))


VALUES = [
    measured([1.0, 2.5], [1.0, 2.0], [1.0, 2.0]),
    measured([[1.0], [2.0]], [[1.0], [2.0]], [[1.0], [2.0]]),
    measured(0.1, 0.1, 0.1),
    measured([1.5, -4.0], [1.0, -4.0], [1.0, -4.25], torch.bfloat16),
    measured([0.0, 1e-30], [0.0, 0.0], [0.0, 0.0]),
    measured([NAN, 1.0], [NAN, 1.0], [NAN, 1.0]),
    measured([1.0, NAN], [1.0, 2.0], [1.0, 2.0]),
    measured([INF, 3.0], [INF, 3.0], [1e200, 3.0]),  # eager in float32 is not finite either
    measured([1.0, 2.0], [INF, 2.0], [INF, 2.0]),
    Measured("strided", *(torch.arange(6.0).reshape(2, 3).t().to(t) for t in (torch.float32, torch.float32)),
             torch.arange(6.0).reshape(2, 3).t().double() + 0.5),
]  # fmt: skip


def test_together_as_by_itself():
    assert all(value.is_small for value in VALUES)
    for value, together in zip(VALUES, measure_together(VALUES), strict=True):
        alone = measure(value)
        assert together.eager_error == alone.eager_error
        assert together.figures.snr == pytest.approx(alone.figures.snr)
        assert repr(together.figures).partition("snr")[0] == repr(alone.figures).partition("snr")[0]
    assert measure_together([]) == []


@pytest.mark.parametrize(
    "got", [torch.ones(3, dtype=torch.complex64), torch.ones(2), torch.ones(3).to_sparse(), torch.ones(3).int()]
)
def test_what_cannot_be_joined_is_measured_by_itself(got):
    assert not Measured("v", got, torch.ones(3), torch.ones(3, dtype=torch.float64)).is_small


def test_a_difference_whose_square_is_zero():
    assert compare("v", torch.tensor([1e-200], dtype=torch.float64), torch.zeros(1)).snr is None


class Writes(torch.nn.Module):
    def forward(self, x):
        y = x.view(-1) * 2
        x.add_(1)
        return y, x.view(-1)


@pytest.mark.parametrize("room", [0, 1 << 20])
def test_inputs_that_are_written_are_compared_as_they_were(room, monkeypatch):
    monkeypatch.setattr(reference, "_WAITING", room)
    lowered = delegraph.lower(Writes().eval(), (torch.ones(2, 2),), backends=[])
    found = lowered.verify(torch.ones(2, 2), per_operator=True)
    assert found.agrees() and found.operators.differing() == []
    assert [o.figures.max_abs_value for o in found.operators.operators][-1] == 2.0

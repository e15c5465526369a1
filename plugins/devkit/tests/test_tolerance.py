"""The kit accepts large relative errors if large numbers cancel, and no others."""

from types import SimpleNamespace

import pytest
import torch
from delegraph import Verification
from delegraph_devkit.lowering_attempt import LoweringAttempt, Phase
from delegraph_devkit.programs import Program
from delegraph_devkit.tolerance import rounding_errors
from delegraph_devkit.trial import compare_with_eager


class Cancelling(torch.nn.Module):
    """Returns a mean that is 0 up to rounding errors, a sum, and integers."""

    def forward(self, x, flags):
        normalized = torch.nn.functional.layer_norm(x.tanh(), [4])
        mean = ((x + normalized) - x).mean(2)
        return mean, x.sum() + flags.sum(), flags


INPUTS = (
    torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0)),
    torch.ones(2, dtype=torch.int64),
)


@pytest.fixture(scope="module")
def exported():
    return torch.export.export(Cancelling().eval(), INPUTS)


def attempt_with_errors(exported, *errors):
    """Return an attempt whose results are those of eager plus these errors."""
    expected = exported.module()(*INPUTS)
    results = [value + error for value, error in zip(expected, errors, strict=True)]
    verification = Verification.of(results, expected)
    lowered = SimpleNamespace(verify=lambda *inputs, runtime=None: verification)
    program = Program("cancelling", "", lambda n: (Cancelling(), INPUTS))
    return LoweringAttempt(program, exported, INPUTS, None, Phase.DONE, lowered)


TESTED = SimpleNamespace(tolerance=1e-4, where=None)
"""The backend under test, as far as the comparison needs it."""


def test_rounding_errors_are_measured_for_each_output(exported):
    mean, total, flags = rounding_errors(exported, INPUTS)

    assert 1e-9 < mean < 1e-6
    assert 0 < total < 1e-5
    assert flags == 0


def test_rounding_errors_are_no_fault(exported):
    attempt = attempt_with_errors(exported, 1e-7, 0, 0)
    assert attempt.lowered.verify().relative_error > 0.1

    assert compare_with_eager(attempt, TESTED) == (0.0, None)


@pytest.mark.parametrize(
    "errors", [(1e-4, 0, 0), (0, 1e-2, 0), (1e-7, 0, 1), (float("nan"), 0, 0)]
)
def test_larger_errors_are_a_fault(exported, errors):
    attempt = attempt_with_errors(exported, *errors)

    _, fault = compare_with_eager(attempt, TESTED)

    assert "the results differ from eager by more than 0.0001" in fault.text


def test_state_does_not_count_as_rounding_error():
    """The state of one run must not change the results of the next run.

    Such a change would be taken for a rounding error, and excuse any result.
    """

    class Counting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(1))

        def forward(self, x):
            self.total += x.sum()
            return x + self.total

    x = torch.ones(3)
    program = torch.export.export(Counting(), (x,))

    [error] = rounding_errors(program, (x,))

    assert error < 1e-5

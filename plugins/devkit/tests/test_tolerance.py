"""What the conformance kit does where numbers cancel: it asks for no more than eager
itself has.
"""

from types import SimpleNamespace

import pytest
import torch
from delegraph import Verification
from delegraph_devkit.lowering_attempt import LoweringAttempt, Phase
from delegraph_devkit.programs import Program
from delegraph_devkit.tolerance import rounding_errors
from delegraph_devkit.trial import compare_with_eager


class Cancelling(torch.nn.Module):
    """The mean of what a normalization leaves, which is 0 but for rounding, and a sum."""

    def forward(self, x, flags):
        kept = torch.nn.functional.layer_norm(x.tanh(), [4])
        return ((x + kept) - x).mean(2), x.sum() + flags.sum(), flags


INPUTS = (
    torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0)),
    torch.ones(2, dtype=torch.int64),
)


@pytest.fixture(scope="module")
def exported():
    return torch.export.export(Cancelling().eval(), INPUTS)


def attempt(exported, *errors):
    """One whose results are eager's with something added to each."""
    wanted = exported.module()(*INPUTS)
    verification = Verification.of(
        [w + e for w, e in zip(wanted, errors, strict=True)], wanted
    )
    lowered = SimpleNamespace(verify=lambda *inputs, runtime=None: verification)
    program = Program("cancelling", "", lambda n: (Cancelling(), INPUTS))
    return LoweringAttempt(program, exported, INPUTS, None, Phase.DONE, lowered)


TESTED = SimpleNamespace(tolerance=1e-4, where=None)


def test_the_rounding_errors_of_each_output(exported):
    cancelled, total, flags = rounding_errors(exported, INPUTS)
    assert 1e-9 < cancelled < 1e-6
    assert 0 < total < 1e-5
    assert flags == 0


def test_rounding_errors_are_no_compare_with_eager(exported):
    one = attempt(exported, 1e-7, 0, 0)
    assert one.lowered.verify().relative_error > 0.1
    assert compare_with_eager(one, TESTED) == (0.0, None)


@pytest.mark.parametrize(
    "errors", [(1e-4, 0, 0), (0, 1e-2, 0), (1e-7, 0, 1), (float("nan"), 0, 0)]
)
def test_larger_errors_are(exported, errors):
    _, fault = compare_with_eager(attempt(exported, *errors), TESTED)
    assert "the results differ from eager by more than 0.0001" in fault.text


def test_state_is_no_rounding_error():
    """Runs that went on from each other's state moved by whole numbers, and excused any
    result.
    """

    class Counting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(1))

        def forward(self, x):
            self.total += x.sum()
            return x + self.total

    x = torch.ones(3)
    [moved] = rounding_errors(torch.export.export(Counting(), (x,)), (x,))
    assert moved < 1e-5

"""Tests that results equal those of PyTorch, and that refused operators have reasons."""

from __future__ import annotations

from collections.abc import Callable

import delegraph
import pytest
import torch
from delegraph.errors import FormatError

from acme_npu.blob import read
from acme_npu.instructions import INSTRUCTIONS

NAME = "acme-npu"
X = torch.linspace(-1, 1, 12).reshape(3, 4)
CASES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "add": lambda x: x + x[0],
    "mul": lambda x: x * x,
    "mm": lambda x: torch.mm(x, x.T),
    "linear": torch.nn.Linear(4, 5),
    "relu": torch.relu,
}


class Calling(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


@pytest.mark.parametrize("instruction", INSTRUCTIONS)
def test_an_instruction_computes_what_pytorch_computes(instruction: str) -> None:
    lowered = delegraph.lower(Calling(CASES[instruction]).eval(), (X,), backends=[NAME])
    program = read(lowered.delegates[0].processed_bytes)
    assert [step.instruction for step in program.steps] == [instruction]
    assert lowered.verify(X).relative_error < 1e-6


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x * 2, "an operand is 2"),
        (lambda x: torch.add(x, x, alpha=3), "without alpha"),
        (lambda x: torch.relu(x.to(torch.float64)), "an operand is a float64 tensor"),
    ],
)
def test_a_limit_of_an_instruction_is_a_reason(function: Callable[[torch.Tensor], torch.Tensor], reason: str) -> None:
    lowered = delegraph.lower(Calling(function).eval(), (X,), backends=[NAME])
    assert any(reason in refusal.reason for refusal in lowered.report.refusals)


@pytest.mark.parametrize(
    ("blob", "message"),
    [("", "damaged"), (f"{NAME} 1 00000000\n{{}}", "damaged"), (f"{NAME} 99 00000000\n{{}}", "version 99")],
)
def test_what_is_no_blob_of_this_version_is_refused(blob: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read(blob.encode())

"""Tests that results equal those of PyTorch, and that refused operators have reasons."""

from __future__ import annotations

from collections.abc import Callable

import delegraph
import delegraph_tosa
import pytest
import torch
from delegraph.errors import FormatError

from acme_npu.instructions import OPERATORS, WORD

NAME = "acme-npu"
TAKEN = list(OPERATORS)
X = torch.linspace(-1, 1, 12).reshape(3, 4)
CASES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "ADD": lambda x: x.reshape(1, 3, 4) + x.reshape(3, 1, 4),
    "CLAMP": torch.relu,
    "CONV2D": torch.nn.Linear(4, 5),
    "IDENTITY": torch.clone,
    "MATMUL": lambda x: torch.mm(x, x.T),
    "MAXIMUM": lambda x: torch.maximum(x, x * x),
    "MINIMUM": lambda x: torch.minimum(x, x * x),
    "MUL": lambda x: x * x,
    "RESHAPE": lambda x: x.reshape(4, 3) * 2,
    "SUB": lambda x: x - x * x,
    "TRANSPOSE": lambda x: x.T + x.T * x.T,
}


class Calling(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


@pytest.mark.parametrize("operator", TAKEN)
def test_an_operator_computes_what_pytorch_computes(operator: str) -> None:
    program = torch.export.export(Calling(CASES[operator]).eval(), (X,))
    graph = delegraph_tosa.compile_program(program, delegraph_tosa.TosaSpec.parse(f"TOSA-1.0+FP+{WORD}"))
    assert operator in [made.name for made in graph.operators]
    lowered = delegraph.lower(program, backends=[NAME], require_full=True)
    assert lowered.verify(X).relative_error < 1e-6


@pytest.mark.parametrize(
    ("function", "reason"),
    [(torch.exp, "has no EXP"), (lambda x: x.to(torch.float16) + 1, "computes in fp32, not in fp16")],
)
def test_a_limit_of_the_device_is_a_reason(function: Callable[[torch.Tensor], torch.Tensor], reason: str) -> None:
    lowered = delegraph.lower(Calling(function).eval(), (X,), backends=[NAME])
    assert any(reason in refusal.reason for refusal in lowered.report.refusals)


def test_a_damaged_blob_is_refused() -> None:
    lowered = delegraph.lower(Calling(CASES["ADD"]), (X,), backends=[NAME])
    [delegate] = lowered.delegates
    blob = bytes(delegate.processed_bytes)
    for place in (0, len(blob) // 2, len(blob) - 1):
        damaged = blob[:place] + bytes([blob[place] ^ 1]) + blob[place + 1 :]
        with pytest.raises(FormatError):
            delegraph.get_runtime(NAME).load(damaged, delegate.compile_specs, {})

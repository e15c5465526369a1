"""What the device computes is what PyTorch computes, and what it does not take has a reason."""

from __future__ import annotations

from collections.abc import Callable

import delegraph
import delegraph_tosa
import pytest
import torch
from delegraph.errors import FormatError
from delegraph.io.sealed import unseal

from acme_npu.backend import MARK
from acme_npu.instructions import OPERATORS

NAME = "acme-npu"
X = torch.linspace(-1, 1, 12).reshape(3, 4)
CASES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "ADD": lambda x: x + x[0],
    "CLAMP": torch.relu,
    "CONV2D": torch.nn.Linear(4, 5),
    "MATMUL": lambda x: torch.mm(x, x.T),
    "MAXIMUM": lambda x: torch.maximum(x, -x),
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


@pytest.mark.parametrize("operator", OPERATORS)
def test_an_operator_computes_what_pytorch_computes(operator: str) -> None:
    lowered = delegraph.lower(Calling(CASES[operator]).eval(), (X,), backends=[NAME])
    files = [unseal(delegate.processed_bytes, MARK)[0] for delegate in lowered.delegates]
    assert operator in [made.name for file in files for made in delegraph_tosa.read(bytes(file)).operators]
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
    with pytest.raises(FormatError, match="damaged"):
        unseal(b"?" + delegate.processed_bytes[1:], MARK)

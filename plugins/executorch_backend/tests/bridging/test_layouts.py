"""Tensors that are not laid out in C order: a program file has none, so blobs are made
for none.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from ..support.judge import assert_equal, lower, stock_runtime

pytestmark = pytest.mark.filterwarnings("ignore")
IMAGE = torch.randn(1, 3, 6, 6, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def _needs_executorch() -> None:
    stock_runtime()


class Transposed(nn.Module):
    """Weights that are views of others."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randn(3, 5).t())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(nn.functional.linear(x, self.weight))


class Rearranged(nn.Module):
    """Values that change their layout within a partition, and leave it so."""

    def forward(self, x: torch.Tensor) -> Any:
        y = torch.relu(x).clone(memory_format=torch.channels_last) * 2
        return torch.sigmoid(y), torch.relu(x).permute(0, 3, 1, 2)


def channels_last(value: Any) -> Any:
    return value.to(memory_format=torch.channels_last)


CASES = {
    "weights in channels last": (lambda: channels_last(nn.Conv2d(3, 4, 3)), IMAGE),
    "inputs in channels last": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()),
        channels_last(IMAGE),
    ),
    "transposed weights": (Transposed, torch.randn(2, 3)),
    "rearranged": (Rearranged, IMAGE),
}


@pytest.mark.parametrize("name", CASES)
def test_layouts_of_xnnpack_delegates_match_eager(name: str, tmp_path: Any) -> None:
    torch.manual_seed(0)
    make, x = CASES[name]
    module = make().eval()
    with torch.no_grad():
        expected = list(w) if isinstance(w := module(x), tuple) else [w]
    lowered = lower(module, (x,), backends=["xnnpack"])
    assert lowered.delegates
    actual = lowered(x)
    assert_equal(list(actual) if isinstance(actual, tuple) else [actual], expected)
    lowered.save(tmp_path / "m.pte")
    program = stock_runtime().load_program((tmp_path / "m.pte").read_bytes())
    assert_equal(program.load_method("forward").execute([x.contiguous()]), expected)


def test_operators_that_read_memory_offsets_are_not_offered() -> None:
    class ByPlace(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(torch.as_strided(torch.relu(x), (3, 2), (1, 3)))

    x = torch.randn(2, 3)
    lowered = lower(ByPlace(), (x,), backends=["xnnpack"])
    assert "aten.as_strided.default" in str(lowered.report)
    assert len(lowered.delegates) == 2
    assert_equal([lowered(x)], [ByPlace()(x)])


def test_a_result_without_dimensions() -> None:
    """XNNPACK would return one of one dimension, which ExecuTorch's runtime refuses to
    copy.
    """

    class Number(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x) * 2 + torch.sigmoid(x)

    x = torch.tensor(1.5)
    lowered = lower(Number(), (x,), backends=["xnnpack"])
    assert lowered.delegates
    assert "returns a tensor of one dimension for scalar results" in str(lowered.report)
    assert_equal([lowered(x)], [Number()(x)])

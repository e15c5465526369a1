"""Tests that the results of the device half in ExecuTorch's runtime equal those of PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import delegraph
import pytest
import torch
from delegraph.errors import NoRuntime
from test_numerics import CASES, NAME, Calling, X

from example import model

device = pytest.importorskip("delegraph_executorch.device", reason="delegraph-executorch is not installed")


@pytest.fixture(autouse=True, scope="module")
def require_runtime() -> None:
    """Skip the tests if the wheel executorch or a C++ compiler is missing."""
    try:
        device.compiler_line(delegraph.get_runtime(NAME).device_half, "unused")
    except NoRuntime as e:
        pytest.skip(f"{e.message}; {e.hint}")


def run(lowered: Any, folder: Path, *inputs: torch.Tensor) -> torch.Tensor:
    """Save the program, load it in ExecuTorch's runtime, and return the result for ``inputs``."""
    lowered.save(folder / "model.pte")
    result: torch.Tensor = delegraph.load(folder / "model.pte", runtime="executorch")(*inputs)
    return result


def test_the_example_with_its_softmax_on_the_host(tmp_path: Path) -> None:
    module, inputs = model()
    lowered = delegraph.lower(module, inputs, backends=[NAME])
    torch.testing.assert_close(run(lowered, tmp_path, *inputs), module(*inputs), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("instruction", CASES)
def test_an_instruction(instruction: str, tmp_path: Path) -> None:
    module = Calling(CASES[instruction]).eval()
    lowered = delegraph.lower(module, (X,), backends=[NAME])
    torch.testing.assert_close(run(lowered, tmp_path, X), module(X), rtol=1e-5, atol=1e-6)


def test_a_batch_of_any_size(tmp_path: Path) -> None:
    module, inputs = model()
    batch = {0: torch.export.Dim("batch", min=1, max=8)}
    lowered = delegraph.lower(module, inputs, dynamic_shapes=({**batch},), backends=[NAME])
    for size in (1, 2, 8):
        x = torch.randn(size, 8)
        torch.testing.assert_close(run(lowered, tmp_path, x), module(x), rtol=1e-5, atol=1e-6)

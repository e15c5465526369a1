"""What the device half computes in ExecuTorch's own runtime is what PyTorch computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import delegraph
import pytest
import torch
from delegraph.errors import NoRuntime
from test_numerics import CASES, NAME, TAKEN, Calling, X

from example import model

device = pytest.importorskip("delegraph_executorch.device", reason="delegraph-executorch is not installed")


@pytest.fixture(autouse=True, scope="module")
def what_it_takes() -> None:
    """The wheel executorch and a C++ compiler; the tests are skipped where one of them is missing."""
    try:
        device.compiler_line(delegraph.get_runtime(NAME).device_half, "unused")
    except NoRuntime as e:
        pytest.skip(f"{e.message}; {e.hint}")


def run(lowered: Any, folder: Path, *inputs: torch.Tensor) -> torch.Tensor:
    """The result of the program's file in the runtime, which gets the device half with the first file."""
    lowered.save(folder / "model.pte")
    result: torch.Tensor = delegraph.load(folder / "model.pte", runtime="executorch")(*inputs)
    return result


def test_the_example_with_its_softmax_on_the_host(tmp_path: Path) -> None:
    module, inputs = model()
    lowered = delegraph.lower(module, inputs, backends=[NAME])
    torch.testing.assert_close(run(lowered, tmp_path, *inputs), module(*inputs), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("operator", TAKEN)
def test_an_operator(operator: str, tmp_path: Path) -> None:
    module = Calling(CASES[operator]).eval()
    lowered = delegraph.lower(module, (X,), backends=[NAME], require_full=True)
    torch.testing.assert_close(run(lowered, tmp_path, X), module(X), rtol=1e-5, atol=1e-6)

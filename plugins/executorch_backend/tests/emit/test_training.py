"""Joint programs, which return gradients, trained by ExecuTorch's own trainer beside
torch's.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import delegraph
import pytest
import torch
from delegraph.backend import BackendDetails, PreprocessResult
from delegraph.partitioner import CapabilityPartitioner
from delegraph_executorch.edge import to_backend, to_edge
from torch.export.experimental import _export_forward_backward

from ..support.judge import assert_equal, load_device_halves_or_skip, stock_runtime

# theirs and torch's, of what is experimental
pytestmark = pytest.mark.filterwarnings("ignore")


class Loss(torch.nn.Module):
    """Two layers, of which one is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.fixed = torch.nn.Linear(3, 3)
        self.fixed.requires_grad_(False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.fixed(self.linear(x)).tanh(), y)


CALL = torch.linspace(-1, 1, 6).view(2, 3), torch.tensor([[1.0, 0, 0], [0, 0, 1.0]])


def export_with_backward(module: torch.nn.Module) -> Any:
    return _export_forward_backward(torch.export.export(module, CALL, strict=True))


@pytest.fixture
def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return Loss()


@pytest.mark.parametrize("plan_outputs", [True, False])
@pytest.mark.parametrize(
    "backends", [[], ["compiler-demo"]], ids=["host", "compiler-demo"]
)
def test_trained_as_torch_trains(
    model: torch.nn.Module, backends: list[str], plan_outputs: bool, tmp_path: Path
) -> None:
    """Each step's loss, gradients and parameters: the delegates, too, get the
    parameters as they are now.
    """
    stock_runtime()
    from executorch.extension.training import (
        _load_for_executorch_for_training_from_buffer,
        get_sgd_optimizer,
    )

    lowered = delegraph.lower(export_with_backward(model), backends=backends)
    assert bool(lowered.delegates) == bool(backends)
    load_device_halves_or_skip(lowered)
    lowered.save(tmp_path / "net.pte", plan_outputs=plan_outputs)
    content = (tmp_path / "net.pte").read_bytes()
    theirs = torch.optim.SGD(model.linear.parameters(), 0.5)
    ours = None
    module = _load_for_executorch_for_training_from_buffer(content)
    for _ in range(4):
        theirs.zero_grad()
        loss = model(*CALL)
        loss.backward()
        assert_equal(module.forward_backward("forward", CALL), [loss])
        assert list(module.named_parameters()) == ["linear.weight", "linear.bias"]
        gradients = {
            f"linear.{name}": p.grad for name, p in model.linear.named_parameters()
        }
        assert_equal(list(module.named_gradients().values()), list(gradients.values()))
        theirs.step()
        ours = ours or get_sgd_optimizer(module.named_parameters(), 0.5, 0, 0, 0, False)
        ours.step(module.named_gradients())
        assert_equal(
            list(module.named_parameters().values()), list(model.linear.parameters())
        )


def test_loaded_training_program_gives_loss_and_gradients(
    model: torch.nn.Module, tmp_path: Path
) -> None:
    """The outputs as a list: the loss, gradients, parameters; and what a trainer asks,
    by the names of methods.
    """
    lowered = lower_joint(model)
    lowered.save(tmp_path / "net.pte")
    loaded = delegraph.load(tmp_path / "net.pte")
    eager = copy.deepcopy(model)
    loss = eager(*CALL)
    loss.backward()
    parameters = list(eager.linear.parameters())
    assert_equal(loaded(*CALL), [loss, *(p.grad for p in parameters), *parameters])
    asked = [
        f"__et_training_{what}_forward"
        for what in ("gradients_index", "fqn", "parameters_index")
    ]
    assert loaded.methods == ["forward", *asked]
    assert [loaded.method(name)() for name in asked] == [
        1,
        ["linear.weight", "linear.bias"],
        3,
    ]
    assert_equal([lowered(*CALL)], [loss])


def lower_joint(model: torch.nn.Module) -> Any:
    return delegraph.lower(export_with_backward(model), backends=[])


class Keeping(BackendDetails):
    """Takes what it is given."""

    @staticmethod
    def preprocess(edge_program: Any, compile_specs: Any) -> PreprocessResult:
        Keeping.parameters = list(edge_program.state_dict)
        return PreprocessResult(b"")


def test_trained_parameters_stay_outside_delegates(model: torch.nn.Module) -> None:
    with delegraph.register(Keeping):
        to_backend(
            to_edge(export_with_backward(model)).exported_program(),
            CapabilityPartitioner(lambda node: None, "Keeping"),
        )
    assert Keeping.parameters == ["fixed.weight", "fixed.bias"]

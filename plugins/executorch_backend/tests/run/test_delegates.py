"""Delegates in program files: called through their runtimes, stored once, with named
data and settings.
"""

from __future__ import annotations

from typing import Any

import delegraph
import pytest
import torch
from delegraph_executorch.serialize.reader import read_program
from torch import nn
from torch.nn import functional

from ..support import programs as p
from ..support.judge import (
    assert_equal,
    emit,
    host_program,
    load_device_halves_or_skip,
    lower,
    run_on_host,
    stock_runtime,
)

CALL = (torch.randn(3, 4, generator=torch.Generator().manual_seed(0)),)


class Split(nn.Module):
    """Two parts that a backend takes, with a sum over everything between them that
    stays on the host.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second((self.first(x) + x).cumsum(0) + 1)


@pytest.mark.parametrize("backend", ["compiler-demo", "tosa"])
def test_host_operators_between_delegates(backend: str) -> None:
    module = Split()
    emitted = emit(lower(module, CALL, backends=[backend]))
    assert emitted.program.plans[0].delegates
    assert_equal([run_on_host(emitted)(*CALL)], [module(*CALL).detach()])


@pytest.mark.parametrize("name", ["branch", "loop", "branch_in_loop"])
def test_delegates_in_branches_and_loops(name: str) -> None:
    module = p.Function(getattr(p, name))
    emitted = emit(lower(module, CALL, backends=["tosa"]))
    program = run_on_host(emitted)
    for call in (CALL, (-torch.ones(3, 4),), (torch.ones(3, 4),)):
        assert_equal(
            torch.utils._pytree.tree_leaves(program(*call)),
            torch.utils._pytree.tree_leaves(module(*call)),
        )


class Methods(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu()


def test_two_methods_share_weights_and_blobs() -> None:
    module = Methods().eval()
    call = (torch.randn(2, 64),)
    exported = torch.export.export(module, call)
    for backends in ([], ["tosa"]):
        lowered = delegraph.lower({"one": exported, "two": exported}, backends=backends)
        emitted = emit(lowered)
        single = emit(delegraph.lower(exported, backends=backends))
        assert len(emitted.file) < len(single.file) + 64 * 64 * 4
        program = run_on_host(emitted)
        assert program.methods == ["one", "two"]
        for name in program.methods:
            assert_equal([program.method(name)(*call)], [module(*call).detach()])


class Head(nn.Module):
    """Another method of the same network: host operators around a product with the
    weight that they share.
    """

    def __init__(self, body: Methods) -> None:
        super().__init__()
        self.linear = body.linear

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(functional.linear(x.cumsum(0), self.linear.weight), -1)


@pytest.mark.parametrize(
    "backends", [[], ["compiler-demo"]], ids=["host", "compiler-demo"]
)
def test_two_methods_of_one_weight_in_the_stock_runtime(backends: list[str]) -> None:
    runtime = stock_runtime()
    body = Methods().eval()
    modules: dict[str, nn.Module] = {"body": body, "head": Head(body)}
    call = (torch.randn(2, 64, generator=torch.Generator().manual_seed(0)),)
    exported = {
        name: torch.export.export(module, call) for name, module in modules.items()
    }
    lowered = delegraph.lower(exported, backends=backends)
    assert {delegate.method for delegate in lowered.delegates} == (
        set(modules) if backends else set()
    )
    load_device_halves_or_skip(lowered)
    content = emit(lowered).file.join()
    assert len(content) < 2 * 64 * 64 * 4, "the weight is there once"
    program = runtime.load_program(content)
    for name, module in modules.items():
        assert_equal(
            program.load_method(name).execute(list(call)), [module(*call).detach()]
        )


def test_a_runtime_that_is_missing_is_named() -> None:
    def nothing(backend_id: str, *rest: Any, **header: Any) -> Any:
        raise delegraph.errors.NoRuntime(
            "no-runtime", f"{backend_id} has no runtime here"
        )

    file = read_program(
        emit(lower(Split(), CALL, backends=["compiler-demo"])).file.join()
    )
    with pytest.raises(delegraph.errors.NoRuntime, match="BackendWithCompilerDemo"):
        host_program(file, nothing)(*CALL)

"""``torch.compile`` breaks the graph at calls of lowered programs. Exporting such a
call is an error.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import delegraph
import pytest
import torch
from delegraph.errors import DelegraphError
from torch import nn


class Inner(nn.Module):
    def forward(self, x: Any) -> Any:
        return x * 2 + 1


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count = nn.Buffer(torch.zeros(3))

    def forward(self, x: Any) -> Any:
        self.count.add_(x)
        return self.count * 2


class Outer(nn.Module):
    """Calls a lowered program between two operators."""

    def __init__(self, program: Callable[..., Any]) -> None:
        super().__init__()
        self.program = program

    def forward(self, x: Any) -> Any:
        result = self.program(x + 1)
        if isinstance(result, (tuple, list)):
            result = result[0]
        return result - 1


@pytest.fixture(params=["program", "method", "loaded", "loaded_method", "pte"])
def program(request: Any, tmp_path: Any) -> Any:
    """Return the program of ``Inner`` in each form that can be called."""
    if request.param == "pte":
        pytest.importorskip("delegraph_executorch")
        delegraph.lower(Inner(), (torch.ones(3),), backends=[]).save(
            tmp_path / "model.pte"
        )
        return delegraph.load(tmp_path / "model.pte")
    lowered = delegraph.lower(Inner(), (torch.ones(3),), backends=["tosa"])
    lowered.save(tmp_path / "model.tosa")
    loaded = delegraph.load(tmp_path / "model.tosa")
    forms = {"program": lowered, "method": lowered.method("forward"), "loaded": loaded}
    return forms[request.param] if request.param in forms else loaded.method("forward")


@pytest.mark.parametrize(
    "backend", ["eager", pytest.param("aot_eager", marks=pytest.mark.slow), "delegraph"]
)
def test_a_call_breaks_the_graph(program: Any, backend: str) -> None:
    if backend == "delegraph":
        pytest.importorskip("delegraph_dynamo")
    torch._dynamo.reset()
    compiled = torch.compile(Outer(program), backend=backend)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for size in (1.0, 4.0):
            x = torch.full((3,), size)
            assert torch.equal(compiled(x), Inner()(x + 1) - 1)


def test_a_call_in_compiled_code_keeps_state() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(
        Outer(delegraph.lower(Counts(), (torch.ones(3),), backends=["tosa"])),
        backend="eager",
    )
    assert [compiled(torch.zeros(3))[0].item() for _ in range(3)] == [1.0, 3.0, 5.0]


@pytest.mark.parametrize("strict", [False, True])
def test_exporting_a_call_of_a_lowered_program_is_refused(
    program: Any, strict: bool
) -> None:
    torch._dynamo.reset()
    reason = (
        "cannot export a model that calls a lowered program|a lowered program runs"
        " outside of compiled code"
    )
    with pytest.raises(Exception, match=reason):
        torch.export.export(Outer(program), (torch.ones(3),), strict=strict)


def test_lowering_a_call_of_a_lowered_program_is_refused(program: Any) -> None:
    with pytest.raises(
        DelegraphError, match="cannot export a model that calls a lowered program"
    ):
        delegraph.lower(Outer(program), (torch.ones(3),), backends=[])

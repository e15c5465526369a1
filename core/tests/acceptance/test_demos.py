"""A delegate may hold a whole program, and the delegates of other backends in it.

``ExecutorBackend`` writes JSON. Its runtime loads the inner blobs with the runtimes of
their backends. A row names the demo of ExecuTorch that a test here repeats.
"""

import pytest
import torch
from delegraph.backend import CompileSpec
from delegraph_executorch.edge import to_backend, to_edge
from torch import nn

from . import backends
from .backends import (
    CALL,
    Tagging,
    assert_close,
    aten,
    call_targets,
    export,
    export_wrapped,
    lowered_modules,
    partitioner_for,
    run_on_host,
)


@pytest.fixture(autouse=True)
def installed():
    with backends.installed():
        yield


def simple_net():
    torch.manual_seed(0)
    parts = {"linear1": nn.Linear(4, 25), "linear2": nn.Linear(25, 3)}
    return to_edge(
        export(
            lambda s, x: s.linear2(torch.sigmoid(s.linear1(x))),
            torch.randn(25, 4),
            **parts,
        )
    )


def partitioner_for_executor():
    """Return a partitioner that takes all calls and the delegates that they call."""
    return Tagging(lambda n: n.op in ("call_function", "get_attr"), "ExecutorBackend")


def test_whole_program_runs_as_one_delegate():
    """Row: demos.delegate_whole_program"""
    x = torch.randn(25, 4)
    source = simple_net().exported_program()
    lowered = to_backend("ExecutorBackend", source, [])

    assert call_targets(lowered.original_module) == call_targets(source)
    assert len(lowered.original_module.state_dict) == 4
    assert_close(
        run_on_host(export_wrapped(lowered, x), x), source.module(check_guards=False)(x)
    )


def test_delegates_before_and_after_a_host_operator():
    """Row: demos.delegate_partial_program"""
    x = torch.randn(25, 4)
    edge = simple_net()
    expected = edge.exported_program().module(check_guards=False)(x)
    program = edge.to_backend(
        partitioner_for(
            aten.addmm.default,
            aten.permute.default,
            aten.t.default,
            backend="ExecutorBackend",
        )
    ).exported_program()

    assert [t for t in call_targets(program) if t in (CALL, aten.sigmoid.default)] == [
        CALL,
        aten.sigmoid.default,
        CALL,
    ]
    assert_close(run_on_host(program, x), expected)


def test_second_delegate_contains_the_first():
    """Row: demos.nested_delegate"""

    def function(s, a, x, b):
        a = x - b  # for the executor
        y = torch.mm(a, x)  # for the compiler inside
        return y + b

    inputs = tuple(torch.randn(2, 2) for _ in range(3))
    edge = to_edge(export(function, *inputs))
    first = edge.to_backend(partitioner_for(aten.mm.default, aten.add.Tensor))
    assert call_targets(first.exported_program()) == [aten.sub.Tensor, CALL]

    second = first.to_backend(partitioner_for_executor()).exported_program()
    [outer] = lowered_modules(second)
    [inner] = lowered_modules(outer.original_module)
    assert outer.backend_id == "ExecutorBackend"
    assert inner.backend_id == "CompilerBackend"
    assert inner is lowered_modules(first.exported_program())[0]
    assert inner.processed_bytes.hex() in outer.processed_bytes.decode()
    assert_close(run_on_host(second, *inputs), function(None, *inputs))


def test_delegate_runs_on_aten_tensors():
    """Row: demos.test_delegate_aten_mode"""
    inputs = (torch.ones(2, 2), 2 * torch.ones(2, 2), 3 * torch.ones(2, 2))
    source = to_edge(export(lambda s, a, x, b: torch.mm(a, x) + b, *inputs))
    lowered = to_backend(
        "CompilerBackend",
        source.exported_program(),
        [CompileSpec("max_value", bytes([2]))],
    )
    program = export_wrapped(lowered, *inputs)

    assert_close(program.module(check_guards=False)(*inputs), torch.full((2, 2), 7.0))
    assert_close(run_on_host(program, *inputs), torch.full((2, 2), 7.0))

"""A debug handle leads from a step of a delegate to the call in the model.

A row names the test of ExecuTorch that a test here repeats.
"""

import delegraph
import pytest
import torch
from delegraph.backend import BackendDetails, DelegateMappingBuilder, PreprocessResult
from delegraph_executorch.edge import delegate_calls, delegate_map, to_backend, to_edge

from . import backends
from .backends import (
    CALL,
    aten,
    export,
    export_wrapped,
    lowered_modules,
    partitioner_for,
)
from .models import MODELS


class OneNode(BackendDetails):
    """Maps the whole program to one step."""

    @staticmethod
    def preprocess(edge_program, compile_specs):
        mapping = DelegateMappingBuilder()
        mapping.insert_delegate_mapping_entry(nodes=calls(edge_program), identifier=1)
        return PreprocessResult(b"one", mapping.get_delegate_mapping())


def calls(program):
    return [
        node for node in program.graph.nodes if node.op not in ("placeholder", "output")
    ]


@pytest.fixture(autouse=True)
def installed():
    with backends.installed(backends.CompilerBackend, OneNode):
        yield


def two_partitions(s, a, x, b):
    z = torch.mm(a, x) + b
    a = z - a
    return torch.mm(a, x) + b


def test_each_delegate_maps_its_calls_to_handles():
    """Row: debug_handle.test_add_mul_partitioner"""
    inputs = (torch.randn(2, 2), torch.randn(2, 2), torch.randn(2, 2))
    edge = to_edge(export(two_partitions, *inputs)).exported_program()
    program = to_backend(edge, partitioner_for(aten.mm.default, aten.add.Tensor))
    assert [m.meta["debug_handle_map"] for m in lowered_modules(program)] == [
        {0: (1,), 1: (2,)},
        {0: (4,), 1: (5,)},
    ]

    handles = [
        node.meta["debug_handle"] for node in program.graph.nodes if node.target is CALL
    ]
    assert handles == [6, 7]


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.__name__)
def test_one_step_maps_to_the_handles_of_all_calls(model):
    """Row: debug_handle.test_lowered_the_whole_model"""
    made = model().eval()
    inputs = made.inputs()
    lowered = to_backend(
        "OneNode", to_edge(torch.export.export(made, inputs)).exported_program(), []
    )
    expected = {n.meta["debug_handle"] for n in calls(lowered.original_module)}
    assert lowered.meta["debug_handle_map"] == {1: tuple(sorted(expected))}
    assert expected

    again = to_edge(export_wrapped(lowered, *inputs)).exported_program()
    [(call, inner)] = delegate_calls(again)
    assert inner.meta["debug_handle_map"] == lowered.meta["debug_handle_map"]
    assert {n.meta["debug_handle"] for n in calls(inner.original_module)} == expected
    assert delegate_map(again)[call.meta["debug_handle"]].debug_handle_map == {
        1: tuple(sorted(expected))
    }


def test_host_calls_keep_their_handles_beside_a_delegate():
    edge = to_edge(
        export(
            lambda s, x: torch.sin(s.a(x)) * 2,
            torch.randn(2, 3),
            a=torch.nn.Linear(3, 4),
        )
    )
    before = {n.name: n.meta["debug_handle"] for n in calls(edge.exported_program())}
    assert [before[n.name] for n in calls(edge.exported_program())] == sorted(
        before.values()
    )

    lowered = edge.to_backend(partitioner_for(aten.sin.default)).exported_program()
    kept = {n.name: n.meta["debug_handle"] for n in calls(lowered) if n.name in before}
    assert kept == {k: v for k, v in before.items() if k in kept}
    assert len(kept) > 1

    [handle] = [
        node.meta["debug_handle"] for node in lowered.graph.nodes if node.target is CALL
    ]
    assert handle == max(before.values()) + 1


def test_each_method_has_a_map_of_its_delegates():
    x = torch.randn(3)
    programs = {
        "a": export(lambda s, x: torch.sin(x), x),
        "b": export(lambda s, x: x * 2 + x, x),
    }
    found = to_edge(programs).to_backend(backends.partitioner_for_all()).delegate_map
    lowered = delegraph.lower(programs, backends=[backends.partitioner_for_all()])
    assert found == {m: delegate_map(lowered.exported_program(m)) for m in programs}

    maps = {
        m: [d.debug_handle_map for d in by_handle.values()]
        for m, by_handle in found.items()
    }
    assert maps == {"a": [{0: (1,)}], "b": [{0: (1,), 1: (2,)}]}
    assert all(
        d.backend_id == "CompilerBackend"
        for by_handle in found.values()
        for d in by_handle.values()
    )

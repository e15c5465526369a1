"""Tests of functions that compare graphs or list the delegates of a graph.

A row names the test of ExecuTorch that a test here repeats.
"""

import gc
import weakref

import pytest
import torch
from delegraph.errors import ContractViolation
from delegraph.partitioner import Partitioner, PartitionResult
from delegraph_executorch.edge import (
    format_delegated_graph,
    get_delegated_payload,
    get_delegates,
    get_lowered_backend_modules,
    get_lowered_submodules,
    get_non_lowered_nodes,
    is_identical_graph,
    is_shape_dynamic,
    matches,
    to_backend,
    to_edge,
)
from torch import nn
from torch.fx import symbolic_trace

from . import backends
from .backends import CALL, aten, export, make_module, partitioner_for


@pytest.fixture(autouse=True)
def installed():
    with backends.installed():
        yield


def trace_symbolically(function, **parts):
    return symbolic_trace(make_module(function, **parts))


class Fixed(nn.Module):
    """A module with two inputs that calls a function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x, y):
        return self.function(x, y)


def trace_with_two_inputs(function):
    return symbolic_trace(Fixed(function))


# --- identical graphs -----------------------------------------------------------------


def test_identical_graph_with_unused_args():
    graph = trace_with_two_inputs(lambda x, y: x)
    assert is_identical_graph(graph, graph)
    assert is_identical_graph(graph, trace_with_two_inputs(lambda x, y: x))


def test_identical_graph_with_used_args():
    graph = trace_with_two_inputs(lambda x, y: (x, y))
    assert is_identical_graph(graph, graph)
    assert is_identical_graph(graph, trace_with_two_inputs(lambda x, y: (x, y)))


def test_identical_graph_for_linear():
    graph = symbolic_trace(nn.Linear(10, 10))
    assert is_identical_graph(graph, graph)
    assert is_identical_graph(graph, symbolic_trace(nn.Linear(10, 10)))


class Composite(nn.Module):
    def __init__(self):
        super().__init__()
        self.param = nn.Parameter(torch.rand(3, 4))
        self.linear = nn.Linear(4, 5)

    def forward(self, x):
        return self.linear(x + self.param).clamp(min=0.0, max=1.0)


def test_identical_graph_for_composite_module():
    graph = symbolic_trace(Composite())
    assert is_identical_graph(graph, graph)
    assert is_identical_graph(graph, symbolic_trace(Composite()))


def edge_program(function, *inputs, **parts):
    return to_edge(export(function, *inputs, **parts)).exported_program().graph_module


def test_graphs_with_different_outputs_are_not_identical():
    """Row: utils.test_not_identical_graph_for_args"""
    x = torch.rand(3, 4)
    one_addition = edge_program(lambda s, x, y: x + 1, x, x)
    two_additions = edge_program(lambda s, x, y: (x + 1, y + 2), x, x)
    assert not is_identical_graph(one_addition, two_additions)


@pytest.mark.parametrize(
    "other",
    [
        lambda x, y: (torch.clamp(x, 0.5, 0.75), y),
        lambda x, y: (torch.clamp(x, 0.0, 1.0), y),
        lambda x, y: (torch.clamp(x, False, True), y),
        lambda x, y: (torch.clamp(x, 0), y),
        lambda x, y: (torch.clamp(x, 0, max=1), y),
        lambda x, y: (torch.clamp(y, 0, 1), y),
        lambda x, y: (torch.clamp(x, 0, 1), x),
        lambda x, y: [torch.clamp(x, 0, 1), y, 1],
    ],
)
def test_graphs_with_different_literals_are_not_identical(other):
    """In ExecuTorch, clamp(x, 0, 1) equals clamp(x, .5, .75). In Python, 1 equals 1.0
    and True.
    """
    graph = trace_with_two_inputs(lambda x, y: (torch.clamp(x, 0, 1), y))
    equal = trace_with_two_inputs(lambda x, y: (torch.clamp(x, 0, 1), y))

    assert is_identical_graph(graph, equal)
    assert not is_identical_graph(graph, trace_with_two_inputs(other))


def test_graphs_with_different_keywords_are_not_identical():
    lower_bound = trace_with_two_inputs(lambda x, y: torch.clamp(x, min=0))
    upper_bound = trace_with_two_inputs(lambda x, y: torch.clamp(x, max=0))

    assert is_identical_graph(lower_bound, lower_bound)
    assert not is_identical_graph(lower_bound, upper_bound)


def test_identical_graph_looks_into_branches():
    def chosen(number):
        def choose(s, p, x):
            return torch.cond(p, lambda x: x + number, lambda x: x - 1, (x,))

        return export(choose, torch.tensor(True), torch.ones(2)).graph_module

    assert is_identical_graph(chosen(1), chosen(1))
    assert not is_identical_graph(chosen(1), chosen(2))


def test_compared_graphs_are_not_kept_alive():
    """ExecuTorch keeps every compared node in a cache without limit."""
    graph = trace_with_two_inputs(lambda x, y: x + y)
    kept = weakref.ref(graph)
    assert is_identical_graph(graph, graph)
    del graph
    gc.collect()
    assert kept() is None


def test_deep_graphs_are_compared_without_recursion():
    """ExecuTorch raises the recursion limit to 30,000. A deeper graph ends the process."""
    graph = torch.fx.Graph()
    node = graph.placeholder("x")
    for _ in range(31_000):
        node = graph.call_function(torch.relu, (node,))
    graph.output(node)
    deep = torch.fx.GraphModule(nn.Module(), torch.fx.Graph())
    deep._graph = graph  # no code is generated: Python's compiler has limits of its own

    assert is_identical_graph(deep, deep)


# --- patterns, partitioners -----------------------------------------------------------


def test_a_pattern_matches_once_beside_another_parameter():
    """Row: utils.test_match_attrs"""
    x = torch.ones(3, 3)
    pattern = torch.export.export(nn.Linear(3, 3).eval(), (x,))
    large = export(
        lambda s, x: (x + s.weight, s.linear(x)),
        x,
        weight=nn.Parameter(x),
        linear=nn.Linear(3, 3),
    )
    [place] = matches(pattern)(large)

    assert [n.target for n in place] == [aten.linear.default]


def test_a_partitioner_without_tags_is_named():
    """Row: utils.test_invalid_partitioner_without_partitioner"""

    class InvalidPartitioner(Partitioner):
        def __init__(self):
            pass

        def partition(self, exported_program):
            return PartitionResult(exported_program, None)

    text = (
        "partitioner InvalidPartitioner: `partition_tags` is to map each tag to a"
        " DelegationSpec"
    )

    with pytest.raises(ContractViolation, match=text):
        to_backend(
            export(lambda s, x: s.a(x), torch.ones(3, 3), a=nn.Linear(3, 3)),
            InvalidPartitioner(),
        )


# --- what is delegated ----------------------------------------------------------------


@pytest.fixture
def lowered():
    """Return (mm + add) - sub - (mm + add), in which only ``sub`` is not delegated."""

    def forward(s, a, x, b):
        z = torch.mm(a, x) + b
        return torch.mm(z - a, x) + b

    inputs = [torch.randn(2, 2) for _ in range(3)]
    manager = to_edge(export(forward, *inputs)).to_backend(
        partitioner_for(aten.mm.default, aten.add.Tensor)
    )
    return manager.exported_program().graph_module


def test_get_non_lowered_nodes(lowered):
    assert [n.target for n in get_non_lowered_nodes(lowered.graph)] == [aten.sub.Tensor]


def test_get_delegates(lowered):
    assert [n.name for n in get_delegates(lowered.graph)] == [
        "lowered_module_0",
        "lowered_module_1",
    ]


def test_the_text_of_a_graph_shows_delegates_in_order(lowered):
    """Row: utils.test_print_delegted_graph"""
    text = format_delegated_graph(lowered)
    assert text.count("backend_id: CompilerBackend") == 2
    assert text.count("aten.mm.default") == 2

    places = [
        text.index(word)
        for word in (
            "%lowered_module_0",
            "aten.mm.default",
            "aten.sub.Tensor",
            "%lowered_module_1",
        )
    ]
    assert places == sorted(places)


def test_get_delegated_payload_with_delegates(lowered):
    payload = get_delegated_payload(lowered)
    assert list(payload) == ["lowered_module_0", "lowered_module_1"]
    for backend_id, compile_specs, processed_bytes in payload.values():
        assert backend_id == "CompilerBackend"
        assert compile_specs == []
        assert isinstance(processed_bytes, bytes)
        assert processed_bytes.startswith(b"1 ")


def test_get_delegated_payload_without_delegates():
    assert (
        get_delegated_payload(edge_program(lambda s, x: x + 1, torch.randn(2, 2))) == {}
    )


def test_get_delegated_payload_keys_match_delegates(lowered):
    assert list(get_delegated_payload(lowered)) == [
        n.name for n in get_delegates(lowered.graph)
    ]


def test_lowered_modules_are_listed_with_name_and_node(lowered):
    listed = get_lowered_submodules(lowered)

    names = [name for name, _, _ in listed]
    modules = [module for _, module, _ in listed]
    targets = [node.target for _, _, node in listed]

    assert names == targets == list(get_delegated_payload(lowered))
    assert modules == get_lowered_backend_modules(lowered)
    assert {module.backend_id for module in modules} == {"CompilerBackend"}


def test_lowered_modules_of_branches_are_listed():
    def forward(s, p, x):
        return torch.cond(p, lambda x: torch.mm(x, x), torch.sin, (x + 1,))

    taken = partitioner_for(aten.mm.default, aten.add.Tensor)
    graph = to_backend(
        export(forward, torch.tensor(True), torch.ones(2, 2)), taken
    ).graph_module
    assert len(get_lowered_backend_modules(graph)) == 2
    assert len(get_delegates(graph.graph)) == 1

    text = format_delegated_graph(graph)
    assert text.count("backend_id: CompilerBackend") == 2
    assert "aten.sin.default" in text


def test_is_shape_dynamic():
    class Model(nn.Module):
        def forward(self, x, y):
            return (x.split(2, 1)[0], x.size(0), y + 1)

    shapes = {"x": {0: torch.export.Dim("n", min=2)}, "y": None}
    program = torch.export.export(
        Model(), (torch.ones(3, 4), torch.ones(2)), dynamic_shapes=shapes
    )
    dynamic = {
        node.name
        for node in program.graph.nodes
        if node.op != "output" and is_shape_dynamic(node)
    }

    assert dynamic == {"x", "split", "getitem", "getitem_1", "sym_size_int_1"}


def test_delegates_are_recognized_whatever_their_names():
    """ExecuTorch takes every ``get_attr`` named ``lowered_module_...`` for a delegate."""
    given = export(lambda s, x: torch.sin(x + 1), torch.ones(2))
    program = to_backend(given, partitioner_for(aten.add.Tensor))
    graph = program.graph_module
    node = next(node for node in graph.graph.nodes if node.op == "get_attr")
    graph.renamed = graph.get_submodule(node.target)
    node.target = "renamed"
    node.name = "renamed"
    graph.register_buffer("lowered_module_7", torch.ones(2))
    with graph.graph.inserting_before(node):
        graph.graph.get_attr("lowered_module_7")

    assert [n.name for n in get_delegates(graph.graph)] == ["renamed"]
    assert list(get_delegated_payload(graph)) == ["renamed"]
    assert "backend_id" in format_delegated_graph(graph)
    assert [node.target for node in graph.graph.nodes if node.target is CALL] == [CALL]

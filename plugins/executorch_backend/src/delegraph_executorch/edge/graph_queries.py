"""Query a lowered graph for its delegates and host operators, by ExecuTorch's names."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from delegraph.backend import CompileSpec
from delegraph.delegates import LoweredBackendModule, delegate_calls
from delegraph_programs.call_names import unpacked
from delegraph_programs.equal_arguments import same_arguments
from delegraph_programs.exported_program import CALL_DELEGATE
from torch.fx import Graph, GraphModule, Node


def get_delegates(graph: Graph) -> list[Node]:
    """Return the ``get_attr`` nodes of a graph's delegates, in graph order."""
    called = {n.args[0] for n in graph.nodes if n.target is CALL_DELEGATE}
    return [n for n in graph.nodes if n in called]


def get_non_lowered_nodes(graph: Graph) -> list[Node]:
    """Return the calls that the host computes.

    Calls of delegates, and the unpacking of their results, are left out.
    """
    calls = [n for n in graph.nodes if n.op == "call_function"]
    return [n for n in calls if (unpacked(n) or n).target is not CALL_DELEGATE]


def get_lowered_submodules(
    graph_module: GraphModule,
) -> list[tuple[str, LoweredBackendModule, Node]]:
    """Return name, module and ``get_attr`` node of each delegate of the graph.

    Delegates in branches are left out.
    """
    nodes = get_delegates(graph_module.graph)
    return [
        (str(n.target), graph_module.get_submodule(str(n.target)), n)  # type: ignore[misc]
        for n in nodes
    ]


def get_lowered_backend_modules(
    graph_module: GraphModule,
) -> list[LoweredBackendModule]:
    """Return each lowered module that the graph, or a branch in it, calls, once."""
    return list(dict.fromkeys(module for _, module in delegate_calls(graph_module)))


def get_delegated_payload(
    graph_module: GraphModule,
) -> dict[str, tuple[str, list[CompileSpec], bytes]]:
    """Return backend id, compile specs and blob of each delegate, by name."""
    delegates = get_lowered_submodules(graph_module)
    return {
        name: (m.backend_id, list(m.compile_specs), m.processed_bytes)
        for name, m, _ in delegates
    }


def is_identical_graph(left: GraphModule, right: GraphModule) -> bool:
    """Return whether both graphs have the same nodes in the same order.

    Operations, targets, arguments and subgraphs are compared; names and metadata are
    not. Takes linear time.
    """
    left_nodes = list(left.graph.nodes)
    right_nodes = list(right.graph.nodes)
    if len(left_nodes) != len(right_nodes):
        return False
    pairs = dict(zip(left_nodes, right_nodes, strict=True))
    return all(_is_same_node(a, b, pairs.get) for a, b in pairs.items())


def _is_same_node(
    left: Node, right: Node, counterpart: Callable[[Node], Node | None]
) -> bool:
    """Return whether two nodes compute the same: operator, target and arguments agree.

    ``counterpart`` maps a node of the left graph to the node of the right graph at the
    same position. Arguments must be counterparts of each other.
    """
    if left.op != right.op or (left.op != "output" and left.target != right.target):
        return False
    if left.op == "get_attr":
        # Both have the same attribute name. That is enough for weights and delegates,
        # but subgraphs are compared by content.
        left_module = getattr(left.graph.owning_module, str(left.target), None)
        right_module = getattr(right.graph.owning_module, str(right.target), None)
        if isinstance(left_module, GraphModule) and isinstance(
            right_module, GraphModule
        ):
            return is_identical_graph(left_module, right_module)
        return True
    return same_arguments(
        (left.args, left.kwargs), (right.args, right.kwargs), counterpart
    )


def format_delegated_graph(graph_module: GraphModule) -> str:
    """Return the graph as text, with the backend and original graph of each delegate."""
    return "\n".join(_lines(graph_module))


def _lines(graph_module: GraphModule, indent: str = "") -> Iterator[str]:
    """Yield the lines of a graph, and below each subgraph's node those of the subgraph."""
    yield f"{indent}graph():"
    for node in graph_module.graph.nodes:
        text = node.format_node()
        if text is not None:
            yield f"{indent}  {text}"
        if node.op != "get_attr":
            continue
        module = getattr(graph_module, str(node.target), None)
        if isinstance(module, LoweredBackendModule):
            yield f"{indent}    backend_id: {module.backend_id}"
            yield from _lines(module.original_module.graph_module, indent + "    ")
        elif isinstance(module, GraphModule):
            yield from _lines(module, indent + "    ")

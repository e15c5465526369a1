"""Questions about a lowered graph: what it has delegated, and what it has not (names as
in ExecuTorch).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from delegraph.backend import CompileSpec
from delegraph.delegates import LoweredBackendModule, delegate_calls
from delegraph_programs.call_names import unpacked
from delegraph_programs.equal_arguments import same_arguments
from delegraph_programs.exported_program import CALL_DELEGATE
from torch.fx import Graph, GraphModule, Node


def get_delegates(graph: Graph) -> list[Node]:
    """The ``get_attr`` nodes of the lowered modules that ``graph`` calls, in graph
    order.
    """
    called = {n.args[0] for n in graph.nodes if n.target is CALL_DELEGATE}
    return [n for n in graph.nodes if n in called]


def get_non_lowered_nodes(graph: Graph) -> list[Node]:
    """The calls that the host computes, without calls of delegates and the unpacking of
    their results.
    """
    calls = [n for n in graph.nodes if n.op == "call_function"]
    return [n for n in calls if (unpacked(n) or n).target is not CALL_DELEGATE]


def get_lowered_submodules(
    graph_module: GraphModule,
) -> list[tuple[str, LoweredBackendModule, Node]]:
    """Name, lowered module and ``get_attr`` node of every delegate of the graph,
    without those in its branches.
    """
    nodes = get_delegates(graph_module.graph)
    return [
        (str(n.target), graph_module.get_submodule(str(n.target)), n)  # type: ignore[misc]
        for n in nodes
    ]


def get_lowered_backend_modules(
    graph_module: GraphModule,
) -> list[LoweredBackendModule]:
    """Every lowered module that the graph, or a branch in it, calls; each once."""
    return list(dict.fromkeys(module for _, module in delegate_calls(graph_module)))


def get_delegated_payload(
    graph_module: GraphModule,
) -> dict[str, tuple[str, list[CompileSpec], bytes]]:
    """Name of each delegate of the graph -> backend id, compile specs, and blob."""
    delegates = get_lowered_submodules(graph_module)
    return {
        name: (m.backend_id, list(m.compile_specs), m.processed_bytes)
        for name, m, _ in delegates
    }


def is_identical_graph(left: GraphModule, right: GraphModule) -> bool:
    """Whether both graphs have the same nodes in the same order: operations, targets
    and arguments.

    Names and metadata are not compared; the graphs of branches and loops are. Takes
    linear time.
    """
    ours = list(left.graph.nodes)
    theirs = list(right.graph.nodes)
    pairs = dict(zip(ours, theirs, strict=False))
    return len(ours) == len(theirs) and all(
        _is_alike(a, b, pairs.get) for a, b in pairs.items()
    )


def _is_alike(
    ours: Node, theirs: Node, counterpart: Callable[[Node], Node | None]
) -> bool:
    """Whether two nodes have the same operation, target, subgraph and arguments;
    ``counterpart`` maps operands.
    """
    if ours.op != theirs.op or (ours.op != "output" and ours.target != theirs.target):
        return False
    if ours.op == "get_attr":
        our_module, their_module = (
            getattr(n.graph.owning_module, str(n.target), None) for n in (ours, theirs)
        )
        graphs = isinstance(our_module, GraphModule) and isinstance(
            their_module, GraphModule
        )
        return not graphs or is_identical_graph(our_module, their_module)  # type: ignore[arg-type]
    return same_arguments(
        (ours.args, ours.kwargs), (theirs.args, theirs.kwargs), counterpart
    )


def format_delegated_graph(graph_module: GraphModule) -> str:
    """The graph as text; each delegate is followed by its backend and by the graph that
    it stands for.
    """
    return "\n".join(_lines(graph_module))


def _lines(graph_module: GraphModule, indent: str = "") -> Iterator[str]:
    """The lines of that text."""
    yield f"{indent}graph():"
    for node in graph_module.graph.nodes:
        text = node.format_node()
        yield from () if text is None else (f"{indent}  {text}",)
        fetched = (
            getattr(graph_module, str(node.target), None)
            if node.op == "get_attr"
            else None
        )
        if isinstance(fetched, LoweredBackendModule):
            yield f"{indent}    backend_id: {fetched.backend_id}"
            yield from _lines(fetched.original_module.graph_module, indent + "    ")
        elif isinstance(fetched, GraphModule):
            yield from _lines(fetched, indent + "    ")

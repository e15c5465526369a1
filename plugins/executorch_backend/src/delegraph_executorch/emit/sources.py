"""The user's lines that the debug handles of a method stand for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from delegraph_programs import Source
from delegraph_programs.exported_program import CALL_DELEGATE
from delegraph_programs.source_line import stack_of
from torch.fx import GraphModule, Node

from ..program.tables import Frame, FrameList


def nodes_of(root: GraphModule) -> Iterator[Node]:
    """The operators of a method: those in delegates first, which calls of them hide."""
    inside = [getattr(module, "original_module", None) for module in root.modules()]
    graphs = [
        original.graph_module.graph for original in inside if original is not None
    ]
    graphs += [
        module.graph for module in root.modules() if isinstance(module, GraphModule)
    ]
    yield from (
        node for graph in graphs for node in graph.nodes if node.op == "call_function"
    )


def stack_traces(
    root: GraphModule, handles: Sequence[int | None]
) -> tuple[FrameList, ...]:
    """The frames of the user's stack for each instruction; none for one that stands for
    no operator of the user's.
    """
    found: dict[int, FrameList] = {}
    for node in nodes_of(root):
        if "debug_handle" in node.meta:
            found.setdefault(
                node.meta["debug_handle"], FrameList(tuple(map(_frame, _stack(node))))
            )
    return tuple(
        found.get(handle, FrameList()) if handle is not None else FrameList()
        for handle in handles
    )


def _stack(node: Node) -> Sequence[Source]:
    """The stack of a node; that of a call of a delegate is the first one in there."""
    if node.target is not CALL_DELEGATE:
        return stack_of(node)
    attribute = node.args[0]
    assert isinstance(attribute, Node) and node.graph.owning_module is not None
    delegate: Any = node.graph.owning_module.get_submodule(str(attribute.target))
    return next(filter(None, map(stack_of, delegate.original_module.graph.nodes)), ())


def _frame(source: Source) -> Frame:
    return Frame(source.file, source.line, source.function, source.code)

"""The user's lines that the debug handles of a method stand for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from delegraph.exported_program import CALL_DELEGATE
from delegraph.source import Source, source_of
from torch.fx import GraphModule, Node

from ..program.tables import Frame, FrameList


def nodes_of(root: GraphModule) -> Iterator[Node]:
    """The operators of a method: those in delegates first, which calls of them hide."""
    for module in root.modules():
        original = getattr(module, "original_module", None)
        if original is not None:
            yield from original.graph_module.graph.nodes
    for module in root.modules():
        yield from getattr(getattr(module, "graph", None), "nodes", ())


def stack_traces(root: GraphModule, handles: Sequence[int | None]) -> tuple[FrameList, ...]:
    """The frame of the user's line for each instruction; none for one that stands for no operator of the user's."""
    found: dict[int, Source | None] = {}
    for node in nodes_of(root):
        if "debug_handle" in node.meta:
            found.setdefault(node.meta["debug_handle"], _source(node))
    sources = [found.get(handle) if handle is not None else None for handle in handles]
    return tuple(FrameList((_frame(source),) if source is not None else ()) for source in sources)


def _source(node: Node) -> Source | None:
    """The line of a node; that of a call of a delegate is the first one in there."""
    if node.target is not CALL_DELEGATE:
        return source_of(node)
    attribute = node.args[0]
    assert isinstance(attribute, Node) and node.graph.owning_module is not None
    delegate: Any = node.graph.owning_module.get_submodule(str(attribute.target))
    return next(filter(None, map(source_of, delegate.original_module.graph.nodes)), None)


def _frame(source: Source) -> Frame:
    return Frame(source.file, source.line, source.function, source.code)

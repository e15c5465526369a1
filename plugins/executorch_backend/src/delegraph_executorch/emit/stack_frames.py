"""Find the lines of the model that debug handles refer to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from delegraph_programs import Source
from delegraph_programs.exported_program import CALL_DELEGATE
from delegraph_programs.source_line import stack_of
from torch.fx import GraphModule, Node

from ..program.pte_tables import Frame, FrameList


def nodes_of(root: GraphModule) -> Iterator[Node]:
    """Yield the operators of a method, first those in delegates.

    A delegate's module has the graph that was lowered as its ``original_module``.
    """
    in_delegates = []
    on_host = []
    for module in root.modules():
        original: Any = getattr(module, "original_module", None)
        if original is not None:
            in_delegates.append(original.graph_module.graph)
        if isinstance(module, GraphModule):
            on_host.append(module.graph)
    for graph in (*in_delegates, *on_host):
        for node in graph.nodes:
            if node.op == "call_function":
                yield node


def stack_traces(
    root: GraphModule, handles: Sequence[int | None]
) -> tuple[FrameList, ...]:
    """Return the frames of the model's stack for each instruction.

    Instructions without an operator of the model have no frames.
    """
    found: dict[int | None, FrameList] = {}
    for node in nodes_of(root):
        handle = node.meta.get("debug_handle")
        if handle is not None and handle not in found:
            found[handle] = FrameList(tuple(map(_frame, _stack(node))))
    return tuple(found.get(handle, FrameList()) for handle in handles)


def _stack(node: Node) -> Sequence[Source]:
    """Return the model's stack of a node.

    For a call of a delegate, it is the first stack that a node in the delegate has.
    """
    if node.target is not CALL_DELEGATE:
        return stack_of(node)
    attribute = node.args[0]
    assert isinstance(attribute, Node) and node.graph.owning_module is not None
    delegate: Any = node.graph.owning_module.get_submodule(str(attribute.target))
    for inner in delegate.original_module.graph.nodes:
        stack = stack_of(inner)
        if stack:
            return stack
    return ()


def _frame(source: Source) -> Frame:
    return Frame(source.file, source.line, source.function, source.code)

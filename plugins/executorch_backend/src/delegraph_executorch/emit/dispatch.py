"""Choose the function that emits a node."""

from __future__ import annotations

from collections.abc import Callable

from delegraph_programs.exported_program import CALL_DELEGATE
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import Node

from .control_flow import CONTROL_FLOW
from .delegate_calls import emit_delegate
from .graph_emitter import GraphEmitter, Result
from .kernel_calls import emit_operator
from .symbolic import SYMBOLIC, emit_symbolic


def emitter_of(node: Node) -> Callable[[GraphEmitter, Node], Result] | None:
    """Return the function that emits a node; None if no file can hold the node."""
    if node.target is CALL_DELEGATE:
        return emit_delegate
    if isinstance(node.target, HigherOrderOperator):
        return CONTROL_FLOW.get(node.target)
    if node.target in SYMBOLIC:
        return emit_symbolic
    if isinstance(node.target, OpOverload):
        return emit_operator
    return None

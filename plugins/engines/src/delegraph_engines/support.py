"""Checks of calls that plugins for engines share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch._ops import HigherOrderOperator
from torch.fx import GraphModule

if TYPE_CHECKING:
    from torch.fx import Node


def body_of(operand: Node) -> GraphModule | None:
    """Return the branch or loop body that ``operand`` fetches; None for a value."""
    if operand.op != "get_attr":
        return None
    root: Any = operand.graph.owning_module
    fetched = getattr(root, str(operand.target), None)
    return fetched if isinstance(fetched, GraphModule) else None


def why_subgraph(node: Node, engine: str) -> str | None:
    """Return why ``engine`` cannot run ``node`` if it runs subgraphs, as ``cond`` does."""
    if not isinstance(node.target, HigherOrderOperator):
        return None
    return (
        f"{node.target} runs subgraphs of the program, and {engine} runs single"
        " operators only"
    )

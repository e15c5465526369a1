"""Checks of calls that plugins for engines share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch._ops import HigherOrderOperator

if TYPE_CHECKING:
    from torch.fx import Node


def why_subgraph(node: Node, engine: str) -> str | None:
    """Return why ``engine`` cannot run ``node`` if it runs subgraphs, as ``cond`` does."""
    if not isinstance(node.target, HigherOrderOperator):
        return None
    return (
        f"{node.target} runs subgraphs of the program, and {engine} runs single"
        " operators only"
    )

"""Parts of support checks for engines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch._ops import HigherOrderOperator

if TYPE_CHECKING:
    from torch.fx import Node


def why_subgraph(node: Node, engine: str) -> str | None:
    """Return a reason if ``node`` runs subgraphs, as ``cond`` and ``scan`` do, which
    ``engine`` has no way to run.
    """
    if not isinstance(node.target, HigherOrderOperator):
        return None
    return (
        f"{node.target} runs subgraphs of the program, and {engine} takes single"
        " operators"
    )

"""A delegate as this floor sees it: something that a call holds and that runs a program of its own elsewhere."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch.fx import GraphModule


@runtime_checkable
class Opaque(Protocol):
    """A module that a graph calls and that is not part of the graph."""

    @property
    def inner(self) -> GraphModule:
        """The graph that the module computes."""

    @property
    def keeps_state(self) -> bool:
        """Whether a call leaves something behind that the next call reads."""

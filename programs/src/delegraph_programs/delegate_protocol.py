"""The protocol by which this package recognizes delegates in a graph."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch.fx import GraphModule


@runtime_checkable
class Opaque(Protocol):
    """A delegate: a module that a graph calls as a whole."""

    @property
    def inner(self) -> GraphModule:
        """Return the graph that the delegate computes."""

    @property
    def keeps_state(self) -> bool:
        """Return whether a call changes state that the next call reads."""

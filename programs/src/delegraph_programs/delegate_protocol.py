"""The protocol of delegates: modules with a graph that this package does not run."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch.fx import GraphModule


@runtime_checkable
class Opaque(Protocol):
    """A module that a graph calls and that is not part of the graph."""

    @property
    def inner(self) -> GraphModule:
        """Return the graph that the module computes, for analyses."""

    @property
    def keeps_state(self) -> bool:
        """Return whether a call changes state that the next call reads."""

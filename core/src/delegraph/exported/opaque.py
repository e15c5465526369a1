"""What a call holds that runs a program of its own elsewhere, as this floor sees it: a delegate, whoever makes it."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch.fx import GraphModule


@runtime_checkable
class Opaque(Protocol):
    """A module that a graph calls and that is not part of the graph."""

    @property
    def inner(self) -> GraphModule:
        """The graph that it computes."""

    @property
    def keeps_state(self) -> bool:
        """Whether a call leaves something behind that the next one reads."""

"""Number the calls of a partition, so that names in an engine's model tell the calls."""

from __future__ import annotations

import re

from delegraph.errors import Unsupported
from delegraph_programs import source_of
from torch.fx import Node

_CALL = re.compile(r"(?<![a-zA-Z0-9])n(\d+)(?:_in\w*)?/")


class NumberedCalls:
    """The calls of a partition. The number of a call is its place in ``calls``.

    Name the engine's operators ``n0/...``, ``n1/...``, after the calls that they compute.
    Then ``calls_in`` finds the numbers in names, and ``refused`` the call in an error.
    """

    def __init__(self) -> None:
        self.calls: list[Node] = []

    @property
    def debug_handles(self) -> dict[int, tuple[int, ...]]:
        """A ``debug_handle_map`` by the numbers of the calls."""
        handles = (
            (number, node.meta.get("debug_handle"))
            for number, node in enumerate(self.calls)
        )
        return {number: (handle,) for number, handle in handles if handle is not None}

    def refused(self, reason: str, error: str | None = None) -> Unsupported:
        """Return the refusal of the program at the call that ``error`` names.

        If it names none, that is the first call. ``error``: the whole text of the
        engine; by default ``reason``.
        """
        named = calls_in(reason if error is None else error)
        number = named[0] if named and named[0] < len(self.calls) else 0
        node = self.calls[number]
        return Unsupported("unsupported", reason, node=node, source=source_of(node))


def calls_in(text: str) -> list[int]:
    """Return the numbers of calls in a name of the engine's, or in a text with names."""
    return [int(number) for number in _CALL.findall(text)]

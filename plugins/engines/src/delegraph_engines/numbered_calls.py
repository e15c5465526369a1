"""Numbers the calls of a partition, so that names in an engine's model identify calls."""

from __future__ import annotations

import re

from delegraph.errors import Unsupported
from delegraph_programs import source_of
from torch.fx import Node

_CALL = re.compile(r"(?<![a-zA-Z0-9])n(\d+)(?:_in\w*)?/")
"""A call in a name, such as ``n12/`` or ``n12_in/``; 12 is its number."""


class EngineError(Exception):
    """An engine failed on a program of several calls.

    This is no ``Unsupported``, so delegraph compiles parts of the partition to find the
    call that fails. Reports have the name of this class.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class NumberedCalls:
    """The calls of a partition. The number of a call is its place in ``calls``.

    Name the engine's operators ``n0/...``, ``n1/...``, after the calls that they
    compute. Then ``calls_in`` finds the numbers in names, and ``refused`` the call in
    an error.
    """

    def __init__(self) -> None:
        self.calls: list[Node] = []

    @property
    def debug_handles(self) -> dict[int, tuple[int, ...]]:
        """A ``debug_handle_map`` by the numbers of the calls."""
        handles: dict[int, tuple[int, ...]] = {}
        for number, node in enumerate(self.calls):
            if node.meta.get("debug_handle") is not None:
                handles[number] = (node.meta["debug_handle"],)
        return handles

    def refused(self, reason: str, error: str | None = None) -> Exception:
        """Return the refusal of the program, at the call that ``error`` names.

        ``error``: the whole text of the engine; by default ``reason``. If it names none
        of several calls, the result is an ``EngineError``.
        """
        named = calls_in(reason if error is None else error)
        known = [number for number in named if number < len(self.calls)]
        if len(self.calls) == 1:
            known.append(0)
        if not known:
            return EngineError(reason)
        node = self.calls[known[0]]
        return Unsupported("unsupported", reason, node=node, source=source_of(node))


def calls_in(text: str) -> list[int]:
    """Return the numbers of calls in a name, or in a text with names, of the engine."""
    return [int(number) for number in _CALL.findall(text)]

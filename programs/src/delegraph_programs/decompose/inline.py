"""Inserts a decomposition before a call, so that it can replace the call or be undone."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

from torch.fx import Node, map_arg

from .trace import Decomposition, operands

_NOT_INHERITED = frozenset({"val", "tensor_meta", "delegation_tag"})
"""Metadata of the call itself, which the calls of its decomposition do not get."""


def _results(*values: Any) -> tuple[Any, ...]:
    """Use results until ``commit``: the target of the node ``Inlining._anchor``.

    Without a user, the calls that compute the results would count as dead code.
    """
    return values


class Inlining:
    """A decomposition, inserted before the call ``node``.

    ``commit`` replaces ``node``, and ``undo`` removes the inserted calls. These have
    the debug handle and the source of ``node``; ``meta["decomposed_from"]`` names the
    operators that they come from, outermost first. Calls that only unused results need
    are not inserted. ``calls``: the inserted calls, without those that only unpack
    results. ``_previous``: the node before the inserted ones. ``_anchor``: the node
    after them, which uses the results until ``commit``.
    """

    def __init__(self, node: Node, decomposition: Decomposition) -> None:
        """Insert the calls of ``decomposition`` before ``node``, and then the anchor."""
        self.node = node
        self.graph = node.graph
        self.calls = list[Node]()
        self._previous = node.prev
        self.single = decomposition.single
        results = decomposition.results
        # the positions of the results with users
        used: set[Any] = {0}
        if not self.single:
            used = {u.args[1] for u in node.users if u.target is operator.getitem}
        needed = decomposition.needed_for(r for k, r in enumerate(results) if k in used)
        copies = dict(zip(decomposition.placeholders, operands(node), strict=True))
        with self.graph.inserting_before(node):
            for call in decomposition.calls:
                if call in needed:
                    copies[call] = self._copy(call, copies)
            # None for an unused result, since its call may not have been copied
            values = [r if k in used else None for k, r in enumerate(results)]
            new_results = map_arg(tuple(values), copies.__getitem__)
            self._anchor = self.graph.call_function(_results, new_results)

    def _copy(self, call: Node, copies: dict[Node, Node]) -> Node:
        """Return a copy of one call of the decomposition with metadata of ``node``."""
        copy = self.graph.node_copy(call, copies.__getitem__)
        copy.meta = {k: v for k, v in self.node.meta.items() if k not in _NOT_INHERITED}
        copy.meta["decomposed_from"] = (
            *copy.meta.get("decomposed_from", ()),
            str(self.node.target),
        )
        copy.meta["val"] = call.meta["val"]
        if call.target is not operator.getitem:
            self.calls.append(copy)
        return copy

    def inserted(self) -> Iterator[Node]:
        """Yield the nodes that stand for ``node`` now.

        If an inserted call was decomposed itself, its parts are among them.
        """
        node = self._previous.next
        while node is not self._anchor:
            yield node
            node = node.next

    def results(self) -> tuple[Any, ...]:
        """Return the values that replace the call's results; None for unused ones."""
        # Read from the anchor: if a result was decomposed itself, the anchor uses its
        # replacement.
        values: Any = self._anchor.args
        return tuple(values)

    def commit(self) -> None:
        """Replace the results of the call by ``results()``, and erase the call."""
        results = self.results()
        if self.single:
            self.node.replace_all_uses_with(results[0])
        else:
            for unpacked in list(self.node.users):
                unpacked.replace_all_uses_with(results[unpacked.args[1]])  # type: ignore[index]
                self.graph.erase_node(unpacked)
        self.graph.erase_node(self.node)
        self.graph.erase_node(self._anchor)

    def undo(self) -> None:
        """Erase all inserted nodes."""
        while self.node.prev is not self._previous:
            self.graph.erase_node(self.node.prev)

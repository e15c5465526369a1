"""Putting a decomposition in the place of a call. Until it is committed, it can be
undone.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

from torch.fx import Node

from .trace import Decomposition, operands

_NOT_INHERITED = frozenset({"val", "tensor_meta", "delegation_tag"})
"""Metadata that describes the call itself, and so is not passed on to the calls of its
decomposition.
"""


def _results(*values: Any) -> tuple[Any, ...]:
    """The target of the node ``Inlining._anchor``.

    It uses the results until ``commit``: without users, the calls that compute them
    would count as dead code.
    """
    return values


class Inlining:
    """A decomposition, inserted before the call ``node``; ``node`` stays until
    ``commit`` replaces it.

    ``undo`` removes the inserted calls. They have the debug handle and the source of
    ``node``; ``meta["decomposed_from"]`` names the operators that they come from,
    outermost first. Calls that only unused results need are not inserted. ``calls`` are
    the inserted calls, without those that only unpack results. They stand between
    ``_previous`` and ``_anchor``, a node that uses the results until ``commit``.
    """

    def __init__(self, node: Node, decomposition: Decomposition) -> None:
        """Insert the calls of ``decomposition`` before ``node``, and after them a node
        that uses their results.
        """
        self.node = node
        self.graph = node.graph
        self.calls = list[Node]()
        self._previous = node.prev
        self.single = decomposition.single
        results = decomposition.results
        # the positions of the results that something uses
        used = (
            {0}
            if self.single
            else {u.args[1] for u in node.users if u.target is operator.getitem}
        )
        needed = decomposition.needed_for(r for k, r in enumerate(results) if k in used)
        copies = dict(zip(decomposition.placeholders, operands(node), strict=True))
        with self.graph.inserting_before(node):
            for call in decomposition.calls:
                if call in needed:
                    copies[call] = self._copy(call, copies)
            # None stands for a result that nothing uses, since it may not have been
            # copied
            values = [r if k in used else None for k, r in enumerate(results)]
            self._anchor = self.graph.call_function(
                _results, tuple(copies[v] if isinstance(v, Node) else v for v in values)
            )

    def _copy(self, call: Node, copies: dict[Node, Node]) -> Node:
        """A copy of one call of the decomposition, with the metadata of ``node``."""
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
        """The nodes that now stand before ``node`` in its place, also those that
        replaced inserted calls.
        """
        node = self._previous.next
        while node is not self._anchor:
            yield node
            node = node.next

    def results(self) -> tuple[Any, ...]:
        """The values that replace the call's results, by position; None for results
        that nothing uses.
        """
        # Read from the anchor: where a result was itself decomposed, the anchor uses
        # what replaced it.
        values: Any = self._anchor.args
        return tuple(values)

    def commit(self) -> None:
        """Let users of the call use the values of ``results()`` instead, and erase the
        call.
        """
        results = self.results()
        users: list[tuple[Node, Any]] = (
            [(self.node, 0)]
            if self.single
            else [(u, u.args[1]) for u in self.node.users]
        )
        for user, k in users:
            user.replace_all_uses_with(results[k])
            self.graph.erase_node(user)
        if not self.single:
            self.graph.erase_node(self.node)
        self.graph.erase_node(self._anchor)

    def undo(self) -> None:
        """Erase all inserted nodes."""
        while self.node.prev is not self._previous:
            self.graph.erase_node(self.node.prev)

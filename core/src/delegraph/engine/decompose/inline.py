"""Pieces in the place of a call, on trial or for good."""

from __future__ import annotations

import operator
from typing import Any

from torch.fx import Node

from .trace import Pieces

_KEPT_BACK = frozenset({"val", "tensor_meta", "delegation_tag"})


def _results(*values: Any) -> tuple[Any, ...]:
    """Stands for what leaves a splice, so that its pieces can be replaced in turn."""
    return values


class Splice:
    """The pieces of ``node`` inserted before it. ``commit`` puts them in its place, ``undo`` takes them out.

    A piece has the debug handle and the source of the call that it comes from; ``meta["decomposed_from"]`` names the
    operators around it, outermost first. Pieces that compute nothing anyone uses are not inserted. ``work``: the pieces
    but for those that unpack others.
    """

    def __init__(self, node: Node, pieces: Pieces) -> None:
        self.node, self.graph = node, node.graph
        self._before = node.prev
        self._single = pieces.single
        self.work: list[Node] = []
        env = dict(zip(pieces.placeholders, pieces.inputs_of(node), strict=True))
        wanted = _used(node, pieces)
        live = pieces.live(wanted)
        with self.graph.inserting_before(node):
            for piece in pieces.calls:
                if piece in live:
                    env[piece] = self._copy(piece, env)
            self._anchor = self.graph.call_function(
                _results, tuple(env[r] if isinstance(r, Node) and k in wanted else r for k, r in pieces.numbered())
            )

    def _copy(self, piece: Node, env: dict[Node, Node]) -> Node:
        made = self.graph.node_copy(piece, env.__getitem__)
        made.meta = {k: v for k, v in self.node.meta.items() if k not in _KEPT_BACK}
        made.meta["decomposed_from"] = (*made.meta.get("decomposed_from", ()), str(self.node.target))
        made.meta["val"] = piece.meta["val"]
        if piece.target is not operator.getitem:
            self.work.append(made)
        return made

    def commit(self) -> None:
        """Let the pieces' results be used for the call's, and erase the call."""
        results = self._anchor.args
        for user in [] if self._single else list(self.node.users):
            _replace(user, results[user.args[1]])  # type: ignore[index]
        if self._single:
            _replace(self.node, results[0])
        else:
            self.graph.erase_node(self.node)
        self.graph.erase_node(self._anchor)

    def undo(self) -> None:
        """Erase everything between what was before the call and the call."""
        while self.node.prev is not self._before:
            self.graph.erase_node(self.node.prev)


def _replace(old: Node, new: Any) -> None:
    old.replace_all_uses_with(new)
    old.graph.erase_node(old)


def _used(node: Node, pieces: Pieces) -> frozenset[int]:
    """Positions of the results that somebody uses."""
    if pieces.single:
        return frozenset({0})
    return frozenset(u.args[1] for u in node.users if u.target is operator.getitem)  # type: ignore[misc]

"""Operators that were decomposed for a partitioner that cannot be asked, and of which it then took nothing.

The host calls them as eager PyTorch does, so they are put together again. A partitioner with a support check is asked
before anything is decomposed, and never leaves such operators behind.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx import Node, map_arg

from ..exported.decompose.inline import Inlining
from ..exported.node_sets import reachable
from ..partitioner import Refusal


@dataclass(frozen=True)
class Composite:
    """A call that was decomposed, as it was, with its parts and the results that stand for its own, by position."""

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    meta: dict[str, Any]
    name: str
    single: bool
    parts: list[Node]
    results: dict[int, Node]


class Composites:
    """The calls of one program that were decomposed, in the order in which that happened."""

    def __init__(self) -> None:
        self._listed: list[Composite] = []
        self._became: dict[Node, Node] = {}

    def add(self, inlining: Inlining) -> None:
        """Remember what is about to be committed."""
        node, parts = inlining.node, list(inlining.inserted())
        users: dict[Node, Any] = {node: 0} if inlining.single else {u: u.args[1] for u in node.users}
        results = {k: value for k, value in enumerate(inlining.results()) if k in users.values()}
        self._became.update({user: results[k] for user, k in users.items() if isinstance(results[k], Node)})
        whole = node.target, node.args, dict(node.kwargs), dict(node.meta), node.name, inlining.single
        if parts and all(result in parts for result in results.values()):
            self._listed.append(Composite(*whole, parts, results))

    def restore(self, taken: Collection[Node], named: Collection[str], refusals: Sequence[Refusal]) -> list[Refusal]:
        """Make calls whole again of which no part is ``taken`` or ``named``; returns the refusals as they are then."""
        restored = {}
        there = [c for c in self._listed if not any(part._erased for part in c.parts)]
        for composite in sorted(there, key=lambda c: c.parts[0]):
            if self._can_be_whole(composite, taken, named):
                restored[self._put_together(composite)] = composite
        reasons = {r.node: r for r in refusals}
        refused = [Refusal(new, why) for new, old in restored.items() for why in _first_reason(old, reasons)]
        gone = {part for composite in restored.values() for part in composite.parts}
        return [*(r for r in refusals if r.node not in gone), *refused]

    def now(self, node: Node) -> Node:
        """What stands for a result, by now, after its call was decomposed or made whole."""
        while node in self._became:
            node = self._became[node]
        return node

    def _can_be_whole(self, composite: Composite, taken: Collection[Node], named: Collection[str]) -> bool:
        """Whether nothing of it was taken, nothing else uses a part of it, and every result needs every operand.

        Otherwise a delegate may lie between two of its parts, which it cannot do inside of one call.
        """
        parts = composite.parts
        if any(part in taken or part.name in named for part in parts):
            return False
        inside, results = set(parts), set(composite.results.values())
        if any(user not in inside for part in inside - results for user in part.users):
            return False
        computed = {n for n in map(self.now, _operands(composite)) if n.op not in ("placeholder", "get_attr")}
        if any(n._erased for n in computed):
            return False
        # each result with the parts that it is computed from, and with what these take from outside
        return all(computed <= reachable([r], lambda n: n.all_input_nodes if n in inside else ()) for r in results)

    def _put_together(self, composite: Composite) -> Node:
        graph = composite.parts[0].graph
        with graph.inserting_before(composite.parts[0]):
            args, kwargs = map_arg((composite.args, composite.kwargs), self.now)
            call = graph.call_function(composite.target, args, kwargs)
            call.name = composite.name
            call.meta = {k: v for k, v in composite.meta.items() if k != "delegation_tag"}
            for k, result in composite.results.items():
                whole = call if composite.single else graph.call_function(operator.getitem, (call, k))
                whole.meta = call.meta if composite.single else {**result.meta, "val": composite.meta["val"][k]}
                result.replace_all_uses_with(whole)
                self._became[result] = whole
        for part in reversed(composite.parts):
            graph.erase_node(part)
        return call


def _operands(composite: Composite) -> list[Node]:
    found: list[Node] = []
    map_arg((composite.args, composite.kwargs), found.append)
    return found


def _first_reason(composite: Composite, reasons: dict[Node, Refusal]) -> Iterator[str]:
    """Why the first of the parts that was refused was."""
    yield from [reasons[part].reason for part in composite.parts if part in reasons][:1]

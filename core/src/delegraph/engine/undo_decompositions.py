"""Restores decomposed calls of which the partitioner takes no part.

The *parts* of a call are the calls that replaced it. A partitioner without a support
check cannot be asked about single operators, so it gets a program with decomposed
operators. If it takes no part of an operator, the host calls the operator whole, as
eager PyTorch does. A partitioner with a support check is asked before anything is
decomposed. So its calls are restored only if their parts are refused later, for example
by a compiler.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from delegraph_programs.decompose.inline import Inlining
from delegraph_programs.reachable_nodes import reachable
from torch.fx import Node, map_arg

from ..partitioner import Refusal


@dataclass(frozen=True)
class Composite:
    """A call that was decomposed, and its parts.

    ``target``, ``args``, ``kwargs``, ``meta`` and ``name``: those of the call, an
    ``fx.Node``. ``single``: the call returns one value, not a tuple. ``parts``: in
    graph order. ``results``: position of a result that is used -> the part that
    computes the result.
    """

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    meta: dict[str, Any]
    name: str
    single: bool
    parts: list[Node]
    results: dict[int, Node]


class Composites:
    """The decomposed calls of one program, in the order in which they were decomposed.

    ``_replaced_by``: erased node -> the node that has its value now.
    """

    def __init__(self) -> None:
        self._decomposed: list[Composite] = []
        self._replaced_by: dict[Node, Node] = {}

    def add(self, inlining: Inlining) -> None:
        """Remember a decomposition. Must be called before ``inlining.commit()``."""
        node = inlining.node
        parts = list(inlining.inserted())
        # node with a result of the call -> the position of that result
        positions: dict[Node, Any] = {node: 0}
        if not inlining.single:
            # each user unpacks one result: ``getitem(node, position)``
            positions = {user: user.args[1] for user in node.users}
        values = inlining.results()
        results = {k: values[k] for k in sorted(set(positions.values()))}
        for old, k in positions.items():
            if isinstance(results[k], Node):
                self._replaced_by[old] = results[k]
        # A decomposition may return an operand of the call. Such a call is not
        # remembered, so it stays decomposed.
        if parts and all(result in parts for result in results.values()):
            composite = Composite(
                node.target,
                node.args,
                dict(node.kwargs),
                dict(node.meta),
                node.name,
                inlining.single,
                parts,
                results,
            )
            self._decomposed.append(composite)

    def restore(
        self,
        taken: Collection[Node],
        with_boundary_type: Collection[str],
        refusals: Sequence[Refusal],
    ) -> list[Refusal]:
        """Restore the calls that ``_can_be_whole``, and return the new list of refusals.

        If parts of a restored call were refused, one refusal of the call replaces
        theirs. ``taken``: the nodes that partitions compute. ``with_boundary_type``:
        names of nodes for which a partitioner chose a boundary type. ``refusals``:
        those for the decomposed graph.
        """
        refusal_of = {r.node: r for r in refusals}
        erased: set[Node] = set()
        new_refusals: list[Refusal] = []
        # Skip calls with an erased part. Either this part was decomposed itself, or the
        # call is restored already.
        intact = [
            c for c in self._decomposed if not any(part._erased for part in c.parts)
        ]
        # in graph order: operands are restored before the calls that use them
        for composite in sorted(intact, key=lambda c: c.parts[0]):
            if self._can_be_whole(composite, taken, with_boundary_type):
                call = self._put_together(composite)
                erased.update(composite.parts)
                first = _first_refusal(composite, refusal_of)
                if first is not None:
                    new_refusals.append(Refusal(call, first.reason))
        return [r for r in refusals if r.node not in erased] + new_refusals

    def present_node(self, node: Node) -> Node:
        """Return the node that has the value of ``node`` now.

        That is another node if the call was decomposed or restored, else ``node``.
        """
        while node in self._replaced_by:
            node = self._replaced_by[node]
        return node

    def _can_be_whole(
        self,
        composite: Composite,
        taken: Collection[Node],
        with_boundary_type: Collection[str],
    ) -> bool:
        """Return whether a call can be restored.

        It cannot be if a part is delegated or has a boundary type, or if a call outside
        uses a part that is no result.

        Every result must need every computed operand. Otherwise the whole call could
        make a cycle. For example, a delegate uses a result ``r``, and computes an
        operand ``x`` that ``r`` does not need. The whole call would need ``x``, so it
        would need the delegate, which needs ``r``.
        """
        parts = composite.parts
        if any(part in taken or part.name in with_boundary_type for part in parts):
            return False
        inside = set(parts)
        results = set(composite.results.values())
        # only parts may use an intermediate part
        if not all(inside.issuperset(part.users) for part in inside - results):
            return False
        computed_operands = {
            n
            for n in map(self.present_node, _operands(composite))
            if n.op not in ("placeholder", "get_attr")
        }
        if any(n._erased for n in computed_operands):
            return False
        # the walk back from each result, through parts, must reach every operand
        return all(
            computed_operands
            <= reachable([result], lambda n: n.all_input_nodes if n in inside else ())
            for result in results
        )

    def _put_together(self, composite: Composite) -> Node:
        """Replace the parts by the call, erase the parts, and return the call.

        The call gets its old name, and its old metadata without a tag, because it
        belongs to no partition. Operands may have been decomposed or restored since:
        ``present_node`` finds their values.
        """
        graph = composite.parts[0].graph
        with graph.inserting_before(composite.parts[0]):
            args, kwargs = map_arg(
                (composite.args, composite.kwargs), self.present_node
            )
            call = graph.call_function(composite.target, args, kwargs)
            call.name = composite.name
            call.meta = dict(composite.meta)
            call.meta.pop("delegation_tag", None)
            for k, result in composite.results.items():
                replacement = call
                if not composite.single:
                    replacement = graph.call_function(operator.getitem, (call, k))
                    replacement.meta = {**result.meta, "val": composite.meta["val"][k]}
                result.replace_all_uses_with(replacement)
                self._replaced_by[result] = replacement
        for part in reversed(composite.parts):
            graph.erase_node(part)
        return call


def _operands(composite: Composite) -> list[Node]:
    """Return the nodes among the arguments of the decomposed call."""
    nodes: list[Node] = []
    map_arg((composite.args, composite.kwargs), nodes.append)
    return nodes


def _first_refusal(
    composite: Composite, refusal_of: dict[Node, Refusal]
) -> Refusal | None:
    """Return the refusal of the first refused part; None if no part was refused.

    Parts that return tensors come before parts that compute sizes, because a reason
    about a size helps a user less.
    """
    refused = [part for part in composite.parts if part in refusal_of]
    refused.sort(key=lambda part: not isinstance(part.meta.get("val"), torch.Tensor))
    return refusal_of[refused[0]] if refused else None

"""Finds assertions, and the calls whose results only assertions use."""

from __future__ import annotations

import operator
from collections.abc import Collection

from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import Graph, Node

from .exported_program import has_effect
from .operator_schema import is_random, overloads

ASSERTIONS = overloads(
    "_assert_async.default _assert_async.msg _assert_scalar.default"
    " _assert_tensor_metadata.default sym_constrain_range.default"
    " sym_constrain_range_for_size.default"
)


def find_checks(graph: Graph) -> set[Node]:
    """Return the assertions of a graph, and the pure calls that only assertions use.

    A pure call with an unused result is included as well. An unused ``getitem`` is not:
    it unpacks one result of a call while other results are used.
    """
    checks: set[Node] = set()
    # in reverse, because a node is a check only if all of its users are
    for node in reversed(graph.nodes):
        if node.op != "call_function" or not checks.issuperset(node.users):
            continue
        unused_item = node.target is operator.getitem and not node.users
        is_pure = not _may_have_effect(node)
        if node.target in ASSERTIONS or (is_pure and not unused_item):
            checks.add(node)
    return checks


def _may_have_effect(node: Node) -> bool:
    """Return whether a call may do more than return a result.

    Calls with subgraphs count as calls with effects.
    """
    if isinstance(node.target, HigherOrderOperator):
        return True
    if isinstance(node.target, OpOverload) and (
        node.target._schema.is_mutable or is_random(node)
    ):
        return True
    return has_effect(node)


def erase(graph: Graph, nodes: Collection[Node]) -> None:
    """Erase those of ``nodes`` that no other node uses."""
    for node in reversed(graph.nodes):
        if node in nodes and not node.users:
            graph.erase_node(node)

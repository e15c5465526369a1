"""Finds calls that only check something: assertions, and calls whose results only
assertions use, or nothing at all.
"""

from __future__ import annotations

import operator
from collections.abc import Collection

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import Graph, Node

from .exported_program import has_effect
from .operator_schema import is_random

aten = torch.ops.aten
ASSERTIONS = frozenset(
    {aten._assert_async.default, aten._assert_async.msg, aten._assert_scalar.default}
)
ASSERTIONS |= {aten._assert_tensor_metadata.default, aten.sym_constrain_range.default}
ASSERTIONS |= {aten.sym_constrain_range_for_size.default}


def find_checks(graph: Graph) -> set[Node]:
    """The calls of a graph that only check something: assertions, and pure calls that
    only assertions need.

    A pure call whose result nothing uses counts, too, unless it is a ``getitem``: that
    is left from unpacking the results of a call of which others are used.
    """
    checks: set[Node] = set()
    # so that the users of a node are judged before the node
    for node in reversed(graph.nodes):
        unused_item = node.target is operator.getitem and not node.users
        if node.op == "call_function" and checks.issuperset(node.users):
            if node.target in ASSERTIONS or not (_may_have_effect(node) or unused_item):
                checks.add(node)
    return checks


def _may_have_effect(node: Node) -> bool:
    """Whether a call does, or may do, more than return a result. A call of a subgraph
    always counts.
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

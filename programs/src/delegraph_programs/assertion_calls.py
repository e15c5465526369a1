"""Find calls that only check something.

These are assertions, and calls that serve only assertions or no call at all.
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
    """Return the assertions of a graph, and the pure calls that only assertions use.

    A pure call with an unused result is included as well. An unused ``getitem`` is not:
    it unpacks one result of a call while other results are used.
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

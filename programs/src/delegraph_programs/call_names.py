"""Names of calls: which operator a call is, whether it counts as one, and our own keys
in the metadata of nodes.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable
from functools import cache

import torch
from torch._ops import OpOverload
from torch.fx import Node

aten = torch.ops.aten

# The keys of ``node.meta``. A copy of a node has all of them, except those that say
# where a node goes.
# - "val": the type of a value, as a fake tensor, a symbol or a number. torch.export
#   records it, and every step that adds a node gives it one. Everybody reads it;
#   partitioners may not change it (engine/plan.py checks that).
# - "stack_trace", "nn_module_stack": torch.export's, of the user's line. ``source_of``
#   reads them.
# - "debug_handle": a number for each call of the normalized program.
#   functionalize/normalize.py writes it; what a step puts in the place of a call, or
#   adds for it (a decomposition, a cast), gets the number of that call, and the call of
#   a delegate a new one (engine/insert.py). Reports, backends and program files name
#   calls by it.
# - ``EXPORTED``: written when a program is normalized, read by node data, which belongs
#   to nodes of the user's program.
# - "decomposed_from": the operators that a call is a part of, outermost first.
#   decompose/inline.py writes it, reports and comparisons read it.
# - ``LEFT``: written when the last step decomposes what no backend took
#   (engine/decompose.py), so that a report counts the user's call and not its parts.
#   Read by reports and pages.
# - "delegation_tag", "no_copy": a partitioner's answer: where a node goes, and that a
#   constant is to have no second copy. engine/plan.py reads both. A tag means nothing
#   to the next partitioner, so each step that copies a node, and ``rebuild``, takes it
#   away.
# - "boundary": engine/insert.py marks the casts that it adds where a value crosses to a
#   delegate in another type. Reports do not count these as operators.
# - ``WITHIN``: a partitioner's mark on an input of the program. ``call_spec`` checks it
#   in each call, and program files keep it.
# - ``INDEXED``: a partitioner's mark on a value that has indices. ``call_spec`` checks
#   inputs of the program, and ``host/graph_code.py`` values that the host computes for
#   delegates.
# Beside them, ``graph_module.meta`` of a partition's program has "method" and
# "partition" (engine/extract.py), which are for the backend.
LEFT = "left_to_host"
"""Metadata key of calls that replace one that no backend took: that call's debug
handle, name and operator.
"""
EXPORTED = "exported_name"
"""Metadata key of calls: the name of the node in the user's program from which the call
comes.
"""
WITHIN = "within"
"""Metadata key of an integer input: [lowest, highest], between which the user says that
its elements lie.
"""
INDEXED = "indexed"
"""Metadata key of integers: [lowest, highest], outside of which eager raises an error
for an index.
"""
_NO_OPERATORS = {
    operator.getitem,
    aten.sym_size.int,
    aten.sym_stride.int,
    aten.sym_numel.default,
}
_NO_OPERATORS |= {
    aten.sym_storage_offset.default,
    aten._assert_scalar.default,
    aten._assert_tensor_metadata.default,
}
_NO_OPERATORS |= {
    aten.sym_constrain_range.default,
    aten.sym_constrain_range_for_size.default,
}


def unpacked(node: Node) -> Node | None:
    """The call of which ``node`` unpacks one result; None if ``node`` is no
    ``getitem``.
    """
    return (
        node.args[0]
        if node.target is operator.getitem and isinstance(node.args[0], Node)
        else None
    )


def operator_name(node: Node) -> str:
    """The operator of a call as text: ``aten.add.Tensor`` and the like.

    The name of the function if the call's target is no operator, as for ``getitem``.
    """
    if isinstance(node.target, OpOverload):
        return _cached_name(node.target)
    return getattr(node.target, "__name__", str(node.target))


@cache
def _cached_name(op: OpOverload) -> str:
    """``str(op)``, cached: torch builds the text anew each time, and reports need it
    for thousands of calls.
    """
    return str(op)


def is_operator(node: Node) -> bool:
    """Whether reports count a call as an operator.

    They do not count the unpacking of results, checks of symbolic sizes, and arithmetic
    on symbolic numbers alone.
    """
    if node.target in _NO_OPERATORS:
        return False
    if isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool)):
        # a number that is read from a tensor counts (``item``), one that is computed
        # from other numbers does not
        return any(
            isinstance(i.meta.get("val"), torch.Tensor) for i in node.all_input_nodes
        )
    return True


def count_operators(nodes: Iterable[Node]) -> dict[str, int]:
    """Operator name -> number of calls, of the calls for which ``is_operator`` holds."""
    return dict(Counter(operator_name(n) for n in nodes if is_operator(n)))

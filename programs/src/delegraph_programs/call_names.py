"""Names the operators of calls, and our own keys in the metadata of nodes."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable
from functools import cache

import torch
from torch._ops import OpOverload
from torch.fx import Node

from .operator_schema import overloads
from .symbolic_sizes import SYMBOLS

# The keys of ``node.meta``. A copy of a node has all of them, except those that assign
# the node to a partition.
# - "val": the type of a value, as a fake tensor, a symbol or a number. torch.export
#   records it, and every step sets it for the nodes that it adds. Partitioners may not
#   change it (engine/ask_partitioner.py checks that).
# - "stack_trace", "nn_module_stack": torch.export's records of the user's line.
#   ``source_of`` reads them.
# - "debug_handle": a number for each call of the normalized program, written by
#   functionalize/normalize.py. Replacements of a call, and calls added for it (a
#   decomposition, a cast), get its number. The call of a delegate gets a new one
#   (engine/insert.py). Reports, backends and program files name calls by it.
# - ``EXPORTED``: written when a program is normalized. Node data uses it to find nodes
#   of the user's program.
# - "decomposed_from": the operators that a call is a part of, outermost first.
#   decompose/inline.py writes it; reports and comparisons read it.
# - ``LEFT``: written when the last step decomposes calls without a backend
#   (engine/decompose_on_demand.py), so that a report counts the user's call and not its
#   parts.
# - "delegation_tag", "no_copy": a partitioner's results: the partition of a node, and
#   whether a constant must not be copied. engine/ask_partitioner.py reads both. A tag
#   means nothing to the next partitioner, so steps that copy nodes, and ``rebuild``,
#   remove it.
# - "boundary": engine/insert.py marks casts that it adds where a delegate takes or
#   returns a value in another type. Reports do not count these as operators.
# - ``WITHIN``: a partitioner's mark on an input of the program. ``call_spec`` checks it
#   in each call, and program files keep it.
# - ``INDEXED``: a partitioner's mark on a value that has indices. ``call_spec`` checks
#   inputs of the program. ``host/graph_function.py`` checks values that the host
#   computes for delegates.
# In addition, ``graph_module.meta`` of a partition's program has "method" and
# "partition" for the backend (engine/extract.py).
LEFT = "left_to_host"
"""Metadata key of calls that replace a call without a backend.

The value is the debug handle, the name and the operator of the replaced call.
"""
EXPORTED = "exported_name"
"""Metadata key of calls: the name of the original node in the user's program."""
WITHIN = "within"
"""Metadata key of an integer input: the user's bounds [lowest, highest] of elements."""
INDEXED = "indexed"
"""Metadata key of integer indices: eager raises an error outside [lowest, highest]."""
_NOT_COUNTED = {operator.getitem} | overloads(
    "sym_size.int sym_stride.int sym_numel.default sym_storage_offset.default"
    " _assert_scalar.default _assert_tensor_metadata.default"
    " sym_constrain_range.default sym_constrain_range_for_size.default"
)
"""Targets of calls that reports do not count as operators."""


def unpacked(node: Node) -> Node | None:
    """Return the call that ``node`` unpacks; None if ``node`` is no ``getitem``."""
    if node.target is operator.getitem and isinstance(node.args[0], Node):
        return node.args[0]
    return None


def operator_name(node: Node) -> str:
    """Return the operator of a call as text: ``aten.add.Tensor`` and the like.

    If the target is another function, such as ``getitem``, return the function's name.
    """
    if isinstance(node.target, OpOverload):
        return _cached_name(node.target)
    return getattr(node.target, "__name__", str(node.target))


@cache
def _cached_name(op: OpOverload) -> str:
    """Return ``str(op)`` from a cache: torch rebuilds the text for thousands of calls."""
    return str(op)


def handle_of(node: Node) -> int:
    """Return the debug handle of a node; 0 if it has none."""
    handle: int = node.meta.get("debug_handle", 0)
    return handle


def is_operator(node: Node) -> bool:
    """Return whether reports count a call as an operator.

    They do not count the unpacking of results, checks of symbolic sizes, and arithmetic
    on symbolic numbers alone.
    """
    if node.target in _NOT_COUNTED:
        return False
    if isinstance(node.meta.get("val"), SYMBOLS):
        # a number that is read from a tensor (``item``) counts; a number that is
        # computed from other numbers does not
        return any(
            isinstance(i.meta.get("val"), torch.Tensor) for i in node.all_input_nodes
        )
    return True


def count_operators(nodes: Iterable[Node]) -> dict[str, int]:
    """Return operator name -> number of calls, for calls that ``is_operator`` accepts."""
    return dict(Counter(operator_name(n) for n in nodes if is_operator(n)))

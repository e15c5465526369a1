"""Finds unbounded int64 inputs that can enter a delegate in another type.

All uses of such an input convert it: to a truth value, a float, or low bits. For
example, a mask is int64 and used as ``mask[:, None].to(torch.bool)``, a timestep as
``t[:, None].float()``. The host converts the input instead, before the delegate. So the
views and conversions are in the delegate, and nothing has to fit into 32 bits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch.fx import Node

from .bounds import KEEPING_ALL, dtype_of_node, overloads

aten = torch.ops.aten
BORDER_DTYPE = "tosa_carried"
"""Metadata key of such an input and its views: the name of its border type."""
AS_ITSELF = ("bool", "float32")
"""Border types that rules see. For any other, such as int32, rules see an int64."""

_CASTS = frozenset(overloads("to", "_to_copy", "type_as"))
_VIEWS = frozenset({*overloads(*KEEPING_ALL), aten.slice.Tensor, aten.select.int})
_LOGIC = frozenset(
    {
        aten.logical_and.default,
        aten.logical_or.default,
        aten.logical_xor.default,
        aten.logical_not.default,
    }
)
_COMPARISONS = frozenset({aten.eq.Scalar, aten.ne.Scalar})
_ARITHMETIC = frozenset(overloads("add", "sub", "mul", "div", "rsub"))
"""Operators that convert integers to the type of their result before they compute."""
_LOW_BITS = (torch.int32, torch.int16, torch.int8, torch.uint8)


def mark_border_dtypes(
    nodes: Iterable[Node], candidates: Collection[Node], floats: bool
) -> None:
    """Write ``BORDER_DTYPE`` into the metadata of suitable candidates and their views.

    ``nodes`` are all nodes of the graph; their old marks are removed. ``candidates`` are
    int64 inputs that nothing bounds. ``floats`` is whether an input may cross as
    float32.
    """
    nodes = list(nodes)
    for node in nodes:
        node.meta.pop(BORDER_DTYPE, None)
    if not candidates:
        return
    # int64 node -> the types to which its uses convert it; None if a use needs the int64
    reads: dict[Node, set[torch.dtype] | None] = {}
    for node in reversed(nodes):
        if _is_int64(node):
            reads[node] = _read_by_all(node, reads)
    for node in candidates:
        kind = _narrowest(reads[node])
        if kind is not None and (floats or kind is not torch.float32):
            _mark(node, str(kind).removeprefix("torch."))


def _mark(node: Node, kind: str) -> None:
    """Mark ``node`` and its views with the border type ``kind``."""
    node.meta[BORDER_DTYPE] = kind
    for user in node.users:
        if _is_int64(user):
            _mark(user, kind)


def _narrowest(reads: set[torch.dtype] | None) -> torch.dtype | None:
    """Return the type in which a value can cross for uses that need ``reads``.

    Returns None if no type serves all uses, or if there are none.
    """
    if reads is None:
        return None
    if reads == {torch.bool, torch.float32}:
        # the float is 0 where the integer is, so it has the same truth value
        return torch.float32
    if len(reads) != 1:
        return None
    (dtype,) = reads
    return dtype


def _read_by_all(
    node: Node, reads: dict[Node, set[torch.dtype] | None]
) -> set[torch.dtype] | None:
    """Return the types to which all users convert ``node``; None if one does not.

    ``reads`` has the types of its views.
    """
    found: set[torch.dtype] = set()
    for user in node.users:
        needed = _read_by(user, node, reads)
        if needed is None:
            return None
        found |= needed
    return found


def _read_by(
    user: Node, node: Node, reads: dict[Node, set[torch.dtype] | None]
) -> set[torch.dtype] | None:
    """Return the types to which the call ``user`` converts ``node``.

    Returns None if it needs the integer itself, or if that is not known.
    """
    target: Any = user.target
    if target is aten.sym_size.int:
        return set()
    uses = sum(operand is node for operand in user.args)
    if uses != 1 or node in user.kwargs.values():
        # ``node`` is in a list, or used twice, as in x * x
        return None
    first = user.args[0] is node
    made = dtype_of_node(user)
    if first and (target in _CASTS or target in _VIEWS) and made is torch.int64:
        return reads.get(user)
    if first and target in _CASTS:
        return _read_by_cast(made)
    if target in _LOGIC or (target in _COMPARISONS and user.args[1] == 0):
        return {torch.bool}
    if target in _ARITHMETIC and made is torch.float32:
        return {torch.float32}
    return None


def _read_by_cast(made: torch.dtype | None) -> set[torch.dtype] | None:
    """Return the type that a cast to ``made`` needs; None for the integer itself."""
    if made in _LOW_BITS:
        return {torch.int32}
    if made is torch.bool or made is torch.float32:
        return {made}
    return None


def _is_int64(node: Node) -> bool:
    return dtype_of_node(node) is torch.int64

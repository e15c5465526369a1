"""Finds int64 values that may enter or leave a delegate as bool or float32.

Core AI has no int64, and its integers have 32 bits. Example: an attention mask is int64,
and the model uses it as ``mask[:, None].to(torch.bool)``. Its elements may be any
number. But all its uses read only whether an element is 0, so it may cross the border of
the delegate as bool.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from delegraph_programs import TRACING
from torch.export import ExportedProgram
from torch.fx import Node

BORDER = "delegraph_coreai_border"
"""Metadata key of such a value: the name of its type at the border."""
MOVES = frozenset(
    "view reshape flatten _unsafe_view permute transpose t squeeze unsqueeze expand"
    " slice select clone alias detach".split()
)
"""Operators that keep the elements of their one operand."""
_CASTS = ("to", "_to_copy", "type_as")
_LOGIC = ("logical_and", "logical_or", "logical_xor", "logical_not")
_COMPARISONS = ("eq", "ne")


def mark_borders(
    program: ExportedProgram, is_bounded: Callable[[Node], bool]
) -> dict[str, torch.dtype]:
    """Mark int64 values with their border types, and return these by name.

    ``is_bounded``: whether an int64 value fits 32 bits. Such a value crosses as int32.
    So does a value whose uses need all bits; the support check refuses these.
    """
    # users first: the uses of a view are uses of its operand
    read = dict[Node, torch.dtype]()
    for node in reversed(program.graph.nodes):
        if _dtype(node) is torch.int64:
            read[node] = _joined({_read_by(user, node, read) for user in node.users})
    borders = {}
    for node in program.graph.nodes:
        node.meta.pop(BORDER, None)
        if node not in read:
            continue
        is_wide = read[node] is not torch.int32 and not is_bounded(node)
        borders[node.name] = read[node] if is_wide else torch.int32
        if is_wide:
            node.meta[BORDER] = str(read[node]).removeprefix("torch.")
    return borders


def _joined(kinds: set[torch.dtype]) -> torch.dtype:
    """Return the type that serves all uses; int32 if there is none.

    A float serves for truth values as well.
    """
    if kinds == {torch.bool, torch.float32}:
        return torch.float32
    return next(iter(kinds)) if len(kinds) == 1 else torch.int32


def _read_by(user: Node, value: Node, read: Mapping[Node, torch.dtype]) -> torch.dtype:
    """Return the type in which ``user`` reads ``value``; int32 if it needs all bits."""
    name = operator_stem(user)
    dtype = _dtype(user)
    if name in _CASTS and dtype is not None:
        if dtype.is_floating_point:
            return torch.float32
        if dtype is torch.bool:
            return torch.bool
    if name in _LOGIC:
        return torch.bool
    if name in _COMPARISONS and len(user.args) > 1 and type(user.args[1]) is int:
        return torch.bool if user.args[1] == 0 else torch.int32
    is_kept = name in MOVES or name in _CASTS
    if is_kept and dtype is torch.int64 and user.all_input_nodes == [value]:
        return read[user]
    return torch.int32


def keep_floats(program: ExportedProgram) -> None:
    """Let values that entered a partition as float32 stay float32.

    The cast back to int64, at the border, is removed. Core AI would saturate there.
    """
    for node in program.graph.nodes:
        if node.meta.get(BORDER) != "float32" or _dtype(node) is not torch.int64:
            continue
        source: Any = node.args[0] if node.args else node
        if operator_stem(node) in _CASTS and _dtype(source) is torch.float32:
            node.replace_all_uses_with(source)
        else:
            with TRACING:
                node.meta["val"] = node.meta["val"].to(torch.float32)


def operator_stem(node: Node) -> str:
    """Return the name of an operator without its overload: ``add``."""
    return getattr(node.target, "__name__", "").partition(".")[0]


def _dtype(node: Node) -> torch.dtype | None:
    val = node.meta.get("val")
    return val.dtype if isinstance(val, torch.Tensor) else None

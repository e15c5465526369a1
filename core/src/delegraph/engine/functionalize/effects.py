"""What operators do to memory, read from their schemas, and what the schemas keep quiet about."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node

aten = torch.ops.aten

_UNDECLARED = ("einsum", "atleast_1d", "atleast_2d", "atleast_3d", "meshgrid", "cartesian_prod")
UNDECLARED_ALIASES = frozenset(f"aten::{name}" for name in _UNDECLARED)
"""Composite operators that may return their argument, or a view of it, although their schemas do not say so."""

HIDDEN_WRITES = {aten.batch_norm.default: 5, aten.instance_norm.default: 5}
"""Operators that write running statistics (arguments 3 and 4) without saying so, if the argument here is true."""


@dataclass(frozen=True)
class Effects:
    """What a schema says of memory: positions of arguments that are written, and that results may alias."""

    writes: tuple[int, ...]
    views: tuple[int, ...]


@cache
def effects(op: OpOverload) -> Effects:
    """Effects of ``op``, read once from its schema."""
    infos = [(k, a.alias_info) for k, a in enumerate(op._schema.arguments) if a.alias_info is not None]
    writes = tuple(k for k, info in infos if info.is_write)
    undeclared = op._schema.name in UNDECLARED_ALIASES
    views = range(len(op._schema.arguments)) if undeclared else (k for k, _ in infos)
    return Effects(writes, tuple(views))


@cache
def twin(op: OpOverload) -> OpOverload | None:
    """The functional form of an operator that writes one argument, if there is one with the others the same.

    ``relu_`` -> ``relu``, ``add.out`` -> ``add.Tensor``; ``normal_``, whose name is taken, -> ``normal_functional``.
    """
    namespace, name = op._schema.name.split("::")
    names = [name[:-1], f"{name[:-1]}_functional"] if name.endswith("_") else [name]
    wanted = [a for a in _arguments(op) if a != _OUT]
    for packet in filter(None, (getattr(getattr(torch.ops, namespace), n, None) for n in names)):
        ordered = sorted(packet.overloads(), key=lambda overload: overload != op._overloadname)
        for found in (getattr(packet, o) for o in ordered):
            if _arguments(found) == wanted and not found._schema.is_mutable:
                return found  # type: ignore[no-any-return]
    return None


_OUT = ("out", "Tensor")


def _arguments(op: OpOverload) -> list[tuple[str, str]]:
    return [(a.name, str(a.type)) for a in op._schema.arguments]


def argument_at(node: Node, position: int) -> Any:
    """What a call passes for an argument of its operator, by position or by name; None if nothing."""
    if position < len(node.args):
        return node.args[position]
    target: Any = node.target
    schema = target._schema.arguments
    return node.kwargs.get(schema[position].name) if position < len(schema) else None


def writes(node: Node) -> bool:
    """Whether the schema of the operator that ``node`` calls says that it writes an argument."""
    return isinstance(node.target, OpOverload) and bool(effects(node.target).writes)


def updates_statistics(node: Node) -> bool:
    """Whether ``node`` is a normalization that updates its running statistics."""
    target: Any = node.target
    position = HIDDEN_WRITES.get(target) if isinstance(target, OpOverload) else None
    return position is not None and bool(node.args[position]) and node.args[3] is not None


def viewed(node: Node) -> list[Node]:
    """Arguments whose memory the results of ``node`` may share, as far as its operator tells."""
    if not isinstance(node.target, OpOverload):
        return [a for a in node.args[:1] if isinstance(a, Node)] if node.op == "call_function" else []
    given = [argument_at(node, k) for k in effects(node.target).views]
    return [n for a in given for n in (a if isinstance(a, (list, tuple)) else [a]) if isinstance(n, Node)]

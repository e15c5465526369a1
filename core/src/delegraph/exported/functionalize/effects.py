"""Which arguments an operator writes, and which its results may share memory with.

Schemas say most of it. The tables here add the operators whose schemas leave something out.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload
from torch.fx import Node

aten = torch.ops.aten

_UNDECLARED_ALIASES = frozenset(
    f"aten::{name}" for name in ("einsum", "atleast_1d", "atleast_2d", "atleast_3d", "meshgrid", "cartesian_prod")
)
"""Composite operators that may return their argument, or a view of it, which their schemas do not say."""

_STATISTICS: dict[Any, tuple[int, ...]] = {aten.batch_norm.default: (3, 4), aten.instance_norm.default: (3, 4)}
"""Operator -> positions of ``running_mean`` and ``running_var``: it writes them, and its schema does not say so."""
_TRAINING = 5
"""Position of the argument of these operators that says whether they write: ``training``, ``use_input_stats``."""


class Effects(NamedTuple):
    """What a schema says of memory: positions of arguments that are written, and that results may alias."""

    writes: tuple[int, ...]
    views: tuple[int, ...]


@cache
def effects(target: Any) -> Effects:
    """Effects by the schema of ``target``; none if it is no operator."""
    if not isinstance(target, OpOverload):
        return Effects((), ())
    infos = [(k, a.alias_info) for k, a in enumerate(target._schema.arguments) if a.alias_info is not None]
    writes = tuple(k for k, info in infos if info.is_write)
    undeclared = target._schema.name in _UNDECLARED_ALIASES
    views = range(len(target._schema.arguments)) if undeclared else (k for k, _ in infos)
    return Effects(writes, tuple(views))


def written_positions(node: Node) -> tuple[int, ...]:
    """Positions of the arguments that a call writes: those that the schema names, or running statistics."""
    positions = _STATISTICS.get(node.target)
    if positions is None:
        return effects(node.target).writes
    return positions if node.args[_TRAINING] and node.args[positions[0]] is not None else ()


def written_arguments(node: Node) -> list[Node]:
    """The tensors that a call writes."""
    return _nodes_at(node, written_positions(node))


def aliased_arguments(node: Node) -> list[Node]:
    """Arguments whose memory the results of ``node`` may share, as far as its operator tells."""
    if isinstance(node.target, OpOverload):
        return _nodes_at(node, effects(node.target).views)
    return [a for a in node.args[:1] if isinstance(a, Node)] if node.op == "call_function" else []


def _nodes_at(node: Node, positions: tuple[int, ...]) -> list[Node]:
    """The nodes among arguments, each of which may be passed by position or by name, alone or in a list."""
    schema = node.target._schema.arguments if isinstance(node.target, OpOverload) else ()
    given = (node.args[k] if k < len(node.args) else node.kwargs.get(schema[k].name) for k in positions)
    return [n for a in given for n in (a if isinstance(a, (list, tuple)) else [a]) if isinstance(n, Node)]


@cache
def functional_form(op: OpOverload) -> OpOverload | None:
    """The operator that computes what ``op`` writes, if there is one whose other arguments are the same.

    ``relu_`` -> ``relu``, ``add.out`` -> ``add.Tensor``; ``normal_``, whose name is taken, -> ``normal_functional``.
    """
    namespace, name = op._schema.name.split("::")
    names = [name[:-1], f"{name[:-1]}_functional"] if name.endswith("_") else [name]
    wanted = [a for a in _arguments(op) if a != ("out", "Tensor")]
    for packet in filter(None, (getattr(getattr(torch.ops, namespace), n, None) for n in names)):
        # the overload of the same name first: several may take the same arguments
        for overload in sorted(packet.overloads(), key=lambda overload: overload != op._overloadname):
            candidate: OpOverload = getattr(packet, overload)
            if _arguments(candidate) == wanted and not candidate._schema.is_mutable:
                return candidate
    return None


def _arguments(op: OpOverload) -> list[tuple[str, str]]:
    return [(a.name, str(a.type)) for a in op._schema.arguments]

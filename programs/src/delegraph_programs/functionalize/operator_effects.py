"""Reads which arguments operators write, and which may share memory with results.

Schemas declare most of it. The tables here add the operators with incomplete schemas.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload
from torch.fx import Node

from ..operator_schema import bound_arguments

aten = torch.ops.aten

_UNDECLARED_ALIASES = frozenset(
    {
        "aten::einsum",
        "aten::atleast_1d",
        "aten::atleast_2d",
        "aten::atleast_3d",
        "aten::meshgrid",
        "aten::cartesian_prod",
    }
)
"""Composite operators that may return an argument or a view, undeclared."""
_STATISTICS: dict[Any, str] = {
    aten.batch_norm.default: "training",
    aten.instance_norm.default: "use_input_stats",
}
"""Operator that writes running statistics, undeclared -> argument that enables it."""


class Effects(NamedTuple):
    """The effects of an operator on memory.

    ``writes``: names of the written arguments. ``views``: names of the arguments that
    may share memory with the results.
    """

    writes: tuple[str, ...]
    views: tuple[str, ...]


@cache
def effects(target: Any) -> Effects:
    """Return the effects of ``target``, by its schema and ``_UNDECLARED_ALIASES``.

    A target that is no operator has no effects.
    """
    if not isinstance(target, OpOverload):
        return Effects((), ())
    arguments = target._schema.arguments
    aliased = {a.name: a.alias_info for a in arguments if a.alias_info is not None}
    views = list(aliased)
    if target._schema.name in _UNDECLARED_ALIASES:
        views = [a.name for a in arguments]
    writes = [name for name, info in aliased.items() if info.is_write]
    return Effects(tuple(writes), tuple(views))


def written_names(node: Node) -> tuple[str, ...]:
    """Return names of the arguments that a call writes, running statistics included."""
    if node.target not in _STATISTICS:
        return effects(node.target).writes
    arguments = bound_arguments(node)
    is_enabled = arguments[_STATISTICS[node.target]]
    if not is_enabled or arguments["running_mean"] is None:
        return ()
    return ("running_mean", "running_var")


def written_arguments(node: Node) -> list[Node]:
    """Return the nodes of the tensors that a call writes."""
    return _nodes_named(node, written_names(node))


def aliased_arguments(node: Node) -> list[Node]:
    """Return the arguments that may share memory with the results of ``node``.

    For a function that is no operator, such as ``getitem``, it is the first argument.
    """
    if isinstance(node.target, OpOverload):
        return _nodes_named(node, effects(node.target).views)
    if node.op != "call_function":
        return []
    return [a for a in node.args[:1] if isinstance(a, Node)]


def _nodes_named(node: Node, names: tuple[str, ...]) -> list[Node]:
    """Return the nodes that ``node`` has as arguments ``names``, or in lists there."""
    arguments = bound_arguments(node) if names else {}
    values: list[Any] = []
    for name in names:
        argument = arguments[name]
        values += argument if isinstance(argument, (list, tuple)) else [argument]
    return [v for v in values if isinstance(v, Node)]


@cache
def functional_form(op: OpOverload) -> OpOverload | None:
    """Return the operator that returns the values that ``op`` writes, or None.

    It takes the same arguments except ``out``. Examples: ``relu_`` -> ``relu``,
    ``add.out`` -> ``add.Tensor``, and ``normal_`` -> ``normal_functional``, because
    ``normal`` takes other arguments.
    """
    namespace, name = op._schema.name.split("::")
    names = [name[:-1], f"{name[:-1]}_functional"] if name.endswith("_") else [name]
    wanted = [a for a in _arguments(op) if a != ("out", "Tensor")]
    for packet_name in names:
        packet = getattr(getattr(torch.ops, namespace), packet_name, None)
        if packet is None:
            continue
        # several overloads may take the same arguments: prefer the one of the same name
        overloads = packet.overloads()
        for overload in sorted(overloads, key=lambda name: name != op._overloadname):
            candidate: OpOverload = getattr(packet, overload)
            if _arguments(candidate) == wanted and not candidate._schema.is_mutable:
                return candidate
    return None


def _arguments(op: OpOverload) -> list[tuple[str, str]]:
    """Return names and types of an operator's arguments."""
    return [(a.name, str(a.type)) for a in op._schema.arguments]

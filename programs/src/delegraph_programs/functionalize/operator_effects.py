"""Which arguments an operator writes, and which of them its results may share memory
with.

Schemas say most of it. The tables here add the operators whose schemas leave something
out.
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
    f"aten::{name}"
    for name in (
        "einsum",
        "atleast_1d",
        "atleast_2d",
        "atleast_3d",
        "meshgrid",
        "cartesian_prod",
    )
)
"""Composite operators that may return their argument or a view of it, although their
schemas do not say so.
"""

_STATISTICS: dict[Any, str] = {
    aten.batch_norm.default: "training",
    aten.instance_norm.default: "use_input_stats",
}
"""Operators that write running statistics, although their schemas do not say so -> the
argument that switches it on.
"""


class Effects(NamedTuple):
    """What a schema says about memory.

    ``writes``: names of the written arguments. ``views``: names of the arguments whose
    memory the results may share.
    """

    writes: tuple[str, ...]
    views: tuple[str, ...]


@cache
def effects(target: Any) -> Effects:
    """The effects that the schema of ``target`` declares; no effects if ``target`` is
    no operator.

    All arguments count as views for the operators whose schemas leave that out
    (``_UNDECLARED_ALIASES``).
    """
    if not isinstance(target, OpOverload):
        return Effects((), ())
    arguments = target._schema.arguments
    aliased = {a.name: a.alias_info for a in arguments if a.alias_info is not None}
    views = (
        [a.name for a in arguments]
        if target._schema.name in _UNDECLARED_ALIASES
        else aliased
    )
    return Effects(
        tuple(name for name, info in aliased.items() if info.is_write), tuple(views)
    )


def written_names(node: Node) -> tuple[str, ...]:
    """Names of the arguments that a call writes, running statistics included."""
    if node.target not in _STATISTICS:
        return effects(node.target).writes
    arguments = bound_arguments(node)
    writes = (
        arguments[_STATISTICS[node.target]] and arguments["running_mean"] is not None
    )
    return ("running_mean", "running_var") if writes else ()


def written_arguments(node: Node) -> list[Node]:
    """The nodes of the tensors that a call writes."""
    return _nodes_named(node, written_names(node))


def aliased_arguments(node: Node) -> list[Node]:
    """The arguments whose memory the results of ``node`` may share, according to the
    operator's schema.

    The first argument, if ``node`` calls a function that is no operator, such as
    ``getitem``.
    """
    if isinstance(node.target, OpOverload):
        return _nodes_named(node, effects(node.target).views)
    return (
        [a for a in node.args[:1] if isinstance(a, Node)]
        if node.op == "call_function"
        else []
    )


def _nodes_named(node: Node, names: tuple[str, ...]) -> list[Node]:
    """The nodes among the arguments of ``node`` with these ``names``, also those inside
    lists.
    """
    arguments = bound_arguments(node) if names else {}
    values: list[Any] = []
    for name in names:
        argument = arguments[name]
        values += argument if isinstance(argument, (list, tuple)) else [argument]
    return [v for v in values if isinstance(v, Node)]


@cache
def functional_form(op: OpOverload) -> OpOverload | None:
    """The operator that returns what ``op`` writes, and takes the same arguments but
    for ``out``; None if none does.

    ``relu_`` -> ``relu``, ``add.out`` -> ``add.Tensor``, but ``normal_`` ->
    ``normal_functional``: ``normal`` is another operator.
    """
    namespace, name = op._schema.name.split("::")
    names = [name[:-1], f"{name[:-1]}_functional"] if name.endswith("_") else [name]
    wanted = [a for a in _arguments(op) if a != ("out", "Tensor")]
    for packet in filter(
        None, (getattr(getattr(torch.ops, namespace), n, None) for n in names)
    ):
        # several overloads may take the same arguments: the one of the same name is the
        # right one
        for overload in sorted(
            packet.overloads(), key=lambda overload: overload != op._overloadname
        ):
            candidate: OpOverload = getattr(packet, overload)
            if _arguments(candidate) == wanted and not candidate._schema.is_mutable:
                return candidate
    return None


def _arguments(op: OpOverload) -> list[tuple[str, str]]:
    """Names and types of an operator's arguments."""
    return [(a.name, str(a.type)) for a in op._schema.arguments]

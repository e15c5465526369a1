"""Local functionalisation: in-place calls become their functional twins, without retracing the graph.

Exported graphs keep in-place operators, and a mutation has no data edge and is not in the signature. One walk finds,
from schemas and storages, which values may share memory. A write to a value of which nobody else sees a part later is
a plain rebinding; a write to a whole buffer or input becomes a mutation in the signature. Whatever this cannot prove
is left to ``run_decompositions({})`` by the caller.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import Graph, GraphModule, Node

aten = torch.ops.aten

_UNDECLARED = ("einsum", "atleast_1d", "atleast_2d", "atleast_3d", "meshgrid", "cartesian_prod")
UNDECLARED_ALIASES = frozenset(f"aten::{name}" for name in _UNDECLARED)
"""Composite operators that may return their argument, or a view of it, although their schemas do not say so."""

HIDDEN_WRITES = {aten.batch_norm.default: 5, aten.instance_norm.default: 5}
"""Operators that write running statistics (argument 3 on) without saying so, if the argument here is true."""


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
    """The functional form of an in-place operator with the same arguments, if there is one: ``relu_`` -> ``relu``."""
    namespace, name = op._schema.name.split("::")
    packet = getattr(getattr(torch.ops, namespace), name[:-1], None) if name.endswith("_") else None
    found: OpOverload | None = getattr(packet, op._overloadname, None)
    same = found is not None and [a.name for a in found._schema.arguments] == [a.name for a in op._schema.arguments]
    return found if same else None


@dataclass
class Mutations:
    """What the walk found: placeholder -> the node that holds its last value; and what it could not prove."""

    last_value: dict[Node, Node] = field(default_factory=dict)
    unproven: list[str] = field(default_factory=list)


def functionalise(graph: Graph) -> Mutations:
    """Replace in-place calls of ``graph`` (changed in place) by functional twins."""
    nodes = list(graph.nodes)
    found = Mutations(unproven=[w for n in nodes for w in _hidden(n)])
    writers = [n for n in nodes if isinstance(n.target, OpOverload) and effects(n.target).writes]
    if writers and not found.unproven:
        walk = _Walk(nodes)
        for node in writers:
            why = walk.rebind(node, found)
            found.unproven += [f"{node.target}: {why}"] if why else []
    return found


def _hidden(node: Node) -> Iterable[str]:
    """Writes that neither the schema nor the graph shows."""
    if _updates_statistics(node):
        yield f"{node.target} writes its running statistics"
    if isinstance(node.target, HigherOrderOperator):
        yield from (f"{node.target} writes inside a branch" for i in node.all_input_nodes if _writes_inside(i))


def _updates_statistics(node: Node) -> bool:
    target: Any = node.target
    position = HIDDEN_WRITES.get(target)
    return position is not None and bool(node.args[position]) and node.args[3] is not None


def _writes_inside(node: Node) -> bool:
    body = getattr(node.graph.owning_module, str(node.target), None) if node.op == "get_attr" else None
    return isinstance(body, GraphModule) and any(
        (isinstance(n.target, OpOverload) and effects(n.target).writes) or any(True for _ in _hidden(n))
        for n in body.graph.nodes
    )


class _Walk:
    """Memory families (values that may share storage) and whole values of one graph."""

    def __init__(self, nodes: list[Node]) -> None:
        self.position = {n: k for k, n in enumerate(nodes)}
        self.whole: dict[Node, Node] = {}
        self.parent: dict[Node, Node] = {n: n for n in nodes}
        self._join(nodes)
        self.family: dict[Node, list[Node]] = {}
        for node in nodes:
            self.family.setdefault(self._root(node), []).append(node)

    def _join(self, nodes: list[Node]) -> None:
        owner: dict[int, Node] = {}
        for node in nodes:
            for storage in _storages(node.meta.get("val")):
                self._merge(owner.setdefault(storage, node), node)
            for shared in _viewed(node):
                self._merge(shared, node)

    def _merge(self, a: Node, b: Node) -> None:
        self.parent[self._root(b)] = self._root(a)

    def _root(self, node: Node) -> Node:
        while self.parent[node] is not node:
            self.parent[node] = node = self.parent[self.parent[node]]
        return node

    def rebind(self, node: Node, found: Mutations) -> str | None:
        """Make ``node`` functional; or say why that cannot be proven right."""
        op: Any = node.target
        functional, written = twin(op), effects(op).writes
        if functional is None or written != (0,):
            return "no functional form with the same arguments"
        value: Any = node.args[0]
        why = self._seen_elsewhere(node, value) or _changes_type(functional, node, value)
        if why is None:
            self._replace(node, value, functional, found)
        return why

    def _seen_elsewhere(self, node: Node, value: Node) -> str | None:
        here, whole = self.position[node], self.whole.get(value, value)
        for other in self.family[self._root(value)]:
            same = self.whole.get(other, other) is whole
            if not same and self.position[other] < here and (other.op == "placeholder" or self._last_use(other) > here):
                return f"{other.name} shares memory with what it writes"
        return None

    def _last_use(self, node: Node) -> int:
        return max((self.position[u] for u in node.users), default=-1)

    def _replace(self, node: Node, value: Node, functional: OpOverload, found: Mutations) -> None:
        whole = self.whole.setdefault(node, self.whole.get(value, value))
        here = self.position[node]
        node.target = functional
        node._rename(node.name.rstrip("_"))
        for old in [n for n in self.family[self._root(value)] if self.whole.get(n, n) is whole and n is not node]:
            old.replace_all_uses_with(node, delete_user_cb=lambda user: self.position[user] > here)
        if whole.op == "placeholder":
            found.last_value[whole] = node


def _storages(val: Any) -> list[int]:
    if isinstance(val, torch.Tensor):
        return [val.untyped_storage()._cdata]
    return [s for v in val for s in _storages(v)] if isinstance(val, (list, tuple)) else []


def _viewed(node: Node) -> list[Node]:
    """Arguments whose memory the results of ``node`` may share, as far as its operator tells."""
    if not isinstance(node.target, OpOverload):
        return [a for a in node.args[:1] if isinstance(a, Node)] if node.op == "call_function" else []
    given = [node.args[k] for k in effects(node.target).views if k < len(node.args)]
    return [n for a in given for n in (a if isinstance(a, (list, tuple)) else [a]) if isinstance(n, Node)]


def _changes_type(functional: OpOverload, node: Node, value: Node) -> str | None:
    """In-place calls keep the written tensor's dtype; the twin may promote it."""
    mine = value.meta["val"]
    others = [i.meta["val"] for i in node.all_input_nodes if isinstance(i.meta.get("val"), torch.Tensor)]
    if all(o.dtype == mine.dtype for o in others):
        return None
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    with mine.fake_mode:
        made = functional(*args, **kwargs)
    return None if made.dtype == mine.dtype else f"its functional form gives {made.dtype}, not {mine.dtype}"

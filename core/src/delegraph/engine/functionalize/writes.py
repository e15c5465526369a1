"""Local functionalization: writes become values, without retracing the graph.

Exported graphs keep in-place operators, and a mutation has no data edge and is not in the signature. One walk in graph
order keeps, for every tensor that is written, the value that it has now. An in-place call becomes its functional twin;
a write through a view becomes a scatter into the tensor that the view was taken of; a view that was taken before a
write is taken again where it is used after it; a write to a parameter, buffer or input becomes a mutation in the
signature. Whatever this cannot prove is left to ``run_decompositions({})`` by the caller.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Graph, Node

from ...source import Source, source_of
from .aliases import Aliases, Unproven
from .effects import argument_at, effects, twin, updates_statistics, writes
from .view_inverse import PACKED, is_plain, scatter, scatter_elements

aten = torch.ops.aten
_TO = aten.to.dtype
_TRAINED_BATCH_NORM = aten._native_batch_norm_legit_functional.default


@dataclass(frozen=True)
class Reason:
    """Why a program cannot be made functional, and the user's line that is in the way."""

    text: str
    source: Source | None = None

    def __str__(self) -> str:
        return f"{self.text}, at {self.source.place}" if self.source else self.text


@dataclass
class Mutations:
    """What the walk found.

    ``last_value``: placeholder -> the node that holds its last value; ``origin``: node that was added -> the call that
    it was added for; ``unproven``: which calls could not be made functional, and why.
    """

    last_value: dict[Node, Node] = field(default_factory=dict)
    origin: dict[Node, Node] = field(default_factory=dict)
    unproven: list[Reason] = field(default_factory=list)


def functionalize(graph: Graph, state: Collection[Node] = ()) -> Mutations:
    """Make ``graph`` functional, in place; ``state`` are its placeholders of parameters and buffers."""
    nodes = list(graph.nodes)
    found = Mutations()
    writers = {n: list(written_arguments(n)) for n in nodes if writes(n) or updates_statistics(n)}
    if writers:
        _walk(graph, nodes, writers, state, found)
    return found


def written_arguments(node: Node) -> Iterator[Node]:
    """The tensors that a call writes."""
    target: Any = node.target
    positions = effects(target).writes or (3, 4)
    for given in (argument_at(node, k) for k in positions):
        yield from (n for n in (given if isinstance(given, (list, tuple)) else [given]) if isinstance(n, Node))


def _walk(
    graph: Graph, nodes: list[Node], writers: dict[Node, list[Node]], state: Collection[Node], found: Mutations
) -> None:
    node = next(iter(writers))
    try:
        aliases = Aliases(nodes, [n for written in writers.values() for n in written], state)
        rewrite = _Rewrite(graph, aliases, writers, found)
        for node in nodes:
            rewrite.visit(node)
    except Unproven as e:
        text = f"{node.target}: {e}" if isinstance(node.target, OpOverload) else str(e)
        found.unproven.append(Reason(text, source_of(node)))


class _Rewrite:
    """What every written tensor, and every view of it, holds at one point of the graph."""

    def __init__(self, graph: Graph, aliases: Aliases, writers: dict[Node, list[Node]], found: Mutations) -> None:
        self.graph, self.aliases, self.writers, self.found = graph, aliases, writers, found
        self.version: dict[Node, int] = {}
        self.value: dict[Node, tuple[int, Node]] = {}
        self.types: dict[Any, torch.dtype] = {}
        self.here: Node
        self.after: Node

    def visit(self, node: Node) -> None:
        """Let ``node`` use what its arguments hold now; then do what it writes."""
        self.here, self.after = node, node.next
        if node.op == "output":
            self._close()
        self._renew_arguments(node)
        if node in self.writers:
            self._write(node)
        elif node in self.aliases.source:
            self._enter_view(node)

    def _renew_arguments(self, node: Node) -> None:
        for given in node.all_input_nodes:
            now = self._now(given)
            if now is not given:
                node.replace_input_with(given, now)

    def _version(self, node: Node) -> int:
        return self.version.get(self.aliases.root_of[node], 0)

    def _now(self, node: Node) -> Node:
        """The node that has the present value of ``node``; a view that is out of date is taken again."""
        if node not in self.aliases.root_of or not self._version(node):
            return node
        named = self.aliases.name_of[node]
        version, value = self.value.get(named, (0, named))
        if version != self._version(node):
            value = self._again(named)
            self.value[named] = (self._version(node), value)
        return value

    def _again(self, view: Node) -> Node:
        base = self._now(self.aliases.source[view])
        with self.graph.inserting_before(self.here):
            made = self.graph.call_function(view.target, (base, *view.args[1:]), dict(view.kwargs))  # type: ignore[arg-type]
        made.meta = dict(view.meta)
        self.found.origin[made] = view
        self._loosen(made, view)
        return made

    def _enter_view(self, node: Node) -> None:
        if self._version(node):
            self._loosen(node, node)
            self.value[node] = (self._version(node), node)

    def _loosen(self, made: Node, view: Node) -> None:
        """Values that were put together again need not have the strides that the tensor had which they stand for."""
        if made.target is aten.view.default:
            made.target = aten.reshape.default
        elif made.target is aten.as_strided.default:
            made.args = self._strided(made, view)
        elif made.target in PACKED:
            made.args = (self._packed(made, made.args[0]), *made.args[1:])  # type: ignore[arg-type]

    def _strided(self, made: Node, view: Node) -> tuple[Any, ...]:
        """Arguments of an ``as_strided``: it shows the memory of its argument, whatever part that one shows."""
        root, val = self.aliases.root_of[view], view.meta["val"]
        size, stride, offset = list(val.shape), list(val.stride()), val.storage_offset()
        last = offset + sum((d - 1) * s for d, s in zip(size, stride, strict=True))
        if not is_plain(root.meta["val"]) or not isinstance(last, int) or last >= root.meta["val"].numel():
            raise Unproven(f"{view.name} shows memory in a way that is not known")
        return self._packed(made, self._now(root)), size, stride, offset

    def _packed(self, before: Node, value: Node) -> Node:
        with self.graph.inserting_before(before):
            made = self.graph.call_function(aten.clone.default, (value,), {"memory_format": torch.contiguous_format})
        made.meta = {**value.meta, "val": value.meta["val"].contiguous()}
        self.found.origin[made] = before
        return made

    def _write(self, node: Node) -> None:
        op: Any = node.target
        functional = twin(op)
        if updates_statistics(node):
            self._batch_norm(node)
        elif functional is None or len(effects(op).writes) != 1:
            raise Unproven("no functional form with the same arguments")
        elif torch.Tag.inplace_view in op.tags:
            self._reshape_in_place(node, functional)
        else:
            (written,) = self.writers[node]
            if _shape(node) != _shape(written):
                raise Unproven("it changes the size of the tensor that it writes")
            _retarget(node, functional)
            self._store(written, self._result(node, functional), node)

    def _reshape_in_place(self, node: Node, functional: OpOverload) -> None:
        """``unsqueeze_`` and the like: a view like any other, since the graph uses the call's result from here on."""
        (before,) = self.writers[node]
        shared = before.op == "placeholder" or any(user > node for user in before.users)
        if shared and functional is not aten.detach.default:
            raise Unproven("it changes the shape of a tensor that is used under another name")
        _retarget(node, functional)
        if node in self.aliases.source:
            self._enter_view(node)

    def _result(self, node: Node, functional: OpOverload) -> Node:
        """The value that is written: in the written tensor's dtype, and for a copy into a view what is copied."""
        mine = node.meta["val"]
        source = node.args[1] if functional is aten.copy.default else None
        if isinstance(source, Node) and self.aliases.name_of[node] in self.aliases.source and _alike(source, node):
            return source
        dtype = self._type_of(node, functional)
        if dtype is mine.dtype:
            return node
        with self.graph.inserting_before(self.after):
            made = self.graph.call_function(_TO, (node, mine.dtype))
        made.meta = dict(node.meta)
        node.meta["val"] = mine.to(dtype)
        self.found.origin[made] = node
        return made

    def _type_of(self, node: Node, functional: OpOverload) -> torch.dtype:
        """The dtype of the functional form, which may promote; asked once for arguments of the same types."""
        vals = [(n.meta["val"].dtype, n.meta["val"].dim() == 0) for n in node.all_input_nodes if _is_tensor(n)]
        others = [a for a in (*node.args, *node.kwargs.values()) if not isinstance(a, Node)]
        key = (functional, *vals, *(repr(a) if isinstance(a, torch.dtype) else type(a) for a in others))
        if key not in self.types:
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
            with node.meta["val"].fake_mode:
                self.types[key] = functional(*args, **kwargs).dtype
        return self.types[key]

    def _store(self, written: Node, new: Node, writer: Node) -> None:
        """``writer`` puts ``new`` into ``written``; through views, into what they were taken of."""
        named, root = self.aliases.name_of[written], self.aliases.root_of[written]
        held = {named: new}
        before = self.after.prev
        with self.graph.inserting_before(self.after):
            for view, base in self._steps(named):
                value = scatter(self.graph, view, self._now(base), held[named])
                if value is None:
                    held = {root: self._scatter_elements(list(self._views(self.aliases.name_of[written])), root, new)}
                    break
                held[base], named = value, base
        while before.next is not self.after:
            before = before.next
            self.found.origin.setdefault(before, writer)
        version = self.version[root] = self.version.get(root, 0) + 1
        self.value.update({n: (version, value) for n, value in held.items()})

    def _steps(self, named: Node) -> Iterator[tuple[Node, Node]]:
        """Each view on the way to the tensor, with what it was taken of: for a piece of a list, what the list is of."""
        views = list(self._views(named))
        for view in (v for v in views if _is_tensor(v)):
            source = self.aliases.source[view]
            yield view, self.aliases.source.get(source, source) if view.target is operator.getitem else source

    def _views(self, named: Node) -> Iterator[Node]:
        while named in self.aliases.source:
            yield named
            named = self.aliases.source[named]

    def _scatter_elements(self, views: list[Node], root: Node, new: Node) -> Node:
        made = scatter_elements(self.graph, views[::-1], self._now(root), new)
        if made is None:
            raise Unproven(f"a write through {', '.join(str(v.target) for v in views)} has no inverse")
        return made

    def _batch_norm(self, node: Node) -> None:
        """In training, the functional form returns the new statistics as results 3 and 4."""
        if node.target is not aten.batch_norm.default:
            raise Unproven("it writes its running statistics")
        with self.graph.inserting_before(node):
            made = self.graph.call_function(_TRAINED_BATCH_NORM, node.args[:8])
            args = torch.fx.map_arg(made.args, lambda n: n.meta["val"])
            with node.meta["val"].fake_mode:
                made.meta = {**node.meta, "val": _TRAINED_BATCH_NORM(*args)}
            result, mean, var = (self._part(made, k) for k in (0, 3, 4))
        self.found.origin.update(dict.fromkeys((made, result, mean, var), node))
        for written, new in zip(self.writers[node], (mean, var), strict=True):
            self._store(written, new, node)
        node.replace_all_uses_with(result)
        self.graph.erase_node(node)

    def _part(self, call: Node, k: int) -> Node:
        made = self.graph.call_function(operator.getitem, (call, k))
        made.meta = {**call.meta, "val": call.meta["val"][k]}
        return made

    def _close(self) -> None:
        """At the end, every written placeholder has a last value: a node of its own, since signatures go by names."""
        last = self.found.last_value
        for node in [n for n in self.aliases.root_of if n.op == "placeholder" and self._version(n)]:
            value = self._now(node)
            last[node] = self._second(value) if value in last.values() else value

    def _second(self, value: Node) -> Node:
        with self.graph.inserting_before(self.here):
            made = self.graph.call_function(aten.clone.default, (value,))
        made.meta = dict(value.meta)
        self.found.origin[made] = value
        return made


def _retarget(node: Node, functional: OpOverload) -> None:
    node.target = functional
    node.kwargs = {k: v for k, v in node.kwargs.items() if k != "out"}
    node._rename(node.name.rstrip("_"))


def _shape(node: Node) -> list[str]:
    return list(map(str, node.meta["val"].shape))


def _is_tensor(node: Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _alike(a: Node, b: Node) -> bool:
    x, y = a.meta["val"], b.meta["val"]
    static = all(isinstance(d, int) for d in (*x.shape, *y.shape))
    return static and x.shape == y.shape and x.dtype is y.dtype and x.device == y.device

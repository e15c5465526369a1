"""Which values are views of which: exactly, where it matters.

A coarse walk joins all values that *may* share memory into families, by the schemas' alias annotations and by the
storages of the recorded fake values (a program that was loaded from a file has lost its storages, schemas are silent
about some composites). Only members of families that are written are then looked at one by one: each is a tensor of its
own, the same tensor as another member under a second name, or a view of one by a known call.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node

from .effects import effects, viewed

aten = torch.ops.aten
_DETACH = aten.detach_.default


class Unproven(Exception):
    """A write that cannot be made functional locally; the text says why."""


class Aliases:
    """Views and second names among the members of written families.

    ``source``: view -> the member that it shows a part of; ``name_of``: member -> the one that stands for the tensor
    (the views' sources, too, are such); ``root_of``: member -> the tensor that all of its family are views of.
    """

    def __init__(self, nodes: Iterable[Node], written: Collection[Node], state: Collection[Node]) -> None:
        self.source: dict[Node, Node] = {}
        self.name_of: dict[Node, Node] = {}
        self.root_of: dict[Node, Node] = {}
        self._state = state
        for family in families(nodes, written):
            self._relate(family)

    def _relate(self, family: list[Node]) -> None:
        owners: dict[int, Node] = {}
        for node in family:
            self._place(node)
            for storage in storages(node.meta.get("val")) if self._is_memory(node) else ():
                if owners.setdefault(storage, self.root_of[node]) is not self.root_of[node]:
                    self._place_by_storage(node, owners[storage])

    def _is_memory(self, node: Node) -> bool:
        """Not what returns several tensors of their own; they are unpacked next.

        Nor what returns the argument that it writes: for a buffer that the module replaced, torch records the new
        tensor as the value of the ``copy_`` that it adds.
        """
        if isinstance(node.target, OpOverload) and effects(node.target).writes:
            return False
        return node in self.source or isinstance(node.meta.get("val"), torch.Tensor)

    def _place(self, node: Node) -> None:
        """Enter ``node`` as a tensor of its own, a second name, or a view of one of its arguments."""
        base = next((n for n in _candidates(node, self.root_of) if self._shares(node, n)), None)
        if base is None:
            self.name_of[node] = self.root_of[node] = node
        elif _same_tensor(node, base):
            self.name_of[node], self.root_of[node] = self.name_of[base], self.root_of[base]
        elif base is node.args[0]:
            self.name_of[node], self.root_of[node] = node, self.root_of[base]
            self.source[node] = self.name_of[base]
        else:
            raise Unproven(f"{node.name} shares memory with {base.name} in a way that is not known")

    def _shares(self, node: Node, base: Node) -> bool:
        if node.target is operator.getitem:
            return base in self.source
        if {*storages(node.meta.get("val"))} & {*storages(base.meta.get("val"))}:
            return True
        if not isinstance(node.target, OpOverload) or base not in viewed(node):
            return False
        return bool(effects(node.target).writes) or node.target in LIST_VIEWS or _shares_when_called(node, base)

    def _place_by_storage(self, node: Node, owner: Node) -> None:
        """Two names of one parameter or buffer are one tensor; any other shared storage is not understood."""
        both_state = node in self._state and owner in self._state
        if not (both_state and _geometry(node) == _geometry(owner)):
            raise Unproven(f"{node.name} shares memory with {owner.name} in a way that is not known")
        self.name_of[node] = self.root_of[node] = owner


def families(nodes: Iterable[Node], written: Collection[Node]) -> list[list[Node]]:
    """Values that may share memory with a written one, in graph order (union-find)."""
    union = _Union()
    ordered = list(nodes)
    for node in ordered:
        union.add(node)
    wanted = {union.root(n) for n in written}
    found: dict[Node, list[Node]] = {}
    for node in ordered:
        if (root := union.root(node)) in wanted:
            found.setdefault(root, []).append(node)
    return list(found.values())


class _Union:
    def __init__(self) -> None:
        self.parent: dict[Node, Node] = {}
        self.owner: dict[int, Node] = {}

    def add(self, node: Node) -> None:
        self.parent[node] = node
        for storage in storages(node.meta.get("val")):
            self._merge(self.owner.setdefault(storage, node), node)
        for shared in viewed(node):
            self._merge(shared, node)

    def _merge(self, a: Node, b: Node) -> None:
        self.parent[self.root(b)] = self.root(a)

    def root(self, node: Node) -> Node:
        while self.parent[node] is not node:
            self.parent[node] = node = self.parent[self.parent[node]]
        return node


def storages(val: Any) -> list[int]:
    """Identities of the storages behind a recorded value."""
    if isinstance(val, torch.Tensor):
        while torch._C._functorch.is_functorch_wrapped_tensor(val):  # recorded inside of a vmap
            val = torch._C._functorch.get_unwrapped(val)
        return [val.untyped_storage()._cdata]
    return [s for v in val for s in storages(v)] if isinstance(val, (list, tuple)) else []


def _candidates(node: Node, members: Collection[Node]) -> list[Node]:
    """What ``node`` may be a view of: arguments that its operator names, then all others, of those in the family."""
    named = [*viewed(node), *node.all_input_nodes] if node.op == "call_function" else []
    return [n for n in dict.fromkeys(named) if n in members]


def _shares_when_called(node: Node, base: Node) -> bool:
    """``reshape`` and the like return a view or a copy; which one, the call on the recorded values says."""
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    op: Any = node.target
    with base.meta["val"].fake_mode:
        return bool({*storages(op(*args, **kwargs))} & {*storages(base.meta["val"])})


def _same_tensor(node: Node, base: Node) -> bool:
    """A result of an in-place call is its argument; so is what has the same place and layout in the same storage."""
    target: Any = node.target
    if isinstance(target, OpOverload) and effects(target).writes:
        return target is _DETACH or torch.Tag.inplace_view not in target.tags
    return target is not operator.getitem and _geometry(node) == _geometry(base)


def _geometry(node: Node) -> Any:
    val = node.meta.get("val")
    if not isinstance(val, torch.Tensor):
        return node
    return val.dtype, tuple(val.shape), tuple(val.stride()), val.storage_offset(), val.is_conj(), val.is_neg()


LIST_VIEWS: frozenset[Any] = frozenset(
    {
        aten.chunk.default,
        aten.split.Tensor,
        aten.split.default,
        aten.split.sizes,
        aten.split_with_sizes.default,
        aten.tensor_split.sections,
        aten.tensor_split.indices,
        aten.unbind.int,
    }
)
"""Operators that return a list of views of their first argument."""

"""Finds the views of each tensor that a program writes.

A write has to reach everything that shares the memory, and nothing else, so the answer
must be exact. It has two steps:

First, values that *may* share memory are joined into families, by the schemas of calls
and by the storages of the recorded fake values. Neither is enough alone: a program that
was loaded from a file has lost its storages, and the schemas of some composite
operators declare no aliases.

Then each member of a family with a written tensor is classified. It is a separate
tensor, a second name of another member, or a view of another member by a known call. If
that cannot be shown, ``Unproven`` is raised, and torch has to retrace the program.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node

from ..operator_schema import overloads
from ..reachable_nodes import find_root
from .operator_effects import aliased_arguments, effects

aten = torch.ops.aten

LIST_VIEWS = overloads(
    "chunk.default split.Tensor split.default split.sizes split_with_sizes.default"
    " tensor_split.sections tensor_split.indices unbind.int"
)
"""Operators that return a list of views of their first argument."""


class Unproven(Exception):
    """A write that cannot be made functional here; the message explains why."""


class Aliases:
    """The memory relations among the members of each written family.

    ``source``: view -> the member that it is a view of. ``name_of``: member -> the
    first member that is the same tensor, usually itself. ``root_of``: member -> the
    tensor behind it, of which it is a view, a view of a view, or a name.
    """

    def __init__(
        self, nodes: Iterable[Node], written: Collection[Node], state: Collection[Node]
    ) -> None:
        """Find the families among ``nodes``, and classify their members.

        A family is a group of nodes that may share memory, of which one is written.
        ``nodes``: in graph order. ``written``: the nodes that some call writes.
        ``state``: placeholders of parameters and buffers. Raises Unproven if it is
        unknown how a member shares memory.
        """
        self.source: dict[Node, Node] = {}
        self.name_of: dict[Node, Node] = {}
        self.root_of: dict[Node, Node] = {}
        self._state = state
        for family in families(nodes, written):
            root_in: dict[int, Node] = {}  # storage -> the root of the tensors in it
            for node in family:
                self._classify(node)
                if not self._has_own_storage(node):
                    continue
                # a storage with two roots: a relation that no schema declares
                for storage in storages(node.meta.get("val")):
                    root = root_in.setdefault(storage, self.root_of[node])
                    if root is not self.root_of[node]:
                        self._join_by_storage(node, root)

    def _classify(self, node: Node) -> None:
        """Record that ``node`` is a separate tensor, a second name, or a view.

        A view must be one of the first argument. Raises Unproven if the node shares
        memory with an argument in any other way.
        """
        # The first argument that shares memory is the base. Arguments that the schema
        # calls aliased come first: others may be in the family by chance.
        candidates: dict[Node, None] = {}  # each once, because ``_shares`` may be slow
        if node.op == "call_function":
            arguments = [*aliased_arguments(node), *node.all_input_nodes]
            candidates = dict.fromkeys(arguments)
        members = (n for n in candidates if n in self.root_of)
        base = next((n for n in members if self._shares(node, n)), None)
        if base is None:  # a separate tensor
            self.name_of[node] = node
            self.root_of[node] = node
        elif _is_same_tensor(node, base):  # a second name
            self.name_of[node] = self.name_of[base]
            self.root_of[node] = self.root_of[base]
        elif base is node.args[0]:  # a view
            self.name_of[node] = node
            self.root_of[node] = self.root_of[base]
            self.source[node] = self.name_of[base]
        else:
            raise Unproven(
                f"{node.name} shares memory with {base.name} in an unknown way"
            )

    def _shares(self, node: Node, base: Node) -> bool:
        """Return whether ``node`` shares memory with its argument ``base``."""
        if node.target is operator.getitem:
            # ``base`` is a list; its items are views if it was classified as a view
            return base in self.source
        if have_common_storage(node.meta.get("val"), base.meta.get("val")):
            return True
        if not isinstance(node.target, OpOverload):
            return False
        if base not in aliased_arguments(node):
            return False
        # In-place calls and list views always share memory with an aliased argument.
        if effects(node.target).writes or node.target in LIST_VIEWS:
            return True
        return _shares_when_called(node, base)

    def _has_own_storage(self, node: Node) -> bool:
        """Return whether the recorded value of ``node`` has the storage of its tensor."""
        # If the module replaced a buffer, torch adds a ``copy_`` to the buffer. It
        # records the new tensor as the value of that call, which does not have the
        # buffer's storage.
        if effects(node.target).writes:
            return False
        # A list of tensors that are no views has no single storage; each tensor is
        # checked at its ``getitem``.
        return node in self.source or isinstance(node.meta.get("val"), torch.Tensor)

    def _join_by_storage(self, node: Node, root: Node) -> None:
        """Make ``node`` a second name of ``root``, with which it shares a storage.

        Raises Unproven unless both are placeholders of the same parameter or buffer.
        """
        both_state = node in self._state and root in self._state
        if not (both_state and _geometry(node) == _geometry(root)):
            raise Unproven(
                f"{node.name} shares memory with {root.name} in an unknown way"
            )
        self.name_of[node] = self.root_of[node] = root


def families(nodes: Iterable[Node], written: Collection[Node]) -> list[list[Node]]:
    """Return the groups of nodes that may share memory and have a ``written`` node.

    Two nodes are in one group if their recorded values have a common storage, or if one
    is an aliased argument of the other. Groups are in graph order.
    """
    parent: dict[Node, Node] = {}
    first_with: dict[int, Node] = {}
    for node in nodes:
        parent[node] = node
        # for each of its storages, the first node with that storage
        own = storages(node.meta.get("val"))
        same_storage = [first_with.setdefault(storage, node) for storage in own]
        for related in (*same_storage, *aliased_arguments(node)):
            parent[find_root(parent, node)] = find_root(parent, related)
    wanted = {find_root(parent, n) for n in written}
    by_root: dict[Node, list[Node]] = {}
    for node in parent:
        root = find_root(parent, node)
        if root in wanted:
            by_root.setdefault(root, []).append(node)
    return list(by_root.values())


def storages(val: Any) -> list[int]:
    """Return the identities of the storages of a recorded tensor, or of a list of them.

    Other values have none.
    """
    if isinstance(val, torch.Tensor):
        # values that were recorded inside of a vmap are wrapped
        while torch._C._functorch.is_functorch_wrapped_tensor(val):
            val = torch._C._functorch.get_unwrapped(val)
        return [val.untyped_storage()._cdata]
    if isinstance(val, (list, tuple)):
        return list(itertools.chain.from_iterable(map(storages, val)))
    return []


def have_common_storage(val: Any, other: Any) -> bool:
    """Return whether two recorded values have a storage in common."""
    return not set(storages(val)).isdisjoint(storages(other))


def _shares_when_called(node: Node, base: Node) -> bool:
    """Return whether a call that may copy, such as ``reshape``, returns a view here.

    The operator is called on the recorded fake values to find out.
    """
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    op: Any = node.target
    with base.meta["val"].fake_mode:
        return have_common_storage(op(*args, **kwargs), base.meta["val"])


def _is_same_tensor(node: Node, base: Node) -> bool:
    """Return whether ``node``, which shares memory with ``base``, is a second name of it.

    Otherwise it is a view. A second name is an in-place call that keeps the shape, or
    has the same dtype, shape, strides and offset. An item of a list of views is always
    a view.
    """
    target: Any = node.target
    if effects(target).writes:
        changes_shape = torch.Tag.inplace_view in target.tags
        return target is aten.detach_.default or not changes_shape
    if target is operator.getitem:
        return False
    return bool(_geometry(node) == _geometry(base))


def _geometry(node: Node) -> Any:
    """Return a key that is equal for two names of one tensor.

    It has dtype, shape, strides, offset, and whether conjugation or negation is
    pending. If the value of ``node`` is no tensor, the key is ``node`` itself. Symbolic
    sizes are compared as expressions: torch cannot compare a data-dependent size with a
    number.
    """
    val = node.meta.get("val")
    if not isinstance(val, torch.Tensor):
        return node
    numbers = [
        n.node.expr if isinstance(n, torch.SymInt) else n
        for n in (val.storage_offset(), *val.stride(), *val.shape)
    ]
    return val.dtype, val.dim(), numbers, val.is_conj(), val.is_neg()

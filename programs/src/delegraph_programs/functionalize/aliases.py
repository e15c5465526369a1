"""Which values are views of which, for the tensors that a program writes.

A write has to reach everything that shares the memory, and nothing else, so the answer
must be exact. But most tensors are never written, so it is worked out for few. First,
all values that *may* share memory are joined into families, by the alias annotations of
schemas and by the storages of the recorded fake values. Neither is enough alone: a
program that was loaded from a file has lost its storages, and the schemas of some
composite operators say nothing. Then each member of a family that is written is placed:
it is a tensor of its own, a second name of another member, or a view of another member
by a known call. Where that cannot be shown the write is ``Unproven``, and torch has to
retrace the program.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node

from ..node_sets import find_root
from ..operator_schema import overloads
from .operator_effects import aliased_arguments, effects

aten = torch.ops.aten

LIST_VIEWS = overloads(
    "chunk.default split.Tensor split.default split.sizes split_with_sizes.default"
    " tensor_split.sections tensor_split.indices unbind.int"
)
"""Operators that return a list of views of their first argument."""


class Unproven(Exception):
    """A write that cannot be made functional here; the message says why."""


class Aliases:
    """How the members of each written family share memory.

    ``source``: view -> the member that it is a view of. ``name_of``: member -> the
    member that represents the same tensor; views and their sources represent
    themselves. ``root_of``: member -> the tensor that all members of its family are
    views of.
    """

    def __init__(
        self, nodes: Iterable[Node], written: Collection[Node], state: Collection[Node]
    ) -> None:
        """Find the families among ``nodes``, and enter how the members of each one
        share memory.

        A family is a group of nodes that may share memory, of which one is written.
        ``nodes``: in graph order. ``written``: the nodes that some call writes.
        ``state``: placeholders of parameters and buffers. Raises Unproven if it cannot
        be told how a member shares memory.
        """
        self.source: dict[Node, Node] = {}
        self.name_of: dict[Node, Node] = {}
        self.root_of: dict[Node, Node] = {}
        self._state = state
        for family in families(nodes, written):
            root_in: dict[int, Node] = {}  # storage -> the root of the tensors in it
            for node in family:
                self._enter(node)
                # a second root in a storage is only allowed if both are names of one
                # buffer
                for storage in (
                    storages(node.meta.get("val"))
                    if self._has_own_storage(node)
                    else ()
                ):
                    if (
                        root_in.setdefault(storage, self.root_of[node])
                        is not self.root_of[node]
                    ):
                        self._join_by_storage(node, root_in[storage])

    def _enter(self, node: Node) -> None:
        """Enter ``node`` as a tensor of its own, a second name of an argument, or a
        view of its first argument.

        Raises Unproven if it shares memory with an argument in any other way.
        """
        # The first argument that shares memory is the base. Arguments that the schema
        # calls aliased come first: others may be in the family by chance.
        inputs = (
            [*aliased_arguments(node), *node.all_input_nodes]
            if node.op == "call_function"
            else []
        )
        candidates = dict.fromkeys(inputs)
        base = next(
            (n for n in candidates if n in self.root_of and self._shares(node, n)), None
        )
        if base is None:  # a tensor of its own
            self.name_of[node] = self.root_of[node] = node
        elif _is_same_tensor(node, base):  # a second name
            self.name_of[node], self.root_of[node] = (
                self.name_of[base],
                self.root_of[base],
            )
        elif base is node.args[0]:  # a view
            self.name_of[node], self.root_of[node] = node, self.root_of[base]
            self.source[node] = self.name_of[base]
        else:
            raise Unproven(
                f"{node.name} shares memory with {base.name} in a way that is not known"
            )

    def _shares(self, node: Node, base: Node) -> bool:
        """Whether ``node`` shares memory with ``base``, a member of the family that it
        takes as an argument.
        """
        if node.target is operator.getitem:
            # an item of a list shares memory if the list, ``base``, was entered as a
            # view
            return base in self.source
        if not {*storages(node.meta.get("val"))}.isdisjoint(
            storages(base.meta.get("val"))
        ):
            return True
        if not isinstance(node.target, OpOverload) or base not in aliased_arguments(
            node
        ):
            return False
        # In-place calls and list views always share memory with an aliased argument;
        # others are tried out.
        return (
            bool(effects(node.target).writes)
            or node.target in LIST_VIEWS
            or _shares_when_called(node, base)
        )

    def _has_own_storage(self, node: Node) -> bool:
        """Whether the storage of the value recorded for ``node`` is really the storage
        of its tensor.
        """
        # An in-place call returns its argument. For a buffer that the module replaced,
        # torch records the new tensor as the value of the ``copy_`` that it adds, which
        # has nothing to do with the buffer's storage.
        if effects(node.target).writes:
            return False
        # A list of tensors that are no views has no one storage; each tensor is looked
        # at where it is unpacked.
        return node in self.source or isinstance(node.meta.get("val"), torch.Tensor)

    def _join_by_storage(self, node: Node, root: Node) -> None:
        """Make ``node`` a second name of ``root``, with which it shares a storage.

        Raises Unproven unless both are placeholders of the same parameter or buffer.
        """
        both_state = node in self._state and root in self._state
        if not (both_state and _geometry(node) == _geometry(root)):
            raise Unproven(
                f"{node.name} shares memory with {root.name} in a way that is not known"
            )
        self.name_of[node] = self.root_of[node] = root


def families(nodes: Iterable[Node], written: Collection[Node]) -> list[list[Node]]:
    """Groups of nodes that may share memory, in graph order; only groups in which a
    node is ``written``.

    Two nodes are in one group if their recorded values have a storage in common, or if
    one is an argument that the schema of the other's operator calls aliased.
    """
    parent: dict[Node, Node] = {}
    first_with: dict[int, Node] = {}
    for node in nodes:
        parent[node] = node
        # the first node with each of the storages of ``node``: itself, if there was
        # none before
        same_storage = [
            first_with.setdefault(s, node) for s in storages(node.meta.get("val"))
        ]
        for related in (*same_storage, *aliased_arguments(node)):
            parent[find_root(parent, node)] = find_root(parent, related)
    wanted = {find_root(parent, n) for n in written}
    by_root: dict[Node, list[Node]] = {}
    for node in parent:
        if (root := find_root(parent, node)) in wanted:
            by_root.setdefault(root, []).append(node)
    return list(by_root.values())


def storages(val: Any) -> list[int]:
    """Identities of the storages behind ``val``, a recorded tensor or a list of them;
    none for other values.
    """
    if isinstance(val, torch.Tensor):
        # it was recorded inside of a vmap
        while torch._C._functorch.is_functorch_wrapped_tensor(val):
            val = torch._C._functorch.get_unwrapped(val)
        return [val.untyped_storage()._cdata]
    return (
        [s for v in val for s in storages(v)] if isinstance(val, (list, tuple)) else []
    )


def _shares_when_called(node: Node, base: Node) -> bool:
    """Whether a call such as ``reshape``, which may copy, returns a view of ``base``.

    Calls the operator on the recorded fake values to find out.
    """
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    op: Any = node.target
    with base.meta["val"].fake_mode:
        return not {*storages(op(*args, **kwargs))}.isdisjoint(
            storages(base.meta["val"])
        )


def _is_same_tensor(node: Node, base: Node) -> bool:
    """Whether ``node`` is a second name of ``base``, and not a view that shows it in
    another way.

    ``node`` shares memory with ``base``. It is a second name if it is an in-place call
    that keeps the shape, or if its value has the same dtype, shape, strides and offset.
    An item of a list of views is always a view: ``base`` is the list, which has no
    value to compare with.
    """
    target: Any = node.target
    if effects(target).writes:
        return (
            target is aten.detach_.default or torch.Tag.inplace_view not in target.tags
        )
    return target is not operator.getitem and _geometry(node) == _geometry(base)


def _geometry(node: Node) -> Any:
    """What two names of one tensor have in common.

    That is dtype, shape, strides, offset, and whether conjugation or negation is
    pending. If the value of ``node`` is no tensor, it is ``node`` itself, which equals
    no other node. Sizes that are known at run time only are compared as they are
    written: torch cannot say whether one that comes from data is equal to a number.
    """
    val = node.meta.get("val")
    if not isinstance(val, torch.Tensor):
        return node
    numbers = [
        n.node.expr if isinstance(n, torch.SymInt) else n
        for n in (val.storage_offset(), *val.stride(), *val.shape)
    ]
    return val.dtype, val.dim(), numbers, val.is_conj(), val.is_neg()

"""Makes a graph functional in place: each write becomes a new value for later calls.

Exported graphs keep in-place operators. No edge of the graph leads from such a write to
its readers, and the signature does not mention it. So nothing may be reordered, dropped
or delegated before it is removed. torch can remove it by retracing the whole program,
which costs more than the export did. Instead, one walk in graph order tracks, for every
written tensor, the node that holds its present value:

- An in-place call becomes its functional form, and its result the tensor's new value.
- A write through a view also makes a new value of the tensor behind the view
  (``view_inverse``).
- A view that was taken before a write, and is used after it, is taken again from the
  new value.
- A write to a parameter, buffer or input becomes a mutation in the signature.

Writes that cannot be converted are reported as ``unproven``. The caller then has torch
retrace the program.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload
from torch.fx import Graph, Node

from ..memory_overlap import extent
from ..required_strides import (
    COPIES_BY_PLACE,
    NEED_PACKED,
    WINDOWS,
    dense_order,
    memory_root,
    sees_layout,
)
from ..source_line import Source, source_of
from ..symbolic_sizes import are_static, comparable
from .aliases import Aliases, Unproven
from .operator_effects import effects, functional_form, written_arguments, written_names
from .view_inverse import (
    insert_computed,
    insert_inverse,
    insert_inverse_by_elements,
    is_packed,
)

aten = torch.ops.aten
_TRAINED_BATCH_NORM = aten._native_batch_norm_legit_functional.default
"""Batch norm in training that returns the new running statistics."""


class Reason(NamedTuple):
    """Why a program cannot be made functional, and the user's line that causes it."""

    text: str
    source: Source | None = None

    def __str__(self) -> str:
        """Return the text, with the place of the line if it is known."""
        return f"{self.text}, at {self.source.place}" if self.source else self.text


@dataclass
class Mutations:
    """The changes that ``functionalize`` made to a graph.

    ``last_value``: written placeholder -> the node that holds its last value.
    ``origin``: added node -> the call that it was added for. ``unproven``: the reasons
    why a write could not be made functional; if there are any, the graph is unusable.
    """

    last_value: dict[Node, Node] = field(default_factory=dict)
    origin: dict[Node, Node] = field(default_factory=dict)
    unproven: list[Reason] = field(default_factory=list)


def functionalize(graph: Graph, state: Collection[Node] = ()) -> Mutations:
    """Make ``graph`` functional, in place; return the changes.

    If a write is unproven, the graph is unusable. ``state``: its placeholders of
    parameters and buffers.
    """
    mutations = Mutations()
    # The walk leaves out inserted calls, which already use present values.
    nodes = list(graph.nodes)
    writers = {n: written_arguments(n) for n in nodes if written_names(n)}
    if not writers:
        return mutations
    # reported if ``Aliases`` raises Unproven, before the walk
    node = next(iter(writers))
    try:
        written = list(itertools.chain.from_iterable(writers.values()))
        aliases = Aliases(nodes, written, state)
        rewrite = _Rewrite(graph, aliases, writers, mutations)
        for node in nodes:
            rewrite.visit(node)
    except Unproven as e:
        text = f"{node.target}: {e}" if isinstance(node.target, OpOverload) else str(e)
        mutations.unproven.append(Reason(text, source_of(node)))
    return mutations


class _Rewrite:
    """Tracks the present value of every written tensor and its views during the walk.

    Eager writes in graph order, so one walk is enough. Values that may share memory are
    a family, and its root is the tensor that the others are views of (``Aliases``).

    ``version``: root -> how often its memory was written so far. ``value``: member of a
    family -> a version, and the node that held the member's value then. A view with an
    older version than its root is out of date, and is taken again when it is used. Most
    views are never used after a write, and cost nothing this way. ``reordered``: nodes
    computed from a new value; the order of their elements in memory may differ from
    that of the written tensor. ``here``: the node that is visited. ``after``: the node
    that follows it, before which new calls are inserted.

    ``aliases``: which values share memory. ``writers``: call -> the tensors that it
    writes. ``mutations`` is filled during the walk.
    """

    def __init__(
        self,
        graph: Graph,
        aliases: Aliases,
        writers: dict[Node, list[Node]],
        mutations: Mutations,
    ) -> None:
        """Begin before the first node of ``graph``, when nothing is written yet."""
        self.graph = graph
        self.aliases = aliases
        self.writers = writers
        self.mutations = mutations
        self.version: dict[Node, int] = {}
        self.value: dict[Node, tuple[int, Node]] = {}
        self.reordered: set[Node] = set()
        self.dtypes: dict[Any, torch.dtype] = {}  # results of ``_dtype_of``
        self.here: Node
        self.after: Node

    def visit(self, node: Node) -> None:
        """Let ``node`` use present values; then make its writes functional.

        In this order, ``x.add_(x)`` reads the old ``x``. A view is recorded as up to
        date instead. A call that depends on strides is adapted to those of new values.
        """
        self.here = node
        self.after = node.next
        if node.op == "output":  # all writes have been visited
            self._record_last_values()
        # the first argument, before it is replaced by its present value
        read_operand: Any = node.args[0] if node.args else None
        for operand in node.all_input_nodes:
            current = self._current(operand)
            if current is not operand:
                node.replace_input_with(operand, current)
            if current is not operand or operand in self.reordered:
                self.reordered.add(node)
        if node in self.writers:
            self._write(node)
        elif node in self.aliases.source:
            self._record_view(node)
        elif node.target in COPIES_BY_PLACE and self._was_written(read_operand):
            self._copy_by_place(node, read_operand)
        # ``view`` fails on some strides, ``reshape`` on none
        elif node in self.reordered and node.target is aten.view.default:
            node.target = aten.reshape.default
        elif node in self.reordered and sees_layout(node):
            self._restore_order(node)

    def _version(self, node: Node) -> int:
        """Return how often the memory of ``node``, a member of a family, was written."""
        return self.version.get(self.aliases.root_of[node], 0)

    def _was_written(self, node: Node) -> bool:
        """Return whether the memory of ``node`` was written before the visited node."""
        return node in self.aliases.root_of and self._version(node) > 0

    def _current(self, node: Node) -> Node:
        """Return the node that holds the present value of ``node``.

        That is ``node`` itself if its memory was not written yet. A view that is out of
        date is taken again, before the visited node, from the present value of its
        source.
        """
        if not self._was_written(node):
            return node
        name = self.aliases.name_of[node]
        # without a record, ``name`` holds its value from before the first write
        version, value = self.value.get(name, (0, name))
        if version != self._version(node):
            args = (self._current(self.aliases.source[name]), *name.args[1:])
            value = self._insert(
                self.here,
                name.target,
                *args,
                like=name,
                origin=name,
                kwargs=name.kwargs,
            )
            self._allow_any_strides(value, name)
            self.value[name] = (self._version(node), value)
        return value

    def _record_view(self, node: Node) -> None:
        """Record that the view ``node`` is up to date: its operand is a present value.

        Nothing is recorded before the first write: until then every view is up to date.
        """
        if self._version(node):
            self._allow_any_strides(node, node)
            self.value[node] = (self._version(node), node)

    def _allow_any_strides(self, node: Node, view: Node) -> None:
        """Make ``node``, a call of ``view`` on a new value, independent of strides.

        The old tensor had the strides of its allocation; the new value has those of the
        last operator. ``aten.view`` fails on some of them, and ``as_strided`` would
        silently read other elements.
        """
        if node.target is aten.view.default:
            node.target = aten.reshape.default
        elif node.target in NEED_PACKED:
            node.args = (self._insert_packed(node, node.args[0]), *node.args[1:])  # type: ignore[arg-type]
        elif node.target in WINDOWS:
            val = view.meta["val"]
            node.target = aten.as_strided.default
            self._read_by_place(
                node, view, list(val.shape), list(val.stride()), val.storage_offset()
            )

    def _copy_by_place(self, node: Node, member: Node) -> None:
        """Let ``node`` (in ``COPIES_BY_PLACE``) read the present memory of ``member``.

        ``as_strided_copy`` reads the present value of the root. The other operators
        read the present value of ``member`` itself, in the recorded order. They could
        read memory around its elements if it is a view, or does not begin at the start
        of its storage. Then Unproven is raised.
        """
        name = self.aliases.name_of[member]
        val = member.meta["val"]
        if node.target is aten.as_strided_copy.default:
            size, stride, *rest = node.args[1:]
            offset = rest[0] if rest else node.kwargs.get("storage_offset")
            if offset is None:
                offset = val.storage_offset()
            node.kwargs = {}
            self._read_by_place(node, member, size, stride, offset)
        elif name in self.aliases.source or val.storage_offset():
            raise Unproven(
                f"{node.name} may read memory around the elements of {member.name}"
            )
        else:
            self._restore_order(node)

    def _read_by_place(
        self, node: Node, member: Node, size: Any, stride: Any, offset: Any
    ) -> None:
        """Let ``node`` show elements of the memory of ``member`` in its present state.

        ``size``, ``stride`` and ``offset`` are as in ``as_strided``: the offset counts
        elements from the start of the storage. The present value of the root has a new
        storage, which starts with its first element. Raises Unproven unless ``node``
        shows only elements of the root at known places.
        """
        root = self.aliases.root_of[member]
        val = root.meta["val"]
        shown = member.meta["val"]
        same_elements = (
            val.dtype is shown.dtype
            and val.is_conj() == shown.is_conj()
            and val.is_neg() == shown.is_neg()
        )
        places = (*size, *stride, offset, val.storage_offset())
        if not same_elements or not is_packed(val) or not are_static(places):
            raise Unproven(f"it is unknown which elements {member.name} reads")
        first = offset - val.storage_offset()
        if first < 0 or first + extent(size, stride) > val.numel():
            raise Unproven(
                f"{member.name} reads memory around the elements of {root.name}"
            )
        packed = self._insert_packed(node, self._current(root))
        node.args = (packed, size, stride, first)

    def _restore_order(self, reader: Node) -> None:
        """Copy the operands of ``reader`` into the recorded order in memory.

        Most kernels give their result the order of their operands. The order of a new
        value may differ from the recorded one, and so may that of values computed from
        it (``reordered``). Only calls that read memory, such as ``reader``, notice it.
        """
        operands = filter(_is_tensor, reader.all_input_nodes)
        for root in dict.fromkeys(map(memory_root, operands)):
            # innermost dimension first; None for a tensor with gaps
            order = dense_order(root.meta["val"])
            if root in self.reordered and root.op == "call_function" and order:
                users = list(root.users)  # without the permutation, which is next
                # permute so that the outermost dimension in memory is the first, copy
                # contiguously, permute back
                there = order[::-1]
                back = [there.index(dim) for dim in range(len(order))]
                permuted = self._insert_permuted(root, there)
                packed = self._insert_packed(permuted.next, permuted)
                copy = self._insert_permuted(packed, back)
                for user in users:
                    user.replace_input_with(root, copy)

    def _insert_permuted(self, value: Node, dims: Sequence[int]) -> Node:
        """Insert a permutation of ``value`` after it, and return it.

        For ``dims`` 0, 1, 2, ... return ``value`` itself.
        """
        if list(dims) == list(range(len(dims))):
            return value
        node = self._insert(
            value.next,
            aten.permute.default,
            value,
            list(dims),
            like=value,
            origin=value,
        )
        node.meta["val"] = value.meta["val"].permute(*dims)
        return node

    def _insert_packed(self, before: Node, value: Node) -> Node:
        """Return a contiguous copy of ``value``, inserted before ``before``."""
        kwargs = {"memory_format": torch.contiguous_format}
        node = self._insert(
            before, aten.clone.default, value, like=value, origin=before, kwargs=kwargs
        )
        # not ``contiguous()``, which may return a tensor with a storage offset
        node.meta["val"] = value.meta["val"].clone(**kwargs)
        return node

    def _insert(
        self,
        before: Node,
        target: Any,
        *args: Any,
        like: Node,
        origin: Node,
        kwargs: Any = None,
    ) -> Node:
        """Insert a call of ``target`` before a node, with the metadata of ``like``.

        ``origin``: the call for which it is inserted; ``mutations.origin`` records it.
        """
        with self.graph.inserting_before(before):
            node = self.graph.call_function(target, args, dict(kwargs or {}))
        node.meta = dict(like.meta)
        self.mutations.origin[node] = origin
        return node

    def _write(self, node: Node) -> None:
        """Make the call ``node``, which writes, functional; record the new values.

        Raises Unproven if the operator has no functional form, or if the call changes
        the size of the tensor.
        """
        op: Any = node.target
        functional = functional_form(op)
        # a norm in training, which does not declare its writes
        if not effects(op).writes:
            self._update_statistics(node)
        elif functional is None or len(effects(op).writes) != 1:
            raise Unproven(
                "the operator has no functional form with the same arguments"
            )
        elif torch.Tag.inplace_view in op.tags:
            self._reshape_in_place(node, functional)
        else:
            (written,) = self.writers[node]
            shape = comparable(node.meta["val"].shape)
            if shape != comparable(written.meta["val"].shape):
                raise Unproven("it changes the size of the tensor that it writes")
            _retarget(node, functional)
            self._store(written, self._written_value(node, functional), node)

    def _reshape_in_place(self, node: Node, functional: OpOverload) -> None:
        """Turn a call that changes a tensor's shape in place into a plain view.

        An example is ``unsqueeze_``. Later calls use its result. Raises Unproven for
        ``set_``, and if the caller or a later call uses the tensor under its old name:
        its shape would have to change there, too. ``detach_`` changes no shape, and so
        is always possible.
        """
        (old_node,) = self.writers[node]
        # nodes compare by their position in the graph
        used_later = any(user > node for user in old_node.users)
        is_used = used_later or old_node.op == "placeholder"
        # the functional form of ``set_`` declares no views
        if not effects(functional).views:
            raise Unproven("it gives a tensor the memory of another one")
        if is_used and functional is not aten.detach.default:
            raise Unproven(
                "it changes the shape of a tensor that is used under another name"
            )
        _retarget(node, functional)
        if node in self.aliases.source:
            self._record_view(node)

    def _written_value(self, node: Node, functional: OpOverload) -> Node:
        """Return a node with the value that ``node`` writes, in the written dtype.

        Usually it is ``node``, which is functional now. A cast is inserted if its
        operator ``functional`` returns another dtype: in-place calls cast silently.
        """
        written = node.meta["val"]
        if functional is aten.copy.default and self._needs_no_copy(node):
            source: Node = node.args[1]  # type: ignore[assignment]
            return source
        computed_dtype = self._dtype_of(node, functional)
        if computed_dtype is written.dtype:
            return node
        cast = self._insert(
            self.after, aten.to.dtype, node, written.dtype, like=node, origin=node
        )
        # the cast has the metadata of the written value now, and ``node`` its own
        node.meta["val"] = written.to(computed_dtype)
        return cast

    def _needs_no_copy(self, node: Node) -> bool:
        """Return whether the source of a ``copy`` can be the written value itself.

        A value that is written to a view is put into the view's base, which copies it.
        The source must have the type of the view. It must not be expanded (stride 0),
        because its elements share memory.
        """
        source: Any = node.args[1]
        is_view = self.aliases.name_of[node] in self.aliases.source
        if not is_view or not isinstance(source, Node) or not _is_alike(source, node):
            return False
        return 0 not in comparable(source.meta["val"].stride())

    def _dtype_of(self, node: Node, functional: OpOverload) -> torch.dtype:
        """Return the dtype that ``functional`` returns for the arguments of ``node``.

        torch promotes the dtypes of arguments. The result for arguments of the same
        types is computed once and kept in ``dtypes``.
        """
        # Promotion depends on the dtypes of tensors, on which of them are scalars, and
        # on the types of numbers. A number may also be a node: a SymInt or SymFloat.
        kinds: list[Any] = [functional]
        for operand in node.all_input_nodes:
            val = operand.meta["val"]
            if isinstance(val, torch.Tensor):
                kinds.append((val.dtype, val.dim() == 0))
            else:
                kinds.append(type(val))
        for argument in (*node.args, *node.kwargs.values()):
            if isinstance(argument, torch.dtype):
                kinds.append(argument)
            elif not isinstance(argument, Node):
                kinds.append(type(argument))
        key = tuple(kinds)
        if key not in self.dtypes:
            args, kwargs = torch.fx.map_arg(
                (node.args, node.kwargs), lambda n: n.meta["val"]
            )
            with node.meta["val"].fake_mode:
                self.dtypes[key] = functional(*args, **kwargs).dtype
        return self.dtypes[key]

    def _store(self, written: Node, new: Node, writer: Node) -> None:
        """Record that ``writer`` writes ``new`` to ``written``.

        The write reaches every tensor that ``written`` is a view of. Inserts the calls
        that compute their new values. Raises Unproven if a view on the way has no
        inverse.
        """
        name = self.aliases.name_of[written]
        root = self.aliases.root_of[written]
        views = list(self._chain_of_views(name))
        # Walk from the written view to its root. Each step computes the base of a view,
        # with the new value of the view as the part that the view shows.
        new_values = {name: new}
        last = self.after.prev
        with self.graph.inserting_before(self.after):
            for view in filter(_is_tensor, views):
                base = self.aliases.source[view]
                # the base of an item is a list of views, which holds no value
                if view.target is operator.getitem:
                    base = self.aliases.source.get(base, base)
                value = insert_inverse(
                    self.graph, view, self._current(base), new_values[name]
                )
                if value is None:
                    value = insert_inverse_by_elements(
                        self.graph, views[::-1], self._current(root), new
                    )
                    if value is None:
                        raise Unproven(
                            "the new values cannot be written back to the base tensor:"
                            f" {', '.join(str(v.target) for v in views)} has no inverse"
                        )
                    # views in between get no value here: they are taken again
                    new_values = {root: value}
                    break
                new_values[base] = value
                name = base
        # every call that was inserted here was inserted for ``writer``
        while last.next is not self.after:
            last = last.next
            self.mutations.origin.setdefault(last, writer)
        version = self.version[root] = self.version.get(root, 0) + 1
        self.value.update({n: (version, value) for n, value in new_values.items()})

    def _chain_of_views(self, name: Node) -> Iterator[Node]:
        """Yield ``name``, the view behind it, and so on, without the root.

        Yield nothing if ``name`` is no view.
        """
        while name in self.aliases.source:
            yield name
            name = self.aliases.source[name]

    def _update_statistics(self, node: Node) -> None:
        """Replace a norm in training by ``_TRAINED_BATCH_NORM``; store its statistics.

        Of its results, 0 is the normalized tensor, and 3 and 4 are the new running mean
        and variance. For an instance norm, these are of every channel of every sample,
        and the mean over the samples is stored.
        """
        call = self._insert_computed(
            node, _TRAINED_BATCH_NORM, *self._trained_arguments(node)
        )
        result, mean, var = (
            self._insert_computed(node, operator.getitem, call, k) for k in (0, 3, 4)
        )
        if node.target is aten.instance_norm.default:
            result = self._insert_computed(
                node, aten.reshape.default, result, list(node.meta["val"].shape)
            )
            # the statistics [N*C] as [N, C]
            channels = list(node.meta["val"].shape[:2])
            by_sample = [
                self._insert_computed(node, aten.reshape.default, v, channels)
                for v in (mean, var)
            ]
            mean, var = (
                self._insert_computed(node, aten.mean.dim, v, [0]) for v in by_sample
            )
        for written, new in zip(self.writers[node], (mean, var), strict=True):
            self._store(written, new, node)
        node.replace_all_uses_with(result)
        self.graph.erase_node(node)

    def _trained_arguments(self, node: Node) -> list[Any]:
        """Return the arguments of ``_TRAINED_BATCH_NORM`` for ``node``.

        They are input, weight, bias, running mean, running variance, training,
        momentum and eps; the norms have them, too, and a last one that is left out. An
        instance norm is a batch norm of one sample that has the channels of all
        samples. Raises Unproven if its sizes are symbolic.
        """
        if node.target is not aten.instance_norm.default:
            return list(node.args[:8])
        samples, channels, *size = node.meta["val"].shape
        if not are_static((samples, channels, *size)):
            raise Unproven(
                "it writes its running statistics, and its sizes are symbolic"
            )
        input, *by_channel = node.args[:5]
        image = self._insert_computed(
            node, aten.reshape.default, input, [1, samples * channels, *size]
        )
        # once for each sample; weight and bias may be None
        repeated = [
            None
            if v is None
            else self._insert_computed(node, aten.repeat.default, v, [samples])
            for v in by_channel
        ]
        return [image, *repeated, True, *node.args[6:8]]

    def _insert_computed(self, node: Node, target: Any, *args: Any) -> Node:
        """Insert a call before ``node``, and compute its value under fake tensors."""
        with self.graph.inserting_before(node):
            call = insert_computed(self.graph, node, target, *args)
        self.mutations.origin[call] = node
        return call

    def _record_last_values(self) -> None:
        """Record the last value of each placeholder that was written."""
        last = self.mutations.last_value
        for node in self.aliases.root_of:
            if node.op != "placeholder" or not self._was_written(node):
                continue
            value = self._current(node)
            # a signature refers to values by name, so each needs a node of its own
            if value in last.values():
                value = self._insert(
                    self.here, aten.clone.default, value, like=value, origin=value
                )
            last[node] = value


def _retarget(node: Node, functional: OpOverload) -> None:
    """Replace the in-place operator of ``node`` by its functional form.

    The node is renamed: ``relu_`` becomes ``relu``. The argument ``out``, if there is
    one, is dropped: the functional form returns that value.
    """
    node.target = functional
    node.kwargs = {k: v for k, v in node.kwargs.items() if k != "out"}
    node._rename(node.name.rstrip("_"))


def _is_tensor(node: Node) -> bool:
    """Return whether a tensor was recorded for the node."""
    return isinstance(node.meta.get("val"), torch.Tensor)


def _is_alike(a: Node, b: Node) -> bool:
    """Return whether two recorded tensors have equal shapes, dtypes and devices.

    False if a size is symbolic.
    """
    x = a.meta["val"]
    y = b.meta["val"]
    same_shape = are_static((*x.shape, *y.shape)) and x.shape == y.shape
    return same_shape and x.dtype is y.dtype and x.device == y.device

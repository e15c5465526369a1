"""Choose a method by the sizes of a call's inputs."""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from delegraph.errors import InputError
from torch.utils import _pytree as pytree

from .table import LEAF, BucketTable, Row, damaged

Axis = tuple[int, int]
"""Position of a flat input, and an axis of that tensor."""


class Call(NamedTuple):
    """Arguments of a call: flat tensors and numbers, and their structure."""

    leaves: list[Any]
    spec: pytree.TreeSpec

    @classmethod
    def of(cls, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        """Return the arguments of a call, with keyword arguments sorted by name."""
        return cls(*pytree.tree_flatten((tuple(args), dict(sorted(kwargs.items())))))

    def sizes(self, axes: Sequence[Axis]) -> tuple[int, ...]:
        """Return the sizes of the inputs along ``axes``."""
        return tuple(self.leaves[k].shape[axis] for k, axis in axes)

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return positional and keyword arguments."""
        args, kwargs = pytree.tree_unflatten(self.leaves, self.spec)
        return args, kwargs

    def keywords(self) -> list[str]:
        """Return the names of the keyword arguments, in the order of their leaves."""
        return list(self.spec.child(1).context)

    def in_order(self, keywords: Sequence[str]) -> Call:
        """Return the call with keyword arguments in this order, if it has just these."""
        args, kwargs = self.arguments()
        if kwargs.keys() != set(keywords):
            return self
        ordered = {name: kwargs[name] for name in keywords}
        return Call(*pytree.tree_flatten((args, ordered)))


class BucketChoice:
    """Calls the smallest method that holds the inputs; pads inputs and cuts results.

    ``calls`` are the inputs of each method, ``results`` the shapes of its results.
    ``padding`` is the number that fills up smaller inputs, or None.
    """

    def __init__(
        self,
        calls: Mapping[str, Call],
        results: Mapping[str, Sequence[tuple[int, ...]]],
        padding: float | None,
    ) -> None:
        self.padding = padding
        self._axes = bucket_axes(calls)
        self._calls = dict(
            sorted(calls.items(), key=lambda item: math.prod(item[1].sizes(self._axes)))
        )
        self._results = {name: list(results[name]) for name in self._calls}
        self._keywords = next(iter(self._calls.values())).keywords()

    @property
    def methods(self) -> list[str]:
        """Return the names of the methods, smallest first."""
        return list(self._calls)

    def __call__(
        self,
        method: Callable[[str], Callable[..., Any]],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Call the method for the inputs; ``method`` returns it by name.

        Raises InputError if no method holds the inputs.
        """
        call = Call.of(args, kwargs).in_order(self._keywords)
        name = self.choose(call)
        bucket = self._calls[name]
        if call.sizes(self._axes) == bucket.sizes(self._axes):
            return method(name)(*args, **kwargs)
        shapes_by_bucket = [self._results[other] for other in self._calls]
        cuts = [
            self._cut(shapes, call) for shapes in zip(*shapes_by_bucket, strict=True)
        ]
        padded = [
            _pad_to(leaf, like, self.padding)
            for leaf, like in zip(call.leaves, bucket.leaves, strict=True)
        ]
        args, kwargs = Call(padded, call.spec).arguments()
        leaves, spec = pytree.tree_flatten(method(name)(*args, **kwargs))
        results = [
            leaf[cut] if cut else leaf for leaf, cut in zip(leaves, cuts, strict=True)
        ]
        return pytree.tree_unflatten(results, spec)

    def choose(self, call: Call) -> str:
        """Return the name of the method for a call. Raises InputError if none holds it."""
        call = call.in_order(self._keywords)
        for name, bucket in self._calls.items():
            if _holds(bucket, call, self._axes, self.padding is not None):
                return name
        bucket = next(iter(self._calls.values()))
        if bucket.spec != call.spec:
            given = _arguments_text(call)
            wanted = _arguments_text(bucket)
            text = f"the call has {given}; the buckets have {wanted}"
            if given == wanted:
                text = f"{text}, but in other containers"
            raise InputError("input-invalid", text)
        there = ", ".join(map(call_text, self._calls.values()))
        text = f"no bucket holds {call_text(call)}; there are {there}"
        hint = None
        if self.padding is None:
            hint = "padding=0 lets smaller inputs be padded with zeros"
        raise InputError("input-invalid", text, hint=hint)

    def _cut(self, shapes: Sequence[tuple[int, ...]], call: Call) -> tuple[slice, ...]:
        """Return the part of a result that belongs to the call.

        ``shapes`` are those of the result in the buckets. An axis with the sizes of an
        input's axis gets that axis' size in the call.
        """
        in_buckets = [bucket.sizes(self._axes) for bucket in self._calls.values()]
        by_axis = list(zip(*in_buckets, strict=True))
        in_call = call.sizes(self._axes)
        cut = []
        for axis, sizes in enumerate(zip(*shapes, strict=True)):
            if len(set(sizes)) == 1:
                cut.append(slice(None))
                continue
            matching = {
                size
                for size, known in zip(in_call, by_axis, strict=True)
                if known == sizes
            }
            if len(matching) != 1:
                raise _ambiguous_axis(axis, sizes, bool(matching))
            cut.append(slice(matching.pop()))
        return tuple(cut)

    def table(self) -> BucketTable | None:
        """Return the table for a file.

        None if an input is neither tensor nor number, or if a table cannot describe its
        container.
        """
        first = next(iter(self._calls.values()))
        structure = _encode(first.spec)
        values = [leaf for leaf in first.leaves if not isinstance(leaf, torch.Tensor)]
        if structure is None or not all(
            isinstance(v, (bool, int, float, str, type(None))) for v in values
        ):
            return None
        rows = [
            Row(
                name,
                [_leaf_to_json(leaf) for leaf in call.leaves],
                [list(shape) for shape in self._results[name]],
            )
            for name, call in self._calls.items()
        ]
        return BucketTable(self.padding, structure, rows)

    @classmethod
    def of_table(cls, table: BucketTable) -> BucketChoice:
        """Return the choice of a file. Raises FormatError for an inconsistent table."""
        try:
            spec = pytree.tree_structure(_decode(table.structure))
            calls = {
                row.method: Call([_leaf_from_json(leaf) for leaf in row.inputs], spec)
                for row in table.rows
            }
            if any(len(call.leaves) != spec.num_leaves for call in calls.values()):
                raise damaged(
                    "a method and its structure differ in the number of inputs"
                )
            results = {
                row.method: [tuple(shape) for shape in row.results]
                for row in table.rows
            }
            if len({tuple(map(len, shapes)) for shapes in results.values()}) > 1:
                raise damaged("the results of the methods differ in rank")
            return cls(calls, results, table.padding)
        except (
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            RuntimeError,
            RecursionError,
            InputError,
        ) as error:
            raise damaged(str(error)) from error


def _encode(spec: pytree.TreeSpec) -> Any:
    """Return a structure in the form of JSON; None for other containers than these."""
    if spec.is_leaf():
        return LEAF
    children = [_encode(child) for child in spec.children()]
    # the context of a dictionary's spec is the list of its keys
    keyed = spec.type is dict and all(isinstance(key, str) for key in spec.context)
    # Program files keep named tuples and dictionaries as they are.
    is_record = spec.type is namedtuple or issubclass(spec.type, dict)
    if None in children or (is_record and not keyed):
        return None
    if keyed:
        return {
            "dict": [list(pair) for pair in zip(spec.context, children, strict=True)]
        }
    # Other containers, such as dataclasses, are lists in program files.
    return {"tuple" if spec.type is tuple else "list": children}


def _decode(structure: Any) -> Any:
    """Return a value with the structure, with 0 for each leaf."""
    if structure == LEAF:
        return 0
    ((kind, content),) = structure.items()
    if kind == "dict":
        return {key: _decode(child) for key, child in content}
    return {"tuple": tuple, "list": list}[kind](map(_decode, content))


def _leaf_to_json(leaf: Any) -> dict[str, Any]:
    """Return an input for the table of a file: type and shape, or a value."""
    if isinstance(leaf, torch.Tensor):
        return {
            "dtype": str(leaf.dtype).removeprefix("torch."),
            "shape": list(leaf.shape),
        }
    return {"value": leaf}


def _leaf_from_json(described: Mapping[str, Any]) -> Any:
    """Return a meta tensor of this type and shape, or the value."""
    if "value" in described:
        return described["value"]
    dtype = getattr(torch, described["dtype"])
    return torch.empty(described["shape"], dtype=dtype, device="meta")


def bucket_axes(calls: Mapping[Any, Call]) -> list[Axis]:
    """Return the axes of inputs that differ between buckets.

    Raises InputError for buckets that differ in anything but sizes.
    """
    first, *others = calls.values()
    kinds = list(map(_kind, first.leaves))
    for name, call in calls.items():
        if call.spec != first.spec or list(map(_kind, call.leaves)) != kinds:
            text = (
                f"bucket {name!r} has {call_text(call)}, but the first has"
                f" {call_text(first)}: only sizes may differ"
            )
            raise InputError("input-invalid", text)
    if len(set(map(call_text, calls.values()))) < len(calls):
        text = "two buckets have the same sizes; leave out one of them"
        raise InputError("input-invalid", text)
    axes: list[Axis] = []
    for k, leaf in enumerate(first.leaves):
        if not isinstance(leaf, torch.Tensor):
            continue
        for axis, size in enumerate(leaf.shape):
            if any(other.leaves[k].shape[axis] != size for other in others):
                axes.append((k, axis))
    return axes


def _kind(leaf: Any) -> Any:
    """Return the properties that all buckets share: type and rank, or a whole value."""
    return (leaf.dtype, leaf.dim()) if isinstance(leaf, torch.Tensor) else leaf


def _holds(bucket: Call, call: Call, axes: Sequence[Axis], padded: bool) -> bool:
    """Return whether inputs fit a bucket; ``padded``: they may be smaller."""
    if bucket.spec != call.spec:
        return False
    if list(map(_kind, bucket.leaves)) != list(map(_kind, call.leaves)):
        return False
    for k, (ours, theirs) in enumerate(zip(bucket.leaves, call.leaves, strict=True)):
        if not isinstance(ours, torch.Tensor):
            continue
        for axis, (there, given) in enumerate(
            zip(ours.shape, theirs.shape, strict=True)
        ):
            may_pad = padded and (k, axis) in axes
            if given != there and not (may_pad and given < there):
                return False
    return True


def _ambiguous_axis(axis: int, sizes: Sequence[int], matches: bool) -> InputError:
    """Return the error for an axis of a result that matches several input axes or none."""
    listed = ", ".join(map(str, sizes))
    hint = "call program.method(name) with inputs that you padded, and cut its results"
    if matches:
        why = "as several axes of inputs, which differ in this call"
        hint = f"lower another bucket, in which these axes differ; or {hint}"
    else:
        why = "as no axis of an input"
    text = (
        f"axis {axis} of a result has the sizes {listed}, {why}: the part that belongs"
        " to the call is not known"
    )
    return InputError("input-invalid", text, hint=hint)


def _arguments_text(call: Call) -> str:
    """Describe how many inputs are positional, and which are by name."""
    args, kwargs = call.arguments()
    by_name = [f"{', '.join(kwargs)} by name"] if kwargs else []
    return " and ".join([f"{len(args) or 'nothing'} by position", *by_name])


def call_text(call: Call) -> str:
    """Describe the types and sizes of the inputs."""
    shown = [
        f"{str(t.dtype)[6:]}{list(t.shape)}" if isinstance(t, torch.Tensor) else repr(t)
        for t in call.leaves
    ]
    return f"({', '.join(shown)})"


def _pad_to(leaf: Any, like: Any, padding: Any) -> Any:
    """Return ``leaf`` in the corner of a tensor of the bucket's size."""
    if not isinstance(leaf, torch.Tensor) or leaf.shape == like.shape:
        return leaf
    padded = leaf.new_full(like.shape, padding)
    padded[tuple(map(slice, leaf.shape))] = leaf
    return padded

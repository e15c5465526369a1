"""Choose a method by the sizes of a call's inputs.

A program has a method for each *bucket*, a set of sizes of the inputs. A call fits a
bucket if its inputs have these sizes, or can be padded to them.
"""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from delegraph.errors import InputError
from torch.utils import _pytree as pytree

from .table import LEAF, BucketTable, Row, damaged


class Axis(NamedTuple):
    """An axis of a flat input."""

    input: int
    axis: int


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
        return tuple(self.leaves[a.input].shape[a.axis] for a in axes)

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return positional and keyword arguments."""
        args, kwargs = pytree.tree_unflatten(self.leaves, self.spec)
        return args, kwargs

    def keywords(self) -> list[str]:
        """Return the names of the keyword arguments, in the order of their leaves."""
        return list(self.spec.child(1).context)

    def in_order(self, keywords: Sequence[str]) -> Call:
        """Return the call with keyword arguments in this order.

        A call with other keyword arguments is returned unchanged.
        """
        args, kwargs = self.arguments()
        if kwargs.keys() != set(keywords):
            return self
        ordered = {name: kwargs[name] for name in keywords}
        return Call(*pytree.tree_flatten((args, ordered)))


class BucketChoice:
    """Calls the smallest method that holds the inputs; pads inputs and cuts results.

    ``calls`` are the inputs of each method, ``results`` the shapes of its results.
    ``padding`` is the number that fills up smaller inputs. None refuses these.
    """

    def __init__(
        self,
        calls: Mapping[str, Call],
        results: Mapping[str, Sequence[tuple[int, ...]]],
        padding: float | None,
    ) -> None:
        self.padding = padding
        # the axes with sizes that differ between buckets
        self._axes = bucket_axes(calls)
        names = sorted(calls, key=lambda name: math.prod(calls[name].sizes(self._axes)))
        self._calls = {name: calls[name] for name in names}
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
        """Call the smallest method that holds the inputs.

        ``method`` returns a method by name. Raises InputError if no method holds the
        inputs.
        """
        call = Call.of(args, kwargs).in_order(self._keywords)
        name = self.choose(call)
        bucket = self._calls[name]
        if call.sizes(self._axes) == bucket.sizes(self._axes):
            return method(name)(*args, **kwargs)
        # for each result, its shape in every bucket
        shapes_of_results = zip(*self._results.values(), strict=True)
        cuts = [self._cut(shapes, call) for shapes in shapes_of_results]
        padded = [
            _pad_to(leaf, like, self.padding)
            for leaf, like in zip(call.leaves, bucket.leaves, strict=True)
        ]
        args, kwargs = Call(padded, call.spec).arguments()
        leaves, spec = pytree.tree_flatten(method(name)(*args, **kwargs))
        # A number has no axes, so its cut is empty.
        results = [
            leaf[cut] if cut else leaf for leaf, cut in zip(leaves, cuts, strict=True)
        ]
        return pytree.tree_unflatten(results, spec)

    def choose(self, call: Call) -> str:
        """Return the name of the method for a call. Raises InputError if none holds it."""
        call = call.in_order(self._keywords)
        for name, bucket in self._calls.items():
            if _holds(bucket, call, self._axes, pads=self.padding is not None):
                return name
        bucket = next(iter(self._calls.values()))
        if bucket.spec != call.spec:
            given = _arguments_text(call)
            wanted = _arguments_text(bucket)
            text = f"the call has {given}; the buckets have {wanted}"
            if given == wanted:
                text = f"{text}, but in other containers"
            raise InputError("input-invalid", text)
        buckets = ", ".join(map(call_text, self._calls.values()))
        text = f"no bucket holds {call_text(call)}; there are {buckets}"
        hint = None
        if self.padding is None:
            hint = "padding=0 lets smaller inputs be padded with zeros"
        raise InputError("input-invalid", text, hint=hint)

    def _cut(self, shapes: Sequence[tuple[int, ...]], call: Call) -> tuple[slice, ...]:
        """Return the part of a padded result that belongs to the call.

        ``shapes`` are the result's shapes in all buckets. Each axis of the result is
        matched with an axis of an input that has the same size in every bucket. Example:
        both have the sizes 16 and 32. If the input of the call has 20 there, the result
        is cut to 20.
        """
        sizes_in_buckets = [bucket.sizes(self._axes) for bucket in self._calls.values()]
        sizes_of_axes = list(zip(*sizes_in_buckets, strict=True))
        sizes_in_call = call.sizes(self._axes)
        cut = []
        for axis, sizes in enumerate(zip(*shapes, strict=True)):
            if len(set(sizes)) == 1:
                # all buckets have one size: keep the whole axis
                cut.append(slice(None))
                continue
            matching: set[int] = set()
            for in_call, in_buckets in zip(sizes_in_call, sizes_of_axes, strict=True):
                if in_buckets == sizes:
                    matching.add(in_call)
            if len(matching) != 1:
                raise _ambiguous_axis(axis, sizes, matches=bool(matching))
            cut.append(slice(matching.pop()))
        return tuple(cut)

    def table(self) -> BucketTable | None:
        """Return the table for a program file.

        Inputs must be tensors, numbers and strings, in tuples, lists and dictionaries.
        Return None for others: a table cannot describe them.
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
        """Return the choice that a file's table describes; FormatError for a damaged one."""
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
    """Return a structure in the form of JSON; None if the form cannot describe it."""
    if spec.is_leaf():
        return LEAF
    children = [_encode(child) for child in spec.children()]
    if None in children:
        return None
    if spec.type is dict:
        # the context of a dictionary's spec is the list of its keys
        keys = spec.context
        if not all(isinstance(key, str) for key in keys):
            return None
        return {"dict": [list(pair) for pair in zip(keys, children, strict=True)]}
    # This form cannot describe named tuples, or subclasses of dict.
    if spec.type is namedtuple or issubclass(spec.type, dict):
        return None
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
    """Return the axes of inputs whose sizes differ between buckets.

    Raises InputError if two buckets are equal, or differ in more than sizes.
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
                axes.append(Axis(k, axis))
    return axes


def _kind(leaf: Any) -> Any:
    """Return what must be equal in all buckets: type and rank, or the value itself."""
    return (leaf.dtype, leaf.dim()) if isinstance(leaf, torch.Tensor) else leaf


def _holds(bucket: Call, call: Call, axes: Sequence[Axis], pads: bool) -> bool:
    """Return whether a bucket holds a call.

    If ``pads``, the call's sizes along ``axes`` may be smaller than the bucket's.
    """
    if bucket.spec != call.spec:
        return False
    if list(map(_kind, bucket.leaves)) != list(map(_kind, call.leaves)):
        return False
    for k, held in enumerate(bucket.leaves):
        if not isinstance(held, torch.Tensor):
            continue
        for axis, size in enumerate(held.shape):
            given = call.leaves[k].shape[axis]
            is_padded = pads and given < size and Axis(k, axis) in axes
            if given != size and not is_padded:
                return False
    return True


def _ambiguous_axis(axis: int, sizes: Sequence[int], matches: bool) -> InputError:
    """Return the error for an axis of a result that cannot be cut.

    ``matches``: True if it has the sizes of several input axes, False if of none.
    """
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
    text = f"{len(args) or 'nothing'} by position"
    if kwargs:
        text = f"{text} and {', '.join(kwargs)} by name"
    return text


def call_text(call: Call) -> str:
    """Describe the types and sizes of the inputs: ``(float32[2, 3], 1)``."""
    shown = []
    for leaf in call.leaves:
        if isinstance(leaf, torch.Tensor):
            dtype = str(leaf.dtype).removeprefix("torch.")
            shown.append(f"{dtype}{list(leaf.shape)}")
        else:
            shown.append(repr(leaf))
    return f"({', '.join(shown)})"


def _pad_to(leaf: Any, like: Any, padding: Any) -> Any:
    """Pad the end of each axis of ``leaf`` to the size in ``like``; numbers unchanged."""
    if not isinstance(leaf, torch.Tensor) or leaf.shape == like.shape:
        return leaf
    padded = leaf.new_full(like.shape, padding)
    padded[tuple(map(slice, leaf.shape))] = leaf
    return padded

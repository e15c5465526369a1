"""The choice of a method by the sizes of a call's inputs: where one model was lowered
for several sizes.
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

Axis = tuple[int, int]
"""(Position among the flat inputs, axis of that tensor)."""


class Call(NamedTuple):
    """Arguments, flat: the tensors and numbers in them, and how they belong together."""

    leaves: list[Any]
    spec: pytree.TreeSpec

    @classmethod
    def of(cls, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        """Return the arguments of a call, those by keyword sorted by name."""
        return cls(*pytree.tree_flatten((tuple(args), dict(sorted(kwargs.items())))))

    def sizes(self, axes: Sequence[Axis]) -> tuple[int, ...]:
        """The size that these inputs have along each of ``axes``."""
        return tuple(self.leaves[k].shape[axis] for k, axis in axes)

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments, as the call had them."""
        args, kwargs = pytree.tree_unflatten(self.leaves, self.spec)
        return args, kwargs

    def keywords(self) -> list[str]:
        """Names of the keyword arguments, in the order of their leaves."""
        return list(self.spec.child(1).context)

    def in_order(self, keywords: Sequence[str]) -> Call:
        """The call with its keyword arguments in that order; itself if it has others."""
        args, kwargs = self.arguments()
        if kwargs.keys() != set(keywords):
            return self
        return Call(
            *pytree.tree_flatten((args, {name: kwargs[name] for name in keywords}))
        )


class BucketChoice:
    """Takes the smallest method that holds the inputs of a call, pads them, and cuts
    what it returns.

    ``calls``: the inputs of each method, in its order. ``results``: the shapes of the
    results of each method. ``padding``: the number that fills up smaller inputs, or
    None.
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
        """Names of the methods, smallest first."""
        return list(self._calls)

    def __call__(
        self,
        method: Callable[[str], Callable[..., Any]],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Call what ``method`` gives for the name that the inputs choose. Raises
        InputError if no method holds them.
        """
        call = Call.of(args, kwargs).in_order(self._keywords)
        name = self.choose(call)
        bucket = self._calls[name]
        if call.sizes(self._axes) == bucket.sizes(self._axes):
            return method(name)(*args, **kwargs)
        cuts = [
            self._cut(shapes, call)
            for shapes in zip(*(self._results[b] for b in self._calls), strict=True)
        ]
        padded = map(
            _padded, call.leaves, bucket.leaves, [self.padding] * len(call.leaves)
        )
        args, kwargs = Call(list(padded), call.spec).arguments()
        leaves, spec = pytree.tree_flatten(method(name)(*args, **kwargs))
        return pytree.tree_unflatten(
            [
                leaf[cut] if cut else leaf
                for leaf, cut in zip(leaves, cuts, strict=True)
            ],
            spec,
        )

    def choose(self, call: Call) -> str:
        """The name of the method for a call. Raises InputError if none holds it."""
        call = call.in_order(self._keywords)
        for name, bucket in self._calls.items():
            if _holds(bucket, call, self._axes, self.padding is not None):
                return name
        bucket = next(iter(self._calls.values()))
        if bucket.spec != call.spec:
            given = _passed(call)
            wanted = _passed(bucket)
            text = f"the call has {given}; the buckets have {wanted}"
            raise InputError(
                "input-invalid",
                text if given != wanted else f"{text}, nested in another way",
            )
        given = call_text(call)
        there = ", ".join(map(call_text, self._calls.values()))
        hint = (
            None
            if self.padding is not None
            else "padding=0 lets smaller inputs be padded with zeros"
        )
        raise InputError(
            "input-invalid", f"no bucket holds {given}; there are {there}", hint=hint
        )

    def _cut(self, shapes: Sequence[tuple[int, ...]], call: Call) -> tuple[slice, ...]:
        """What belongs to the call, of a result that has these shapes in the buckets."""
        cut = []
        inputs = list(
            zip(
                *(bucket.sizes(self._axes) for bucket in self._calls.values()),
                strict=True,
            )
        )
        for axis, sizes in enumerate(zip(*shapes, strict=True)):
            like = {
                size
                for size, known in zip(call.sizes(self._axes), inputs, strict=True)
                if known == sizes
            }
            if len(set(sizes)) == 1:
                cut.append(slice(None))
            elif len(like) == 1:
                cut.append(slice(like.pop()))
            else:
                why = (
                    "several axes of inputs, which differ here"
                    if like
                    else "no axis of an input"
                )
                text = (
                    f"axis {axis} of a result has the sizes"
                    f" {', '.join(map(str, sizes))}, as {why}"
                )
                hint = (
                    "call program.method(name) with inputs that you padded, and cut"
                    " what it returns"
                )
                if like:
                    hint = (
                        f"lower one bucket more, in which these axes differ; or {hint}"
                    )
                raise InputError(
                    "input-invalid",
                    f"{text}: how much belongs to the call is not known",
                    hint=hint,
                )
        return tuple(cut)

    def table(self) -> BucketTable | None:
        """For a file; None where an input is neither tensor nor number, or in another
        container than a table knows.
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
                [_described(leaf) for leaf in call.leaves],
                [list(shape) for shape in self._results[name]],
            )
            for name, call in self._calls.items()
        ]
        return BucketTable(self.padding, structure, rows)

    @classmethod
    def of_table(cls, table: BucketTable) -> BucketChoice:
        """Of a file. Raises FormatError for a table that does not fit together."""
        try:
            spec = pytree.tree_structure(_decode(table.structure))
            calls = {
                row.method: Call([_stand_in(leaf) for leaf in row.inputs], spec)
                for row in table.rows
            }
            if any(len(call.leaves) != spec.num_leaves for call in calls.values()):
                raise damaged(
                    "a method has another number of inputs than its structure"
                )
            results = {
                row.method: [tuple(shape) for shape in row.results]
                for row in table.rows
            }
            if len({tuple(map(len, shapes)) for shapes in results.values()}) > 1:
                raise damaged("the methods have results of other ranks")
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
    if spec.is_leaf():
        return LEAF
    children = [_encode(child) for child in spec.children()]
    keyed = spec.type is dict and all(isinstance(key, str) for key in spec.context)
    # which program files keep as what they are
    is_record = spec.type is namedtuple or issubclass(spec.type, dict)
    if None in children or (is_record and not keyed):
        return None
    if keyed:
        return {
            "dict": [list(pair) for pair in zip(spec.context, children, strict=True)]
        }
    # dataclasses and the like are lists in program files
    return {"tuple" if spec.type is tuple else "list": children}


def _decode(structure: Any) -> Any:
    """A value of the structure, with 0 for each leaf."""
    if structure == LEAF:
        return 0
    ((kind, content),) = structure.items()
    if kind == "dict":
        return {key: _decode(child) for key, child in content}
    return {"tuple": tuple, "list": list}[kind](map(_decode, content))


def _described(leaf: Any) -> dict[str, Any]:
    if isinstance(leaf, torch.Tensor):
        return {
            "dtype": str(leaf.dtype).removeprefix("torch."),
            "shape": list(leaf.shape),
        }
    return {"value": leaf}


def _stand_in(described: Mapping[str, Any]) -> Any:
    """A tensor of that type and shape without memory, or the value."""
    if "value" in described:
        return described["value"]
    dtype = getattr(torch, described["dtype"])
    return torch.empty(described["shape"], dtype=dtype, device="meta")


def bucket_axes(calls: Mapping[Any, Call]) -> list[Axis]:
    """The axes of inputs whose sizes tell buckets apart. Raises InputError for buckets
    that differ in anything else.
    """
    first, *others = calls.values()
    kinds = list(map(_kind, first.leaves))
    for name, call in calls.items():
        if call.spec != first.spec or list(map(_kind, call.leaves)) != kinds:
            text = (
                f"bucket {name!r} has {call_text(call)} where the first has"
                f" {call_text(first)}: only sizes may differ"
            )
            raise InputError("input-invalid", text)
    if len(set(map(call_text, calls.values()))) < len(calls):
        raise InputError(
            "input-invalid",
            "two buckets have the same sizes, so that it is not clear which is meant",
        )
    return [
        (k, axis)
        for k, leaf in enumerate(first.leaves)
        for axis in range(leaf.dim() if isinstance(leaf, torch.Tensor) else 0)
        if any(other.leaves[k].shape[axis] != leaf.shape[axis] for other in others)
    ]


def _kind(leaf: Any) -> Any:
    """What an input has to share with that of the bucket: type and rank of a tensor,
    the whole of anything else.
    """
    return (leaf.dtype, leaf.dim()) if isinstance(leaf, torch.Tensor) else leaf


def _holds(bucket: Call, call: Call, axes: Sequence[Axis], padded: bool) -> bool:
    """Whether inputs are those of the bucket but for their sizes, and fit."""
    if bucket.spec != call.spec or list(map(_kind, bucket.leaves)) != list(
        map(_kind, call.leaves)
    ):
        return False
    sizes = [
        (there, given, padded and (k, axis) in axes)
        for k, (ours, theirs) in enumerate(zip(bucket.leaves, call.leaves, strict=True))
        if isinstance(ours, torch.Tensor)
        for axis, (there, given) in enumerate(
            zip(ours.shape, theirs.shape, strict=True)
        )
    ]
    return all(
        there == given or (may_pad and there > given) for there, given, may_pad in sizes
    )


def _passed(call: Call) -> str:
    """How many inputs come by position, and which by name."""
    args, kwargs = call.arguments()
    by_name = [f"{', '.join(kwargs)} by name"] if kwargs else []
    return " and ".join([f"{len(args) or 'nothing'} by position", *by_name])


def call_text(call: Call) -> str:
    """Types and sizes of the inputs."""
    shown = [
        f"{str(t.dtype)[6:]}{list(t.shape)}" if isinstance(t, torch.Tensor) else repr(t)
        for t in call.leaves
    ]
    return f"({', '.join(shown)})"


def _padded(leaf: Any, like: Any, padding: Any) -> Any:
    """``leaf`` in the corner of a tensor of the bucket's size."""
    if not isinstance(leaf, torch.Tensor) or leaf.shape == like.shape:
        return leaf
    padded = leaf.new_full(like.shape, padding)
    padded[tuple(map(slice, leaf.shape))] = leaf
    return padded

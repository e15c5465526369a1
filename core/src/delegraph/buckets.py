"""``delegraph.lower_buckets``: one model for several fixed sizes, and the choice between them at run time."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from .api import lower
from .engine.export import arguments_of
from .engine.tracing import TRACING
from .errors import InputError
from .exported_program import output_values, written_targets
from .lowered_program import LoweredProgram
from .program.files import LoadedProgram
from .program.types import Arguments
from .program.verify import Verification
from .report.model import Report

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .api import Choices

Bucket = Arguments | Mapping[str, Any]
"""Example inputs of one size: positional arguments, or keyword arguments by name."""
Axis = tuple[int, int]
"""(Position among the flat inputs, axis of that tensor)."""


class Call(NamedTuple):
    """Arguments, flat: the tensors and numbers in them, and how they belong together."""

    leaves: list[Any]
    spec: pytree.TreeSpec

    @classmethod
    def of(cls, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        """Of the arguments of a call."""
        return cls(*pytree.tree_flatten((tuple(args), dict(sorted(kwargs.items())))))

    def sizes(self, axes: Sequence[Axis]) -> tuple[int, ...]:
        """The size that these inputs have along each of ``axes``."""
        return tuple(self.leaves[k].shape[axis] for k, axis in axes)

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments, as the call had them."""
        args, kwargs = pytree.tree_unflatten(self.leaves, self.spec)
        return args, kwargs


class BucketedProgram:
    """A program with one method for each size; a call takes the smallest that holds its inputs.

    Inputs that are smaller are padded at the end of their axes with ``padding``, and results are cut to the sizes that
    belong to the call: an axis of a result that has in each bucket the size of one axis of an input gets the size which
    that has in the call. Without ``padding`` only the exact sizes are accepted. Some models compute
    something else of padded inputs, such as an average over a padded axis: ``verify`` shows it.
    """

    def __init__(
        self, program: LoweredProgram, model: torch.nn.Module, calls: Mapping[str, Call], padding: float | None
    ) -> None:
        self.program, self.padding, self._model = program, padding, model
        self._methods: LoweredProgram | LoadedProgram = program
        self._axes = _bucket_axes(calls)
        self._calls = dict(sorted(calls.items(), key=lambda item: math.prod(item[1].sizes(self._axes))))
        self._results = {name: _result_shapes(program, name) for name in calls}

    def __repr__(self) -> str:
        return f"<BucketedProgram {', '.join(self.methods)}: {self.report.summary()}>"

    def _repr_html_(self) -> str:
        return self.program._repr_html_()

    @property
    def methods(self) -> list[str]:
        """Names of the methods, smallest first."""
        return list(self._calls)

    @property
    def report(self) -> Report:
        """What went where, in each of the methods."""
        return self.program.report

    def bucket_of(self, *args: Any, **kwargs: Any) -> str:
        """The name of the method that a call with these inputs takes. Raises InputError if none holds them."""
        return self._choose(Call.of(args, kwargs))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = Call.of(args, kwargs)
        name = self._choose(call)
        bucket = self._calls[name]
        if call.sizes(self._axes) == bucket.sizes(self._axes):
            return self._methods.method(name)(*args, **kwargs)
        cuts = [self._cut(shapes, call) for shapes in zip(*(self._results[b] for b in self._calls), strict=True)]
        padded = map(_padded, call.leaves, bucket.leaves, [self.padding] * len(call.leaves))
        args, kwargs = Call(list(padded), call.spec).arguments()
        leaves, spec = pytree.tree_flatten(self._methods.method(name)(*args, **kwargs))
        return pytree.tree_unflatten([leaf[cut] if cut else leaf for leaf, cut in zip(leaves, cuts, strict=True)], spec)

    def verify(self, *args: Any, **kwargs: Any) -> Verification:
        """Figures of a call against eager PyTorch, which gets the inputs as they are, without padding."""
        got = self(*copy.deepcopy(args), **copy.deepcopy(kwargs))
        with TRACING, torch.no_grad():
            return Verification.of(got, self._model(*copy.deepcopy(args), **copy.deepcopy(kwargs)))

    def save(self, path: str | os.PathLike[str], **options: Any) -> None:
        """Write all methods into one file; see ``LoweredProgram.save``."""
        self.program.save(path, **options)

    def using(self, methods: LoadedProgram) -> BucketedProgram:
        """The same choice between the methods of another program, such as ``delegraph.load`` of the file."""
        other = copy.copy(self)
        other._methods = methods
        return other

    def _choose(self, call: Call) -> str:
        for name, bucket in self._calls.items():
            if _holds(bucket, call, self._axes, self.padding is not None):
                return name
        if all(bucket.spec != call.spec for bucket in self._calls.values()):
            text = "the inputs are others than those of the buckets, or given by position where those are by name"
            raise InputError("input-invalid", text)
        given, there = _text(call), ", ".join(map(_text, self._calls.values()))
        hint = None if self.padding is not None else "padding=0 lets smaller inputs be padded with zeros"
        raise InputError("input-invalid", f"no bucket holds {given}; there are {there}", hint=hint)

    def _cut(self, shapes: Sequence[tuple[int, ...]], call: Call) -> tuple[slice, ...]:
        """What belongs to the call, of a result that has these shapes in the buckets."""
        cut = []
        inputs = list(zip(*(bucket.sizes(self._axes) for bucket in self._calls.values()), strict=True))
        for axis, sizes in enumerate(zip(*shapes, strict=True)):
            like = {size for size, known in zip(call.sizes(self._axes), inputs, strict=True) if known == sizes}
            if len(set(sizes)) == 1:
                cut.append(slice(None))
            elif len(like) == 1:
                cut.append(slice(like.pop()))
            else:
                why = "several axes of inputs, which differ here" if like else "no axis of an input"
                text = f"axis {axis} of a result has the sizes {', '.join(map(str, sizes))}, as {why}"
                hint = "call program.method(name) with inputs that you padded, and cut what it returns"
                raise InputError("input-invalid", f"{text}: how much belongs to the call is not known", hint=hint)
        return tuple(cut)


def lower_buckets(
    model: torch.nn.Module,
    buckets: Mapping[str, Bucket] | Sequence[Bucket],
    *,
    padding: float | None = None,
    **options: Unpack[Choices],
) -> BucketedProgram:
    """Lower a model once for each of several fixed sizes, as methods of one program whose weights are shared.

    ``buckets``: example inputs of each size, positional or by keyword, named (the name of the method) or in a list
    (``forward_16x64`` after the sizes that differ). ``padding``: what fills up inputs that are smaller than the bucket
    that holds them; without it, only the exact sizes are accepted. ``options`` are those of ``delegraph.lower``.

    Raises InputError for buckets that do not belong together, and for a model that writes its buffers or inputs: the
    methods do not share them. Raises what ``delegraph.lower`` raises.
    """
    if not isinstance(model, torch.nn.Module):
        text = f"buckets are exported from an nn.Module, one at a time; this is {type(model).__name__}"
        raise InputError("input-invalid", text)
    calls = bucket_calls(buckets)
    arguments = {name: call.arguments() for name, call in calls.items()}
    program = lower(
        dict.fromkeys(calls, model),
        {name: args for name, (args, _) in arguments.items()},
        example_kwargs={name: kwargs for name, (_, kwargs) in arguments.items()},
        **options,
    )
    _expect_nothing_written(program)
    return BucketedProgram(program, model, calls, padding)


def bucket_calls(buckets: Mapping[str, Bucket] | Sequence[Bucket]) -> dict[str, Call]:
    """The example inputs of each method. Raises InputError for buckets that do not belong together."""
    if not isinstance(buckets, (Mapping, list, tuple)) or not buckets:
        text = f"buckets is a list of example inputs, or a dict of them by name, not {buckets!r}"
        raise InputError("input-invalid", text)
    named = buckets if isinstance(buckets, Mapping) else dict(enumerate(buckets))
    calls = {str(name): _call_of(bucket) for name, bucket in named.items()}
    axes = _bucket_axes(calls)
    if isinstance(buckets, Mapping):
        return calls
    different = zip(*dict.fromkeys(zip(*(call.sizes(axes) for call in calls.values()), strict=True)), strict=True)
    return {f"forward_{'x'.join(map(str, sizes))}": call for sizes, call in zip(different, calls.values(), strict=True)}


def _call_of(bucket: Bucket) -> Call:
    return Call.of((), bucket) if isinstance(bucket, Mapping) else Call.of(arguments_of(bucket), {})


def _bucket_axes(calls: Mapping[Any, Call]) -> list[Axis]:
    """The axes of inputs whose sizes tell buckets apart. Raises InputError for buckets that differ in anything else."""
    first, *others = calls.values()
    kinds = list(map(_kind, first.leaves))
    for name, call in calls.items():
        if call.spec != first.spec or list(map(_kind, call.leaves)) != kinds:
            text = f"bucket {name!r} has {_text(call)} where the first has {_text(first)}: only sizes may differ"
            raise InputError("input-invalid", text)
    if len(set(map(_text, calls.values()))) < len(calls):
        raise InputError("input-invalid", "two buckets have the same sizes, so that it is not clear which is meant")
    return [
        (k, axis)
        for k, leaf in enumerate(first.leaves)
        for axis in range(leaf.dim() if isinstance(leaf, torch.Tensor) else 0)
        if any(other.leaves[k].shape[axis] != leaf.shape[axis] for other in others)
    ]


def _kind(leaf: Any) -> Any:
    """What an input has to share with that of the bucket: type and rank of a tensor, the whole of anything else."""
    return (leaf.dtype, leaf.dim()) if isinstance(leaf, torch.Tensor) else leaf


def _holds(bucket: Call, call: Call, axes: Sequence[Axis], padded: bool) -> bool:
    """Whether inputs are those of the bucket but for their sizes, and fit."""
    if bucket.spec != call.spec or list(map(_kind, bucket.leaves)) != list(map(_kind, call.leaves)):
        return False
    sizes = [
        (there, given, padded and (k, axis) in axes)
        for k, (ours, theirs) in enumerate(zip(bucket.leaves, call.leaves, strict=True))
        if isinstance(ours, torch.Tensor)
        for axis, (there, given) in enumerate(zip(ours.shape, theirs.shape, strict=True))
    ]
    return all(there == given or (may_pad and there > given) for there, given, may_pad in sizes)


def _text(call: Call) -> str:
    """Types and sizes of the inputs."""
    shown = [f"{str(t.dtype)[6:]}{list(t.shape)}" if isinstance(t, torch.Tensor) else repr(t) for t in call.leaves]
    return f"({', '.join(shown)})"


def _padded(leaf: Any, like: Any, padding: Any) -> Any:
    """``leaf`` in the corner of a tensor of the bucket's size."""
    if not isinstance(leaf, torch.Tensor) or leaf.shape == like.shape:
        return leaf
    padded = leaf.new_full(like.shape, padding)
    padded[tuple(map(slice, leaf.shape))] = leaf
    return padded


def _result_shapes(program: LoweredProgram, method: str) -> list[tuple[int, ...]]:
    """The shape of each result, of which a number has none."""
    exported = program.exported_program(method)
    kinds = exported.graph_signature.output_specs
    values = [v for v, spec in zip(output_values(exported), kinds, strict=True) if spec.kind.name == "USER_OUTPUT"]
    return [tuple(getattr(getattr(v, "meta", {}).get("val"), "shape", ())) for v in values]


def _expect_nothing_written(program: LoweredProgram) -> None:
    written = {target for delegate in program.delegates for target in delegate.module.state}
    for method in map(program.exported_program, program.methods):
        written |= written_targets(method) | set(method.graph_signature.user_inputs_to_mutate.values())
    if written:
        text = f"the model writes {', '.join(sorted(written))}, which is neither shared by the methods nor padded"
        raise InputError("input-invalid", text, hint="pass it as an input and return its new value")

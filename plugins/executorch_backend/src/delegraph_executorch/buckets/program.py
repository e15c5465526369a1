"""Lower one model for several fixed sizes, and load such files."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import delegraph
import torch
from delegraph import LoweredProgram, Registry, Report, Verification
from delegraph.errors import InputError
from delegraph.formats import MethodSummary
from delegraph.host import LoadedProgram
from delegraph_programs import TRACING, output_values, user_inputs, written_targets

from .choice import BucketChoice, Call, bucket_axes
from .table import KEY, BucketTable, damaged

if TYPE_CHECKING:
    from delegraph import Choices

Bucket = Sequence[Any] | torch.Tensor | Mapping[str, Any]
"""Example inputs of one size: positional arguments, one tensor, or keyword arguments.
"""


class BucketedProgram:
    """A program with one method for each size. A call uses the smallest that fits.

    Smaller inputs are padded with ``padding`` at the end of their axes. Without
    ``padding``, only the exact sizes are accepted. Results are cut: an axis of a result
    that equals an input's axis in every bucket gets its size in the call. Padding
    changes the results of some models, such as an average over a padded axis: check
    with ``verify``.
    """

    def __init__(
        self,
        program: LoweredProgram,
        model: torch.nn.Module,
        calls: Mapping[str, Call],
        padding: float | None,
    ) -> None:
        self.program = program
        self.padding = padding
        self._model = model
        self._methods: LoweredProgram | LoadedProgram = program
        self._choice = choose_by_size(program, calls, padding)

    def __repr__(self) -> str:
        return f"<BucketedProgram {', '.join(self.methods)}: {self.report.summary()}>"

    def _repr_html_(self) -> str:
        return self.program._repr_html_()

    @property
    def methods(self) -> list[str]:
        """Return the names of the methods, smallest first."""
        return self._choice.methods

    @property
    def report(self) -> Report:
        """Return the report on delegates and host operators of all methods."""
        return self.program.report

    def bucket_of(self, *args: Any, **kwargs: Any) -> str:
        """Return the name of the method for these inputs.

        Raises InputError if none holds them.
        """
        return self._choice.choose(Call.of(args, kwargs))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._choice(self._methods.method, args, kwargs)

    def verify(self, *args: Any, **kwargs: Any) -> Verification:
        """Compare a call with eager PyTorch, which gets the inputs without padding."""
        got = self(*copy.deepcopy(args), **copy.deepcopy(kwargs))
        # The model must not run while another thread traces.
        with TRACING, torch.no_grad():
            return Verification.of(
                got, self._model(*copy.deepcopy(args), **copy.deepcopy(kwargs))
            )

    def save(self, path: str | os.PathLike[str], **options: Any) -> None:
        """Write all methods and the choice into one file, like ``LoweredProgram.save``."""
        table = self._choice.table()
        named_data = {} if table is None else {KEY: table.to_bytes()}
        self.program.save(path, named_data, **options)

    def using(self, methods: LoadedProgram) -> BucketedProgram:
        """Return a copy that calls the methods of a loaded file instead.

        ``methods``: the result of ``delegraph.load`` for the file of this program.
        """
        other = copy.copy(self)
        other._methods = methods
        return other


class LoadedBuckets:
    """A loaded file: a call chooses a method by the sizes of its inputs."""

    def __init__(self, program: LoadedProgram, choice: BucketChoice) -> None:
        self.program = program
        self._choice = choice

    @property
    def methods(self) -> list[str]:
        """Return the names of the methods, smallest first."""
        return self._choice.methods

    def method(self, name: str) -> Callable[..., Any]:
        """Return a method, called with inputs of its sizes.

        Raises InputError if it is missing.
        """
        return self.program.method(name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._choice(self.program.method, args, kwargs)


def load(
    path: str | os.PathLike[str],
    registry: Registry | None = None,
    *,
    runtime: str | None = None,
) -> LoadedBuckets:
    """Read the file of a ``BucketedProgram``, like ``delegraph.load``.

    Raises InputError for a file of another program, FormatError if the table of sizes
    does not fit the methods, and the errors of ``delegraph.load``.
    """
    program = delegraph.load(path, registry, runtime=runtime)
    content = program.named_data.get(KEY)
    table = None if content is None else BucketTable.of_bytes(bytes(content))
    if table is None:
        text = f"{os.fspath(path)} has no table of sizes, so lower_buckets did not write it"
        raise InputError("input-invalid", text, hint="read it with delegraph.load")
    choice = BucketChoice.of_table(table)
    _check_shapes(table, program.methods, program.summary.methods)
    return LoadedBuckets(program, choice)


def _check_shapes(
    table: BucketTable, methods: Sequence[str], described: Sequence[MethodSummary]
) -> None:
    """Raise FormatError if the table's methods or shapes differ from the file's."""
    rows = {row.method: row for row in table.rows}
    if not rows.keys() <= set(methods):
        raise damaged("it lists methods that the file does not have")
    for method in described:
        row = rows.get(method.name)
        if row is None:
            continue
        # numbers have no shape: compare [] with []
        inputs = [list(tensor.shape or ()) for tensor in method.inputs]
        outputs = [list(tensor.shape or ()) for tensor in method.outputs]
        row_inputs = [leaf.get("shape", []) for leaf in row.inputs]
        if inputs != row_inputs or outputs != row.results:
            raise damaged(f"method {method.name} has other shapes")


def lower_buckets(
    model: torch.nn.Module,
    buckets: Mapping[str, Bucket] | Sequence[Bucket],
    *,
    padding: float | None = None,
    **options: Unpack[Choices],
) -> BucketedProgram:
    """Lower a model for several fixed sizes, as methods that share weights.

    ``buckets``: example inputs of each size. A dict has them by name of the method, a
    list names methods by the sizes that differ, such as ``forward_16x64``. ``padding``:
    the number that fills up smaller inputs; without it, only the exact sizes are
    accepted. ``options`` are those of ``delegraph.lower``.

    Raises InputError for buckets that do not belong together, and for an invalid
    padding. It also refuses a model that writes its buffers or inputs, since methods do
    not share them. Raises the errors of ``delegraph.lower``.
    """
    if not isinstance(model, torch.nn.Module):
        text = (
            "lower_buckets needs an nn.Module, which it exports for each bucket; got"
            f" {type(model).__name__}"
        )
        raise InputError("input-invalid", text)
    check_padding(padding)
    calls = bucket_calls(buckets)
    example_inputs = {}
    example_kwargs = {}
    for name, call in calls.items():
        example_inputs[name], example_kwargs[name] = call.arguments()
    # one method for each bucket, all of the same model
    program = delegraph.lower(
        dict.fromkeys(calls, model),
        example_inputs,
        example_kwargs=example_kwargs,
        **options,
    )
    return BucketedProgram(program, model, calls, padding)


def choose_by_size(
    program: LoweredProgram, calls: Mapping[str, Call], padding: float | None
) -> BucketChoice:
    """Return the choice between the methods of a program.

    ``calls``: the example inputs of each method. Raises InputError if the methods write
    buffers or inputs.
    """
    _check_no_writes(program)
    inputs = {name: _method_inputs(program, name, call) for name, call in calls.items()}
    results = {name: _result_shapes(program, name) for name in calls}
    return BucketChoice(inputs, results, padding)


def check_padding(padding: Any) -> None:
    """Raise InputError unless a padding is None, a float, or an int of 64 bits."""
    is_float = isinstance(padding, float)
    is_int64 = isinstance(padding, int) and -(1 << 63) <= padding < 1 << 63
    if padding is not None and not is_float and not is_int64:
        raise InputError(
            "input-invalid", f"padding must be a Python number or None; got {padding!r}"
        )


def bucket_calls(buckets: Mapping[str, Bucket] | Sequence[Bucket]) -> dict[str, Call]:
    """Return the example inputs of each method.

    Raises InputError for buckets that do not belong together.
    """
    if not isinstance(buckets, (Mapping, list, tuple)) or not buckets:
        text = (
            "buckets must be a list of example inputs, or a dict of them by name; got"
            f" {buckets!r}"
        )
        raise InputError("input-invalid", text)
    named = buckets if isinstance(buckets, Mapping) else dict(enumerate(buckets))
    calls = {str(name): _call_of(bucket) for name, bucket in named.items()}
    # also raises InputError for buckets that differ in more than sizes
    axes = bucket_axes(calls)
    if isinstance(buckets, Mapping):
        return calls
    sizes_of_calls = [call.sizes(axes) for call in calls.values()]
    # Two axes with equal sizes in each bucket count once in names: the sizes (16, 16) and
    # (32, 32) give forward_16 and forward_32.
    sizes_of_axes = zip(*sizes_of_calls, strict=True)
    distinct_axes = dict.fromkeys(sizes_of_axes)
    sizes_in_names = zip(*distinct_axes, strict=True)
    return {
        f"forward_{'x'.join(map(str, sizes))}": call
        for sizes, call in zip(sizes_in_names, calls.values(), strict=True)
    }


def _call_of(bucket: Bucket) -> Call:
    """Return the arguments of a bucket: a tensor, a tuple, a list or a dict of keywords.

    Raises InputError for an object of another type.
    """
    if isinstance(bucket, Mapping):
        return Call.of((), bucket)
    if not isinstance(bucket, (torch.Tensor, tuple, list)):
        raise InputError(
            "input-invalid",
            "the example inputs of a bucket must be a tuple of arguments; got"
            f" {type(bucket).__name__}",
        )
    return Call.of((bucket,) if isinstance(bucket, torch.Tensor) else bucket, {})


def _method_inputs(program: LoweredProgram, method: str, call: Call) -> Call:
    """Return a bucket's inputs with the order, types and shapes of the lowered method.

    Export orders keyword arguments like the parameters of ``forward``. A transform may
    have changed types and shapes.
    """
    exported = program.exported_program(method)
    call = call.in_order(exported.call_spec.in_spec.child(1).context)
    vals = [node.meta.get("val") for node in user_inputs(exported)]
    leaves = [
        val if isinstance(val, torch.Tensor) else leaf
        for leaf, val in zip(call.leaves, vals, strict=True)
    ]
    return Call(leaves, call.spec)


def _result_shapes(program: LoweredProgram, method: str) -> list[tuple[int, ...]]:
    """Return the shape of each result, ``()`` for a number."""
    exported = program.exported_program(method)
    specs = exported.graph_signature.output_specs
    shapes = []
    for value, spec in zip(output_values(exported), specs, strict=True):
        if spec.kind.name == "USER_OUTPUT":
            val = getattr(value, "meta", {}).get("val")
            shapes.append(tuple(getattr(val, "shape", ())))
    return shapes


def _check_no_writes(program: LoweredProgram) -> None:
    """Raise InputError if a method writes buffers or inputs."""
    written: set[str] = set()
    for delegate in program.delegates:
        written |= set(delegate.module.state)
    for method in map(program.exported_program, program.methods):
        written |= written_targets(method)
        written |= set(method.graph_signature.user_inputs_to_mutate.values())
    if written:
        text = (
            f"the model writes {', '.join(sorted(written))}; methods do not share"
            " written values, and cannot pad them"
        )
        hint = "pass it as an input and return its new value"
        raise InputError("input-invalid", text, hint=hint)

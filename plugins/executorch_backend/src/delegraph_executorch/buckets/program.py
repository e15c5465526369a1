"""``lower_buckets``: one model for several fixed sizes; ``load`` of its file, which
chooses between them as well.
"""

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
"""Example inputs of one size: positional arguments (a tensor alone is one), or keyword
arguments by name.
"""


class BucketedProgram:
    """A program with one method for each size; a call takes the smallest that holds its
    inputs.

    Inputs that are smaller are padded at the end of their axes with ``padding``, and
    results are cut to the sizes that belong to the call: an axis of a result that has
    in each bucket the size of one axis of an input gets the size which that has in the
    call. Without ``padding`` only the exact sizes are accepted. Some models compute
    something else of padded inputs, such as an average over a padded axis: ``verify``
    shows it.
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
        """Names of the methods, smallest first."""
        return self._choice.methods

    @property
    def report(self) -> Report:
        """What went where, in each of the methods."""
        return self.program.report

    def bucket_of(self, *args: Any, **kwargs: Any) -> str:
        """The name of the method that a call with these inputs takes. Raises InputError
        if none holds them.
        """
        return self._choice.choose(Call.of(args, kwargs))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._choice(self._methods.method, args, kwargs)

    def verify(self, *args: Any, **kwargs: Any) -> Verification:
        """Figures of a call against eager PyTorch, which gets the inputs as they are,
        without padding.
        """
        got = self(*copy.deepcopy(args), **copy.deepcopy(kwargs))
        with TRACING, torch.no_grad():
            return Verification.of(
                got, self._model(*copy.deepcopy(args), **copy.deepcopy(kwargs))
            )

    def save(self, path: str | os.PathLike[str], **options: Any) -> None:
        """Write all methods into one file, with the choice between them; see
        ``LoweredProgram.save`` and ``load``.
        """
        table = self._choice.table()
        self.program.save(
            path, {} if table is None else {KEY: table.to_bytes()}, **options
        )

    def using(self, methods: LoadedProgram) -> BucketedProgram:
        """The same choice between the methods of another program, such as
        ``delegraph.load`` of the file.
        """
        other = copy.copy(self)
        other._methods = methods
        return other


class LoadedBuckets:
    """What ``load`` returns: calls of it choose a method by the sizes of their inputs."""

    def __init__(self, program: LoadedProgram, choice: BucketChoice) -> None:
        self.program = program
        self._choice = choice

    @property
    def methods(self) -> list[str]:
        """Names of the methods, smallest first."""
        return self._choice.methods

    def method(self, name: str) -> Callable[..., Any]:
        """A method to call with inputs of its sizes. Raises InputError if there is none
        of that name.
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
    """Read the file of a ``BucketedProgram``; the arguments are those of
    ``delegraph.load``.

    Raises InputError for a file of another program, FormatError if what it says of
    sizes does not fit its methods, and what ``delegraph.load`` raises.
    """
    program = delegraph.load(path, registry, runtime=runtime)
    content = program.named_data.get(KEY)
    table = None if content is None else BucketTable.of_bytes(bytes(content))
    if table is None:
        text = f"{os.fspath(path)} does not say that its methods are sizes of one model"
        raise InputError(
            "input-invalid",
            text,
            hint="delegraph.load reads it; lower_buckets(...).save writes the others",
        )
    choice = BucketChoice.of_table(table)
    _expect_fitting(table, program.methods, program.summary.methods)
    return LoadedBuckets(program, choice)


def _expect_fitting(
    table: BucketTable, methods: Sequence[str], described: Sequence[MethodSummary]
) -> None:
    """Raise FormatError for other methods or shapes than the file's: what is padded has
    to be what a method takes.
    """
    rows = {row.method: row for row in table.rows}
    if not rows.keys() <= set(methods):
        raise damaged("it has methods that the file has not")
    for method in described:
        row = rows.get(method.name)
        taken, given = (
            [list(t.shape or ()) for t in side]
            for side in (method.inputs, method.outputs)
        )
        if row and (taken, given) != (
            [leaf.get("shape", []) for leaf in row.inputs],
            row.results,
        ):
            raise damaged(f"method {method.name} has other shapes")


def lower_buckets(
    model: torch.nn.Module,
    buckets: Mapping[str, Bucket] | Sequence[Bucket],
    *,
    padding: float | None = None,
    **options: Unpack[Choices],
) -> BucketedProgram:
    """Lower a model once for each of several fixed sizes, as methods of one program
    whose weights are shared.

    ``buckets``: example inputs of each size, positional or by keyword, named (the name
    of the method) or in a list (``forward_16x64`` after the sizes that differ).
    ``padding``: what fills up inputs that are smaller than the bucket that holds them;
    without it, only the exact sizes are accepted. ``options`` are those of
    ``delegraph.lower``.

    Raises InputError for buckets that do not belong together, for a padding that is no
    number, and for a model that writes its buffers or inputs: the methods do not share
    them. Raises what ``delegraph.lower`` raises.
    """
    if not isinstance(model, torch.nn.Module):
        text = (
            "buckets are exported from an nn.Module, one at a time; this is"
            f" {type(model).__name__}"
        )
        raise InputError("input-invalid", text)
    check_padding(padding)
    calls = bucket_calls(buckets)
    arguments = {name: call.arguments() for name, call in calls.items()}
    program = delegraph.lower(
        dict.fromkeys(calls, model),
        {name: args for name, (args, _) in arguments.items()},
        example_kwargs={name: kwargs for name, (_, kwargs) in arguments.items()},
        **options,
    )
    return BucketedProgram(program, model, calls, padding)


def choose_by_size(
    program: LoweredProgram, calls: Mapping[str, Call], padding: float | None
) -> BucketChoice:
    """The choice between the methods of a program by the size of inputs.

    Raises InputError if the methods write what they would have to share.
    """
    _expect_nothing_written(program)
    taken = {name: _as_taken(program, name, call) for name, call in calls.items()}
    return BucketChoice(
        taken, {name: _result_shapes(program, name) for name in calls}, padding
    )


def check_padding(padding: Any) -> None:
    """Raise InputError for what can fill up no tensor, or be in no file."""
    fits = isinstance(padding, float) or (
        isinstance(padding, int) and -(1 << 63) <= padding < 1 << 63
    )
    if padding is not None and not fits:
        raise InputError(
            "input-invalid", f"padding is a number of Python, or None, not {padding!r}"
        )


def bucket_calls(buckets: Mapping[str, Bucket] | Sequence[Bucket]) -> dict[str, Call]:
    """The example inputs of each method. Raises InputError for buckets that do not
    belong together.
    """
    if not isinstance(buckets, (Mapping, list, tuple)) or not buckets:
        text = (
            "buckets is a list of example inputs, or a dict of them by name, not"
            f" {buckets!r}"
        )
        raise InputError("input-invalid", text)
    named = buckets if isinstance(buckets, Mapping) else dict(enumerate(buckets))
    calls = {str(name): _call_of(bucket) for name, bucket in named.items()}
    axes = bucket_axes(calls)
    if isinstance(buckets, Mapping):
        return calls
    different = zip(
        *dict.fromkeys(
            zip(*(call.sizes(axes) for call in calls.values()), strict=True)
        ),
        strict=True,
    )
    return {
        f"forward_{'x'.join(map(str, sizes))}": call
        for sizes, call in zip(different, calls.values(), strict=True)
    }


def _call_of(bucket: Bucket) -> Call:
    if isinstance(bucket, Mapping):
        return Call.of((), bucket)
    if not isinstance(bucket, (torch.Tensor, tuple, list)):
        raise InputError(
            "input-invalid",
            f"example_inputs is a tuple of arguments, not {type(bucket).__name__}",
        )
    return Call.of((bucket,) if isinstance(bucket, torch.Tensor) else bucket, {})


def _as_taken(program: LoweredProgram, method: str, call: Call) -> Call:
    """The inputs of a bucket in the order of the method, with its types and shapes.

    Export puts keyword arguments in the order of forward's parameters. A transform may
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
    """The shape of each result, of which a number has none."""
    exported = program.exported_program(method)
    kinds = exported.graph_signature.output_specs
    values = [
        v
        for v, spec in zip(output_values(exported), kinds, strict=True)
        if spec.kind.name == "USER_OUTPUT"
    ]
    return [
        tuple(getattr(getattr(v, "meta", {}).get("val"), "shape", ())) for v in values
    ]


def _expect_nothing_written(program: LoweredProgram) -> None:
    written = {
        target for delegate in program.delegates for target in delegate.module.state
    }
    for method in map(program.exported_program, program.methods):
        written |= written_targets(method) | set(
            method.graph_signature.user_inputs_to_mutate.values()
        )
    if written:
        text = (
            f"the model writes {', '.join(sorted(written))}, which is neither shared by"
            " the methods nor padded"
        )
        raise InputError(
            "input-invalid", text, hint="pass it as an input and return its new value"
        )

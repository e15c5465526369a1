"""``delegraph quantize`` and ``lower --quantize FILE``: calibration files, progress."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from delegraph.command import (
    Outcome,
    check_model,
    expect_file,
    expect_places,
    output_path,
    progress,
    read_arrays,
    read_model,
    show,
)
from delegraph.errors import DelegraphWarning, FormatError, InputError, UsageError
from delegraph.io.atomic_write import write_whole

BAR = 20
"""Characters of the bar."""


class QuantizeCommand:
    """``delegraph quantize``."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add(
            "model",
            metavar="MODEL",
            help=(
                "a .pt2 file, path.py[:function][@weights] (runs the file), or"
                " scheme:name"
            ),
        )
        add(
            "--backend",
            required=True,
            metavar="BACKEND",
            help="the backend that provides the quantizer",
        )
        batches = "an .npz file with an array [batches, *input] for each input"
        add("--calibration", required=True, type=Path, metavar="FILE.npz", help=batches)
        add(
            "-o",
            "--output",
            required=True,
            type=output_path,
            metavar="FILE.pt2",
            help="where the program is written",
        )

    @staticmethod
    def run(args: argparse.Namespace) -> Outcome:
        if args.output.suffix != ".pt2":
            raise UsageError(
                "usage-invalid", f"-o must name a .pt2 file; got {args.output.name!r}"
            )
        check_calibration(
            args.calibration, [args.model], [args.backend], option="--calibration"
        )
        expect_places(
            [args.output], filter(None, [check_model(args.model), args.calibration])
        )
        with progress(f"loading {args.model}"):
            import io

            import torch

            given = read_model(args.model)
        note = quantize_given(given, args.calibration, args.backend)
        written = io.BytesIO()
        torch.export.save(given.programs["forward"], written)
        write_whole(args.output, bytes(written.getbuffer()))
        content = {
            "note": note,
            "output": {"path": str(args.output), "bytes": args.output.stat().st_size},
        }
        text = f"{note}\nwrote {args.output} ({args.output.stat().st_size} bytes)"
        return Outcome("delegraph.quantize/1", content, text)


def check_calibration(
    path: Path,
    models: Sequence[str],
    backends: Sequence[str],
    option: str = "--quantize",
) -> None:
    """Raise UsageError for a file, models or backends that cannot be used.

    It needs no torch. ``option``: the option that names the file, for errors.
    """
    if path.suffix != ".npz":
        raise UsageError(
            "usage-invalid",
            f"{option} must name an .npz file; got {str(path)!r}",
            hint=_HOW,
        )
    expect_file(path)
    if len(models) > 1:
        raise UsageError(
            "usage-invalid",
            "--quantize accepts one MODEL, because each model needs its own calibration data",
        )
    if not all(backends or [""]):
        raise UsageError(
            "usage-invalid",
            f"{option} needs a backend that provides the quantizer",
            hint="--backend NAME",
        )


_HOW = (
    "numpy.savez('calibration.npz', x=inputs): an array [batches, *input] for each"
    " input of the model, by its name"
)


def quantize_given(given: Any, path: Path, backend: str) -> str:
    """Quantize the only method of a ``GivenModel``, and return the note for the report."""
    from .flow import quantize

    if list(given.programs) != ["forward"] or given.kwargs["forward"]:
        text = "--quantize takes a model with one method and without keyword arguments"
        hint = "call delegraph.quantize in Python for each method"
        raise InputError("input-invalid", text, hint=hint)
    batches = read_batches(path, _argument_names(given.programs["forward"]))
    _expect_ranks(path, batches, given.inputs["forward"])
    _expect_sizes(path, batches, given.inputs["forward"], given.programs["forward"])
    with progress(f"quantizing for {backend}"):
        shapes = given.dynamic_shapes["forward"]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", DelegraphWarning)
            program = quantize(
                given.programs["forward"],
                batches,
                backend=backend,
                dynamic_shapes=shapes,
                progress=_show_progress,
            )
    given.add("forward", program, batches[0])
    counted = f"{len(batches)} batch" + ("es" if len(batches) > 1 else "")
    lines = [
        f"quantized after {counted} of {path}; --verify compares with the quantized"
        " program, and quantization_errors with the model in floats"
    ]
    for warning in caught:
        if issubclass(warning.category, DelegraphWarning):
            lines.append(f"warning: {warning.message}")
        else:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
    return "\n".join(lines)


def _expect_ranks(path: Path, batches: list[tuple[Any, ...]], example: Any) -> None:
    """Raise InputError if a batch has arrays of other ranks or types than the example.

    Other ranks mostly mean that the axis of batches is missing. numpy's floats are
    float64 unless the user converts them.
    """
    if not batches or not example:
        return
    given = [leaf for leaf in batches[0] if hasattr(leaf, "shape")]
    wanted = [leaf for leaf in example if hasattr(leaf, "shape")]
    if len(given) != len(wanted):
        return
    if [leaf.dim() for leaf in given] != [leaf.dim() for leaf in wanted]:
        shapes = [list(leaf.shape) for leaf in given]
        expected = [list(leaf.shape) for leaf in wanted]
        text = (
            f"{path}: a batch has inputs of the shapes {shapes}, and the model's"
            f" example has {expected}"
        )
        raise InputError("input-invalid", text, hint=_HOW)
    for position, (leaf, expected_leaf) in enumerate(zip(given, wanted, strict=True)):
        is_float = leaf.is_floating_point() or expected_leaf.is_floating_point()
        if is_float and leaf.dtype != expected_leaf.dtype:
            dtype = str(leaf.dtype).removeprefix("torch.")
            wanted_dtype = str(expected_leaf.dtype).removeprefix("torch.")
            text = (
                f"{path}: input {position} is {dtype}, and the model's example is"
                f" {wanted_dtype}"
            )
            hint = f"x.astype('{wanted_dtype}') in numpy"
            raise InputError("input-invalid", text, hint=hint)


def _expect_sizes(
    path: Path, batches: list[tuple[Any, ...]], example: Any, program: Any
) -> None:
    """Raise InputError if a module fails on a batch with other sizes than its example."""
    import torch

    if not batches or not example or not isinstance(program, torch.nn.Module):
        return
    given = [list(leaf.shape) for leaf in batches[0] if hasattr(leaf, "shape")]
    wanted = [list(leaf.shape) for leaf in example if hasattr(leaf, "shape")]
    if given == wanted:
        return
    try:
        with torch.no_grad():
            program(*batches[0])
    except Exception as e:  # modules may raise anything
        text = (
            f"{path}: a batch has inputs of the shapes {given}, and the model's example"
            f" has {wanted}: {e}"
        )
        raise InputError("input-invalid", text.partition("\n")[0], hint=_HOW) from e


def _argument_names(program: Any) -> list[str]:
    """Return the model's names of its inputs."""
    from delegraph_programs import user_inputs
    from torch.export import ExportedProgram

    from .calibration import names_of

    if isinstance(program, ExportedProgram):
        return [node.name for node in user_inputs(program)]
    return names_of(program)


def read_batches(path: Path, names: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return the batches of an .npz file, with arrays in the order of ``names``.

    Batch k has row k of each array. Raises FormatError or InputError.
    """
    import torch

    try:
        arrays = {
            name: torch.from_numpy(array) for name, array in read_arrays(path).items()
        }
    except (InputError, TypeError) as e:  # TypeError: types that are no numbers
        raise FormatError(
            "format-invalid", f"{path} is not an .npz file with numbers: {e}", hint=_HOW
        ) from e
    columns = [arrays[key] for key in _keys_in_input_order(path, list(arrays), names)]
    if (
        any(column.dim() == 0 for column in columns)
        or len({len(column) for column in columns}) != 1
    ):
        shapes = ", ".join(str(list(column.shape)) for column in columns) or "none"
        text = (
            f"{path}: all arrays need the same number of batches as first size; their"
            f" shapes are {shapes}"
        )
        raise InputError("input-invalid", text, hint=_HOW)
    return list(zip(*columns, strict=True))


def _keys_in_input_order(
    path: Path, keys: list[str], names: Sequence[str]
) -> list[str]:
    """Return the keys of the arrays of a .npz file in the order of the inputs.

    ``names`` are those of the inputs. The keys are names of inputs, or ``arr_0``,
    ``arr_1``, ..., which ``numpy.savez`` gives to arrays without a name. A single array
    may have any key.
    """
    numbered = [f"arr_{k}" for k in range(len(keys))]
    for order in (list(names[: len(keys)]), numbered):
        if sorted(order) == sorted(keys):
            return order
    if len(keys) > 1:
        text = (
            f"{path} has the arrays {', '.join(keys)}, and the inputs of the model are"
            f" {', '.join(names)}"
        )
        raise InputError(
            "input-invalid",
            text,
            hint="name the arrays as the inputs, or give them no names",
        )
    return keys


def _show_progress(done: int, total: int | None) -> None:
    full = BAR if not total else BAR * done // total
    show(f"calibrating [{'#' * full}{'.' * (BAR - full)}] {done} of {total}")

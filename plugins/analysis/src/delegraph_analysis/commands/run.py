"""Execute a file on this host: ``delegraph run``.

Some formats have a function ``run``, which executes a file as a whole. A file of another
format is loaded as a program, and one of its methods is called.
"""

from __future__ import annotations

import argparse
import inspect
import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from delegraph import default_registry
from delegraph.command import (
    Outcome,
    expect_file,
    natural_number,
    progress,
    read_array,
    table,
)
from delegraph.errors import InputError, UsageError, WriteError
from delegraph.host import FileFormat
from delegraph.io.atomic_write import write_whole

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]


class Run:
    """``delegraph run``."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("file", type=Path, metavar="FILE")
        add(
            "--method",
            metavar="NAME",
            help="one method (default: forward, or the method that fits the inputs)",
        )
        add(
            "--input",
            action="append",
            default=[],
            type=Path,
            metavar="FILE.npy",
            help="an input; repeat it for each input (default: random inputs)",
        )
        add(
            "--output",
            type=Path,
            metavar="DIR",
            help="write output_0.npy, output_1.npy, ... to this folder",
        )
        add(
            "--seed",
            type=natural_number,
            default=0,
            help="seed of random inputs",
        )
        iterations = "limit of the iterations of all loops together (default 100000)"
        add("--max-iterations", type=natural_number, metavar="N", help=iterations)
        memory = "limit of the memory that a .pte file declares (default 8 GiB)"
        add("--max-memory", type=natural_number, metavar="BYTES", help=memory)
        add(
            "--no-native",
            action="store_true",
            help="refuse a file with delegates that are native code (SECURITY.md)",
        )
        add(
            "--runtime",
            metavar="NAME",
            help="execute a .pte file in this runtime, such as executorch",
        )

    @staticmethod
    def run(args: argparse.Namespace) -> Outcome:
        expect_file(args.file)
        file_format = FileFormat(args.file, default_registry())
        runs_itself = args.runtime is None and file_format.defines("run")
        bounds = _bounds(file_format, args, runs_itself)
        if args.no_native:
            file_format.check_native(args.runtime)
        native = file_format.native_blobs()
        if runs_itself and args.method is not None:
            raise UsageError(
                "usage-invalid",
                f"the format of {file_format.suffix} files has no methods to choose"
                " from",
            )
        for path in args.input:
            expect_file(path)
        if not args.input and not file_format.defines("sample"):
            raise UsageError(
                "usage-invalid",
                f"the format of {file_format.suffix} files has no sample inputs",
                hint="pass --input FILE.npy for each input",
            )
        inputs = [read_array(path) for path in args.input]
        if not inputs:
            inputs = sample_inputs(file_format, args.seed, args.method)
        with progress(f"running {args.file}"):
            if runs_itself:
                outputs = file_format.run(args.file, inputs, **bounds)
            else:
                outputs = _call_method(
                    file_format, inputs, args.runtime, args.method, bounds
                )
        rows = [_describe(name, value) for name, value in outputs]
        if args.output:
            _save(args.output, [value for _, value in outputs])
        cells = []
        for row in rows:
            cell = [row["name"], row["dtype"], str(row["shape"])]
            for name in ("min", "max", "mean", "nonfinite"):
                cell.append(_format_number(row[name]))
            cells.append(cell)
        origin = "from files" if args.input else f"random, seed {args.seed}"
        head = ["OUTPUT", "DTYPE", "SHAPE", "MIN", "MAX", "MEAN", "NONFINITE"]
        content = {
            "inputs": {"random": not args.input, "seed": args.seed},
            "outputs": rows,
            "native": native,
        }
        lines = [
            f"native code: a delegate of {backend_id} is {kind}\n"
            for backend_id, kind in native.items()
        ]
        return Outcome(
            "delegraph.run/1",
            content,
            f"{''.join(lines)}inputs: {origin}\n" + table([head, *cells]),
        )


def _bounds(
    file_format: FileFormat, args: argparse.Namespace, runs_itself: bool
) -> dict[str, int]:
    """Return the limits that the command line gives.

    ``runs_itself``: the file's format runs it. Raises UsageError for a limit that the
    runtime or the format does not support.
    """
    given = {name: getattr(args, name) for name in _BOUNDS}
    bounds = {name: value for name, value in given.items() if value is not None}
    executor = f"the format of {file_format.suffix} files"
    executes = file_format.kind.run if runs_itself else file_format.kind.read
    known = {*inspect.signature(executes).parameters}
    if args.runtime:
        executor = f"the runtime {args.runtime}"
        known = set()
    for name in bounds:
        if name not in known:
            raise UsageError("usage-invalid", f"{executor} does not {_BOUNDS[name]}")
    return bounds


_BOUNDS = {"max_iterations": "count iterations", "max_memory": "limit memory"}
"""Limit -> the ability that it needs, for the error if a format lacks it."""


def sample_inputs(
    file_format: FileFormat, seed: int, method: str | None
) -> list[Array]:
    """Return sample inputs of a file, for a method if its format has methods."""
    named = {}
    if "method" in inspect.signature(file_format.kind.sample).parameters:
        named["method"] = method
    arrays: list[Array] = file_format.sample(file_format.path, seed, **named)
    return arrays


def _call_method(
    file_format: FileFormat,
    inputs: list[Array],
    runtime: str | None,
    method: str | None,
    bounds: Mapping[str, int],
) -> list[tuple[str, Any]]:
    """Load the file as a program, call a method, and return the outputs by name."""
    from torch.utils import _pytree as pytree

    loaded = file_format.load(runtime, timer=None, allow_native=True, **bounds)
    called = loaded if method is None else loaded.method(method)
    arguments = as_arguments(file_format, method, inputs)
    results = pytree.tree_leaves(called(*arguments))
    outputs = []
    for k, result in enumerate(results):
        if result is not None:
            outputs.append((f"output_{k}", _as_array(result)))
    return outputs


def as_arguments(
    file_format: FileFormat, method: str | None, inputs: list[Array]
) -> list[Any]:
    """Convert arrays to the inputs of a method: tensors, numbers and texts."""
    plain = _plain_inputs(file_format, method, len(inputs))
    arguments = []
    for k, array in enumerate(inputs):
        arguments.append(_as_argument(array, k, is_plain=k in plain))
    return arguments


def _plain_inputs(file_format: FileFormat, method: str | None, count: int) -> set[int]:
    """Return the positions of the inputs that are numbers or texts.

    If a format has no summary, all inputs are tensors.
    """
    if not file_format.defines("summarize"):
        return set()
    methods = {m.name: m for m in file_format.summarize(file_format.path).methods}
    chosen = methods.get(method or "forward")
    if method is None and chosen is None:
        chosen = next(iter(methods.values()), None)
    if chosen is None or len(chosen.inputs) != count:
        return set()
    return {k for k, value in enumerate(chosen.inputs) if value.shape is None}


def _as_argument(array: Array, position: int, is_plain: bool) -> Any:
    """Return an array as a tensor, or as a number or text if it ``is_plain``."""
    import torch

    if is_plain and array.size == 1:
        return array.item()
    try:
        return torch.from_numpy(array)
    except (TypeError, ValueError) as e:
        raise InputError(
            "input-invalid",
            f"input {position} is an array that torch cannot convert to a tensor: {e}",
        ) from e


def _as_array(result: Any) -> Array:
    """Return a result as an array; types that numpy lacks become float32."""
    import numpy as np
    import torch

    if isinstance(result, str):
        return np.array(result)
    tensor = torch.as_tensor(result).detach().resolve_conj().resolve_neg()
    try:
        return tensor.numpy()
    except TypeError:
        dtype = torch.complex64 if tensor.is_complex() else torch.float32
        return tensor.to(dtype).numpy()


def _describe(name: str, value: Array) -> dict[str, Any]:
    """Return name, type, shape, and statistics over finite real elements."""
    import numpy as np

    finite = value[np.isfinite(value)] if value.dtype.kind in "fc" else value
    real = finite if value.dtype.kind in "biuf" else np.zeros(0)
    return {
        "name": name,
        "dtype": value.dtype.name,
        "shape": list(value.shape),
        "min": float(real.min()) if real.size else None,
        "max": float(real.max()) if real.size else None,
        "mean": float(real.mean(dtype=np.float64)) if real.size else None,
        "nonfinite": int(value.size - finite.size),
    }


def _format_number(value: float | int | None) -> str:
    return "-" if value is None else f"{value:.6g}"


def _save(folder: Path, arrays: list[Array]) -> None:
    import numpy as np

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise WriteError(
            "write-failed", f"cannot make the folder {folder}: {e.strerror or e}"
        ) from e
    for k, array in enumerate(arrays):
        content = io.BytesIO()
        np.save(content, array, allow_pickle=False)
        write_whole(folder / f"output_{k}.npy", content.getvalue())

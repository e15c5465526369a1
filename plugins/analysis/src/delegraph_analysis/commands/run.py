"""``delegraph run``: execute a file on this host, by the format that its plugin
declares or by its method.
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
            help="of several: forward, or what fits the inputs, unless given",
        )
        add(
            "--input",
            action="append",
            default=[],
            type=Path,
            metavar="FILE.npy",
            help="one for each input",
        )
        add(
            "--output",
            type=Path,
            metavar="DIR",
            help="folder that gets output_0.npy, output_1.npy, ...",
        )
        add(
            "--seed",
            type=natural_number,
            default=0,
            help="of random inputs, which are used without --input",
        )
        iterations = "iterations of all loops together (100000 unless given)"
        add("--max-iterations", type=natural_number, metavar="N", help=iterations)
        memory = "memory that a .pte file may state (8 GiB unless given)"
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
        named = (
            {"method": args.method}
            if "method" in inspect.signature(file_format.kind.sample).parameters
            else {}
        )
        for path in args.input:
            expect_file(path)
        if not args.input and not file_format.defines("sample"):
            text = f"the format of {file_format.suffix} files has no sample inputs"
            raise UsageError(
                "usage-invalid",
                text,
                hint="give an .npy file for each input: --input FILE.npy",
            )
        inputs = [read_array(p) for p in args.input] or file_format.sample(
            args.file, args.seed, **named
        )
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
        cells = [
            [
                r["name"],
                r["dtype"],
                str(r["shape"]),
                *map(_format_number, list(r.values())[3:]),
            ]
            for r in rows
        ]
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
    """The limits that are given.

    Raises UsageError for one that what executes the file does not know.
    """
    bounds = {
        name: value for name in _BOUNDS if (value := getattr(args, name)) is not None
    }
    executes = file_format.kind.run if runs_itself else file_format.kind.read
    known = {} if args.runtime else inspect.signature(executes).parameters
    for name in bounds:
        if name not in known:
            who = (
                f"the runtime {args.runtime}"
                if args.runtime
                else f"the format of {file_format.suffix} files"
            )
            raise UsageError("usage-invalid", f"{who} does not {_BOUNDS[name]}")
    return bounds


_BOUNDS = {"max_iterations": "count iterations", "max_memory": "bound memory"}
"""A limit of what a file may take -> what it has to be able to do that executes the
file.
"""


def _call_method(
    file_format: FileFormat,
    inputs: list[Array],
    runtime: str | None,
    method: str | None,
    bounds: Mapping[str, int],
) -> list[tuple[str, Any]]:
    """Run a file by its method: its format only reads it, or has another runtime."""
    from torch.utils import _pytree as pytree

    loaded = file_format.load(runtime, None, True, **bounds)
    called = loaded if method is None else loaded.method(method)
    results = pytree.tree_leaves(called(*as_arguments(file_format, method, inputs)))
    return [
        (f"output_{k}", _as_array(r)) for k, r in enumerate(results) if r is not None
    ]


def as_arguments(
    file_format: FileFormat, method: str | None, inputs: list[Array]
) -> list[Any]:
    """Arrays as a method of a file takes them: tensors, and numbers and texts where
    these are its inputs.
    """
    plain = _plain_inputs(file_format, method, len(inputs))
    return [_as_argument(array, k, k in plain) for k, array in enumerate(inputs)]


def _plain_inputs(file_format: FileFormat, method: str | None, count: int) -> set[int]:
    """Positions of the inputs that are numbers or texts; files whose format has no
    summary have tensors only.
    """
    methods = (
        file_format.summarize(file_format.path).methods
        if file_format.defines("summarize")
        else ()
    )
    wanted = method or (
        "forward" if any(m.name == "forward" for m in methods) else None
    )
    chosen = next((m for m in methods if wanted in (None, m.name)), None)
    listed = chosen.inputs if chosen is not None and len(chosen.inputs) == count else ()
    return {k for k, described in enumerate(listed) if described.shape is None}


def _as_argument(array: Array, position: int, plain: bool) -> Any:
    import torch

    if plain and array.size == 1:
        return array.item()
    try:
        return torch.from_numpy(array)
    except (TypeError, ValueError) as e:
        raise InputError(
            "input-invalid",
            f"input {position} is an array that no tensor is made of: {e}",
        ) from e


def _as_array(result: Any) -> Array:
    """A result as an array; of types that numpy lacks, its values as float32."""
    import numpy as np
    import torch

    if isinstance(result, str):
        return np.array(result)
    tensor = torch.as_tensor(result).detach().resolve_conj().resolve_neg()
    try:
        return tensor.numpy()
    except TypeError:
        return tensor.to(
            torch.complex64 if tensor.is_complex() else torch.float32
        ).numpy()


def _describe(name: str, value: Array) -> dict[str, Any]:
    """Name, type, shape, and statistics over the finite elements of real numbers."""
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

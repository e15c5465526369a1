"""``delegraph run`` and ``delegraph inspect``: a backend's own files, read by the format that its plugin declares."""

from __future__ import annotations

import argparse
import inspect
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..command.outcome import Outcome, expect_file, expect_places, natural_number, output_path, progress
from ..discovery.registry import default_registry
from ..errors import InputError, UsageError, WriteError
from ..host.files import FileFormat
from ..io.atomic_write import write_whole
from ..io.escape import printable, table

if TYPE_CHECKING:
    import numpy as np


class Inspect:
    """``delegraph inspect``."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("file", type=Path, metavar="FILE")
        parser.add_argument("--summary", action="store_true", help="one screen: what it is, takes, returns and holds")
        parser.add_argument("--html", type=output_path, metavar="FILE", help="write a page that shows the graph")
        parser.add_argument(
            "--verify", action="store_true", help="ask other tools that are installed; 1 if one refuses"
        )

    @staticmethod
    def run(args: argparse.Namespace) -> Outcome:
        file_format = _find_format(args.file)
        expect_places(filter(None, [args.html]), [args.file])
        with progress(f"reading {args.file}"):
            content, shown = _inspect(file_format, args)
        texts = [shown]
        if (buckets := file_format.bucket_table()) is not None:
            content["buckets"] = buckets.to_json()
            texts.append(printable(str(buckets)))
        if args.html:
            write_whole(args.html, file_format.page(args.file).encode())
            texts.append(f"wrote {args.html}")
        verdicts = file_format.verify(args.file) if args.verify else []
        if args.verify:
            content["verdicts"] = [verdict._asdict() for verdict in verdicts]
            texts += [f"{_VERDICTS[v.accepted]} {v.judge}: {v.detail}" for v in verdicts]
        refused = any(verdict.accepted is False for verdict in verdicts)
        return Outcome("delegraph.inspect/1", content, "\n".join(texts), int(refused))


def _inspect(file_format: FileFormat, args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """What is in a file, as data and as text. Of formats that have a summary, that is always among the data."""
    content: dict[str, Any] = {"file": str(args.file)}
    text = ""
    if args.summary or (args.json and file_format.defines("summarize")):
        summary = file_format.summarize(args.file)
        content["summary"], text = summary.to_json(), f"{args.file.name}: {summary}"
    if args.summary:
        return content, text
    inspection = file_format.inspect(args.file)
    return {**content, **inspection.to_json()}, str(inspection)


_VERDICTS = {True: "accepted by", False: "refused by", None: "not asked:"}


class Run:
    """``delegraph run``."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("file", type=Path, metavar="FILE")
        parser.add_argument(
            "--method", metavar="NAME", help="of several: forward, or what fits the inputs, unless given"
        )
        parser.add_argument(
            "--input", action="append", default=[], type=Path, metavar="FILE.npy", help="one for each input"
        )
        parser.add_argument(
            "--output", type=Path, metavar="DIR", help="folder that gets output_0.npy, output_1.npy, ..."
        )
        parser.add_argument(
            "--seed", type=natural_number, default=0, help="of random inputs, which are used without --input"
        )
        parser.add_argument(
            "--max-iterations",
            type=natural_number,
            metavar="N",
            help="iterations of all loops together (.tosa: 100000)",
        )

        parser.add_argument("--runtime", metavar="NAME", help="execute a .pte file in this runtime, such as executorch")

    @staticmethod
    def run(args: argparse.Namespace) -> Outcome:
        file_format = _find_format(args.file)
        bound = {} if args.max_iterations is None else {"max_iterations": args.max_iterations}
        if bound and "max_iterations" not in inspect.signature(file_format.kind.run).parameters:
            raise UsageError("usage-invalid", f"the format of {args.file.suffix} files does not count iterations")
        runs_itself = args.runtime is None and file_format.defines("run")
        if runs_itself and args.method is not None:
            raise UsageError("usage-invalid", f"the format of {args.file.suffix} files has no methods to choose from")
        named = {"method": args.method} if "method" in inspect.signature(file_format.kind.sample).parameters else {}
        for path in args.input:
            expect_file(path)
        if not args.input and not file_format.defines("sample"):
            text = f"the format of {args.file.suffix} files has no sample inputs"
            raise UsageError("usage-invalid", text, hint="give an .npy file for each input: --input FILE.npy")
        inputs = [_read_array(p) for p in args.input] or file_format.sample(args.file, args.seed, **named)
        with progress(f"running {args.file}"):
            if runs_itself:
                outputs = file_format.run(args.file, inputs, **bound)
            else:
                outputs = _call(file_format, inputs, args.runtime, args.method)
        rows = [_describe(name, value) for name, value in outputs]
        if args.output:
            _save(args.output, [value for _, value in outputs])
        cells = [[r["name"], r["dtype"], str(r["shape"]), *map(_format_number, list(r.values())[3:])] for r in rows]
        origin = "from files" if args.input else f"random, seed {args.seed}"
        head = ["OUTPUT", "DTYPE", "SHAPE", "MIN", "MAX", "MEAN", "NONFINITE"]
        content = {"inputs": {"random": not args.input, "seed": args.seed}, "outputs": rows}
        return Outcome("delegraph.run/1", content, f"inputs: {origin}\n" + table([head, *cells]))


def _find_format(path: Path) -> FileFormat:
    expect_file(path)
    return FileFormat(path, default_registry())


def _call(
    file_format: FileFormat, inputs: list[np.ndarray[Any, Any]], runtime: str | None, method: str | None
) -> list[tuple[str, Any]]:
    """Run a file by its method, with a tensor for each array: its format only reads it, or has another runtime."""
    import torch
    from torch.utils import _pytree as pytree

    loaded = file_format.load(runtime)
    called = loaded if method is None else loaded.method(method)
    results = pytree.tree_leaves(called(*map(torch.from_numpy, inputs)))
    return [(f"output_{k}", torch.as_tensor(r).detach().numpy()) for k, r in enumerate(results)]


def _read_array(path: Path) -> np.ndarray[Any, Any]:
    import numpy as np

    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as e:
        raise InputError("input-invalid", f"{path} is not a readable .npy file: {e}") from e
    if not isinstance(array, np.ndarray):
        text = f"{path} is an archive of arrays: {', '.join(array.files)}"
        array.close()
        raise InputError("input-invalid", text, hint="give an .npy file for each input, in the order of the inputs")
    return array


def _describe(name: str, value: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Name, type, shape, and statistics over the finite elements."""
    import numpy as np

    finite = value[np.isfinite(value)] if value.dtype.kind == "f" else value
    return {
        "name": name,
        "dtype": value.dtype.name,
        "shape": list(value.shape),
        "min": float(finite.min()) if finite.size else None,
        "max": float(finite.max()) if finite.size else None,
        "mean": float(finite.mean(dtype=np.float64)) if finite.size else None,
        "nonfinite": int(value.size - finite.size),
    }


def _format_number(value: float | int | None) -> str:
    return "-" if value is None else f"{value:.6g}"


def _save(folder: Path, arrays: list[np.ndarray[Any, Any]]) -> None:
    import numpy as np

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise WriteError("write-failed", f"cannot make the folder {folder}: {e.strerror or e}") from e
    for k, array in enumerate(arrays):
        content = io.BytesIO()
        np.save(content, array, allow_pickle=False)
        write_whole(folder / f"output_{k}.npy", content.getvalue())

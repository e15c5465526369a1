"""``.pte`` files: what ``delegraph.lower`` returns, saved, read back, shown and run.
Showing them needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from delegraph.command import provided
from delegraph.errors import OptionError
from delegraph.formats import (
    Blob,
    LoadDelegate,
    ProgramContents,
    ProgramFormat,
    Step,
    StoredBlob,
    Summary,
    Verdict,
)

from .inspection import ProgramFacts, collect_facts, summarize
from .inspection.blobs import stored_blobs
from .serialize.check import check_program
from .serialize.reader import (
    ProgramFile,
    named_segments,
    open_bytes,
    read_data,
    read_program,
)

if TYPE_CHECKING:
    import numpy as np

    from .emit import EmitOptions


class PteFormat(ProgramFormat):
    """ExecuTorch's program format; see ``emit.EmitOptions`` for the options of
    ``save``, and ``debug_file``.

    Data that go outside of the program are written beside it: ``model.pte`` and
    ``model.weights.ptd``. Reading takes every ``.ptd`` file of that name.
    ``debug_file=True`` writes ``model.debug.json`` (see ``debug``).
    """

    @staticmethod
    def serialize(program: ProgramContents, options: Mapping[str, Any]) -> bytes | Blob:
        """The content of the file. Raises OptionError if there are data files, which it
        does not hold.
        """
        files = PteFormat.files(program, options)
        if len(files) > 1:
            text = (
                "this program has data outside of its file, in"
                f" {', '.join(filter(None, files))}"
            )
            raise OptionError(
                "option-invalid", text, hint='save("model.pte") writes all its files'
            )
        return files[""]

    @classmethod
    def files(
        cls, program: ProgramContents, options: Mapping[str, Any]
    ) -> Mapping[str, bytes | Blob]:
        """The program, its data files by name, and ``debug.json`` with the option
        ``debug_file``.
        """
        from .debug import collect_debug
        from .emit import emit_program

        rest = dict(options)
        debug_file = rest.pop("debug_file", False)
        emitted = emit_program(program, _emit_options(rest))
        files: dict[str, bytes | Blob] = {"": emitted.file}
        files |= {
            f"{tag.removesuffix('.ptd')}.ptd": file
            for tag, file in emitted.data_files.items()
        }
        if debug_file:
            files["debug.json"] = collect_debug(program, emitted.debug_handles)
        return files

    @staticmethod
    def read(
        path: Path,
        load_delegate: LoadDelegate,
        max_memory: int = 1 << 33,
        max_iterations: int = 100_000,
    ) -> Mapping[str, Callable[..., Any]]:
        """The methods, to be run in torch, each with memory of its own; delegates run
        in their backends' runtimes.

        A method may state ``max_memory`` bytes of memory, and a call run
        ``max_iterations`` rounds of its loops.
        """
        from .run.program import HostProgram

        program = HostProgram(
            read_program(open_bytes(path)),
            _data_of(path),
            load_delegate,
            max_memory,
            max_iterations,
        )
        return {name: program.method(name) for name in program.methods}

    @staticmethod
    def profile(
        path: Path, load_delegate: LoadDelegate, see: Callable[[Step], None]
    ) -> Mapping[str, Callable[..., Any]]:
        """As ``read``; instructions are of the lines that the side file
        ``model.debug.json`` says, if there is one.
        """
        from .run.program import HostProgram
        from .run.steps import StepsOfFile

        file = read_program(open_bytes(path))
        steps = StepsOfFile(path, file)
        program = HostProgram(
            file,
            _data_of(path),
            load_delegate,
            ran=lambda plan, at: see(steps.step(plan.name, at)),
        )
        return {name: program.method(name) for name in program.methods}

    @staticmethod
    def named_data(path: Path) -> Mapping[str, bytes | memoryview]:
        """Named data of the program file, not of its data files."""
        return named_segments(read_program(open_bytes(path)))

    @staticmethod
    def blobs(path: Path) -> Sequence[StoredBlob]:
        """The delegates of all methods, in their order."""
        file = _checked(path)
        return [
            blob for plan in file.program.plans for blob in stored_blobs(file, plan)
        ]

    @staticmethod
    def load_in(runtime: str, path: Path) -> Mapping[str, Callable[..., Any]]:
        """The methods in ExecuTorch's own runtime, from the wheel ``executorch``."""
        from .run.stock import StockProgram

        program = StockProgram(path, _data_paths(path))
        return {name: program.method(name) for name in program.methods}

    @staticmethod
    def inspect(path: Path) -> ProgramFacts:
        """Figures, and the text of the methods."""
        return collect_facts(_checked(path), path.stat().st_size)

    @staticmethod
    def summarize(path: Path) -> Summary:
        """One screen."""
        file = _checked(path)
        return summarize(file, collect_facts(file, path.stat().st_size))

    @staticmethod
    def page(path: Path) -> str:
        """Figures, memory over time and text as one HTML page."""
        file = _checked(path)
        provided("delegraph_analysis.drawing:head", "a page that shows a file")
        from .inspection.page import render_page  # which draws by that distribution

        return render_page(
            file.program, collect_facts(file, path.stat().st_size), path.name
        )

    @staticmethod
    def sample(
        path: Path, seed: int, method: str | None = None
    ) -> list[np.ndarray[Any, Any]]:
        """One random array for each input of a method, as large as it may be; of
        ``forward`` unless one is named.
        """
        from .run.sample import sample_inputs

        return sample_inputs(_checked(path).program, seed, method)

    @staticmethod
    def verify(path: Path) -> Sequence[Verdict]:
        """Whether kernels get arguments that fit, whether the memory plan is right, and
        whether ExecuTorch's runtime loads the file, if it is installed.
        """
        from .run.verdicts import judge

        return judge(_checked(path), path)


def _data_of(path: Path) -> list[Any]:
    """The data files of a program, read."""
    return [read_data(open_bytes(other)) for other in _data_paths(path)]


def _data_paths(path: Path) -> list[Path]:
    return sorted(path.parent.glob(f"{_escape(path.stem)}.*.ptd"))


def _escape(name: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


_THEIR_NAMES = {
    "alloc_graph_input": "plan_inputs",
    "alloc_graph_output": "plan_outputs",
    "emit_stacktrace": "stack_traces",
}
"""Options by the names that ExecuTorch's configuration has for them."""


def _emit_options(options: Mapping[str, Any]) -> EmitOptions:
    from .emit import EmitOptions

    twice = [
        name
        for name, ours in _THEIR_NAMES.items()
        if name in options and ours in options
    ]
    if twice:
        raise OptionError(
            "option-invalid", f"{twice[0]} and {_THEIR_NAMES[twice[0]]} are one option"
        )
    options = {_THEIR_NAMES.get(name, name): value for name, value in options.items()}
    known = [field.name for field in fields(EmitOptions)]
    unknown = [name for name in options if name not in known]
    if unknown:
        known_too = ", ".join([*known, "debug_file"])
        raise OptionError(
            "option-invalid",
            f".pte files have no option {unknown[0]!r}; they have {known_too}",
        )
    return EmitOptions(**options)


def _checked(path: Path) -> ProgramFile:
    file = read_program(open_bytes(path))
    check_program(file)
    return file

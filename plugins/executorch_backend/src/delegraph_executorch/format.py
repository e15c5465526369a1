"""Save, read, inspect and run ``.pte`` files. Inspecting needs no torch."""

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
    """ExecuTorch's program format.

    ``save`` has the options of ``emit.EmitOptions``, and ``debug_file``. Data files are
    written to the program's folder: ``model.pte`` and ``model.weights.ptd``. Reading
    uses every ``.ptd`` file of that name. ``debug_file=True`` writes
    ``model.debug.json`` (see ``debug``).
    """

    @staticmethod
    def serialize(program: ProgramContents, options: Mapping[str, Any]) -> bytes | Blob:
        """Return the content of the file.

        Raises OptionError if the program has data files.
        """
        files = PteFormat.files(program, options)
        if len(files) > 1:
            others = ", ".join(filter(None, files))
            text = f"this program consists of several files; the others are {others}"
            hint = 'save("model.pte") writes all of them'
            raise OptionError("option-invalid", text, hint=hint)
        return files[""]

    @classmethod
    def files(
        cls, program: ProgramContents, options: Mapping[str, Any]
    ) -> Mapping[str, bytes | Blob]:
        """Return the files by name; "" is the program file.

        The others are data files, and ``debug.json`` for the option ``debug_file``.
        """
        from .debug import collect_debug
        from .emit import emit_program

        rest = dict(options)
        debug_file = rest.pop("debug_file", False)
        emitted = emit_program(program, _emit_options(rest))
        files: dict[str, bytes | Blob] = {"": emitted.file}
        for tag, file in emitted.data_files.items():
            files[f"{tag.removesuffix('.ptd')}.ptd"] = file
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
        """Return the methods, which run in torch; delegates run in their runtimes.

        A method may declare ``max_memory`` bytes of memory, and a call run
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
        """Return the methods of a file; their calls pass each step to ``see``.

        A step describes an instruction that just ran. The caller measures the time
        between steps. Steps have the user's lines if there is a debug file
        ``model.debug.json``.
        """
        from .run.program import HostProgram
        from .run.steps import StepsOfFile

        file = read_program(open_bytes(path))
        steps = StepsOfFile(path, file)
        program = HostProgram(
            file,
            _data_of(path),
            load_delegate,
            ran=lambda plan, position: see(steps.step(plan.name, position)),
        )
        return {name: program.method(name) for name in program.methods}

    @staticmethod
    def named_data(path: Path) -> Mapping[str, bytes | memoryview]:
        """Return the named data of the program file, not of its data files."""
        return named_segments(read_program(open_bytes(path)))

    @staticmethod
    def blobs(path: Path) -> Sequence[StoredBlob]:
        """Return the delegates of all methods, in their order."""
        file = _checked(path)
        blobs: list[StoredBlob] = []
        for plan in file.program.plans:
            blobs += stored_blobs(file, plan)
        return blobs

    @staticmethod
    def load_in(runtime: str, path: Path) -> Mapping[str, Callable[..., Any]]:
        """Return the methods in the runtime of the wheel ``executorch``."""
        from .run.stock import StockProgram

        program = StockProgram(path, _data_paths(path))
        return {name: program.method(name) for name in program.methods}

    @staticmethod
    def inspect(path: Path) -> ProgramFacts:
        """Return the figures of a file, and the text of its methods."""
        return collect_facts(_checked(path), path.stat().st_size)

    @staticmethod
    def summarize(path: Path) -> Summary:
        """Return a summary for one screen."""
        file = _checked(path)
        return summarize(file, collect_facts(file, path.stat().st_size))

    @staticmethod
    def page(path: Path) -> str:
        """Return an HTML page with figures, memory over time and text."""
        file = _checked(path)
        provided("delegraph_analysis.drawing:head", "a page that shows a file")
        # Imported here, since it needs delegraph-analysis.
        from .inspection.page import render_page

        facts = collect_facts(file, path.stat().st_size)
        return render_page(file.program, facts, path.name)

    @staticmethod
    def sample(
        path: Path, seed: int, method: str | None = None
    ) -> list[np.ndarray[Any, Any]]:
        """Return a random array for each input of a method, of its largest size.

        The method is ``forward`` by default.
        """
        from .run.sample import sample_inputs

        return sample_inputs(_checked(path).program, seed, method)

    @staticmethod
    def verify(path: Path) -> Sequence[Verdict]:
        """Judge arguments, memory plan, and loading in ExecuTorch's runtime."""
        from .run.verdicts import judge_file

        return judge_file(_checked(path), path)


def _data_of(path: Path) -> list[Any]:
    """Read the data files of a program."""
    return [read_data(open_bytes(other)) for other in _data_paths(path)]


def _data_paths(path: Path) -> list[Path]:
    """Return the data files of ``model.pte``: ``model.NAME.ptd`` in its folder."""
    return sorted(path.parent.glob(f"{_escape(path.stem)}.*.ptd"))


def _escape(name: str) -> str:
    """Return a pattern of ``glob`` that matches only ``name``."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


_THEIR_NAMES = {
    "alloc_graph_input": "plan_inputs",
    "alloc_graph_output": "plan_outputs",
    "emit_stacktrace": "stack_traces",
}
"""Names of options in ExecuTorch's configuration -> names in ``EmitOptions``."""


def _emit_options(options: Mapping[str, Any]) -> EmitOptions:
    """Return the options of ``save``; OptionError for unknown or duplicate ones.

    Names of ExecuTorch's configuration are accepted as well.
    """
    from .emit import EmitOptions

    for theirs, ours in _THEIR_NAMES.items():
        if theirs in options and ours in options:
            text = f"{theirs} and {ours} are the same option; leave out one of them"
            raise OptionError("option-invalid", text)
    options = {_THEIR_NAMES.get(name, name): value for name, value in options.items()}
    known = [field.name for field in fields(EmitOptions)]
    unknown = [name for name in options if name not in known]
    if unknown:
        listed = ", ".join([*known, "debug_file"])
        text = f".pte files have no option {unknown[0]!r}; they have {listed}"
        raise OptionError("option-invalid", text)
    return EmitOptions(**options)


def _checked(path: Path) -> ProgramFile:
    """Return the content of a file; FormatError if it is damaged."""
    file = read_program(open_bytes(path))
    check_program(file)
    return file

"""Compare backends: one export of a model, lowered for each alone and for all together."""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from delegraph import LoweredProgram, Registry, default_registry, export, lower
from delegraph.compiler import Compiler
from delegraph.errors import DelegraphError, InputError, OptionError
from delegraph.host import FileFormat, Verification, call_of_model
from delegraph.io.escape_for_terminal import printable, table
from delegraph.report import Report, format_seconds, format_size, left_operators
from delegraph_programs import TRACING, all_nodes, operator_name
from delegraph_programs.type_aliases import ExampleInputs, Program, Transform
from torch.export import ExportedProgram

from .profiling import load_of_machine, load_text
from .turns import Caller, call_in_turns

RUNS = 5
"""The calls of which a run's time is the median.

Calls of all lowerings and of eager PyTorch alternate.
"""
_FILE = "as .pte"
"""The heading of the size of the program's ``.pte`` file."""
_HEADS_OF_RUNS = ("first call", "a run", "from ... to", "memory", "largest error")
_HEADS = (
    "backends",
    "delegated",
    "delegates",
    "size",
    _FILE,
    "lowering",
    *_HEADS_OF_RUNS,
    "",
)


@dataclass(frozen=True)
class Candidate:
    """One lowering: its backends, its report, and measurements on this host.

    ``lower_seconds`` is without the export. ``file_bytes``: the size of its ``.pte``
    file; None if that format is missing or cannot hold it. ``first_seconds``: the first
    call of each method, which loads the delegates. ``peak_bytes``: the growth of the
    process's peak memory in that call; None if the system does not report it.
    ``run_seconds``: the median of later calls; ``spread``: the fastest and the slowest.
    These and ``verifications``, by method, are None if a backend has no runtime here.
    ``error`` ended the lowering or the run. ``missing`` maps columns of the table to
    the reason why this row has no figure.
    """

    backends: tuple[str, ...]
    report: Report | None = None
    lower_seconds: float | None = None
    file_bytes: int | None = None
    first_seconds: float | None = None
    peak_bytes: int | None = None
    run_seconds: float | None = None
    spread: tuple[float, float] | None = None
    verifications: Mapping[str, Verification] | None = None
    error: DelegraphError | None = None
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def relative_error(self) -> float | None:
        """Return the largest error of all methods."""
        if self.verifications is None:
            return None
        found = self.verifications.values()
        return max((v.relative_error for v in found), default=0.0)

    @property
    def has_only_non_finite(self) -> bool:
        """Return whether some output has no finite element, so that no number was
        compared.
        """
        return any(v.has_only_non_finite for v in (self.verifications or {}).values())

    @property
    def bytes(self) -> int | None:
        """Return the size of the blobs of all delegates."""
        if self.report is None:
            return None
        return sum(row.bytes for row in self.report.delegates)

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary of plain values."""
        report = self.report
        error = self.error
        return {
            "backends": list(self.backends),
            "delegated_share": report and report.delegated_share,
            "delegates": report and len(report.delegates),
            "bytes": self.bytes,
            "file_bytes": self.file_bytes,
            "lower_seconds": self.lower_seconds,
            "first_seconds": self.first_seconds,
            "run_seconds": self.run_seconds,
            "spread": self.spread and list(self.spread),
            "peak_bytes": self.peak_bytes,
            "relative_error": self.relative_error,
            "agrees": (
                self.verifications
                and all(v.agrees() for v in self.verifications.values())
            ),
            "only_non_finite": self.has_only_non_finite,
            "error": error and {"code": error.code, "message": error.message},
            "missing": dict(self.missing),
            "report": report and report.to_json(),
        }

    def cells(self) -> list[str]:
        """Return a row of the table, without its heads ``_HEADS``."""
        report = self.report
        taken = "-"
        delegates = "-"
        if report is not None:
            operators = report.delegated_operators + report.host_operators
            taken = f"{report.delegated_share:.0%} of {operators}"
            delegates = str(len(report.delegates))
        largest_error = "-"
        if self.relative_error is not None:
            largest_error = f"{self.relative_error:.2g}"
            if self.has_only_non_finite:
                largest_error += " (not finite)"
        failure = ""
        if self.error is not None:
            first_line = self.error.message.partition("\n")[0]
            failure = f"{self.error.code}: {first_line}"
        return [
            " + ".join(self.backends) or "eager",
            taken,
            delegates,
            _size(self.bytes),
            _size(self.file_bytes),
            _seconds(self.lower_seconds),
            _seconds(self.first_seconds),
            _seconds(self.run_seconds),
            _span(self.spread),
            _size(self.peak_bytes),
            largest_error,
            failure,
        ]


@dataclass(frozen=True, repr=False)
class Comparison:
    """All lowerings of one export.

    ``alone``: backend -> operator -> the number of its calls that only this backend
    takes. ``eager_seconds`` and ``eager_spread``: a call of each method in eager
    PyTorch. ``load``: the average number of ready processes per processor in the last
    minute; None if unknown.
    """

    candidates: tuple[Candidate, ...]
    alone: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    export_seconds: float = 0.0
    eager_seconds: float | None = None
    eager_spread: tuple[float, float] | None = None
    load: float | None = None

    def __repr__(self) -> str:
        names = [" + ".join(c.backends) or "eager" for c in self.candidates]
        return f"<Comparison: {', '.join(names)}>"

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary of plain values."""
        rows = [candidate.to_json() for candidate in self.candidates]
        only = {
            backend: dict(sorted(counts.items()))
            for backend, counts in self.alone.items()
        }
        return {
            "schema": "delegraph.compare/1",
            "export_seconds": self.export_seconds,
            "eager_seconds": self.eager_seconds,
            "eager_spread": self.eager_spread and list(self.eager_spread),
            "runs": RUNS,
            "load": self.load,
            "candidates": rows,
            "only": only,
        }

    def _rows(self) -> list[list[str]]:
        """Return the rows of the table; the last one is eager PyTorch's."""
        eager = [
            "eager",
            *["-"] * 6,
            _seconds(self.eager_seconds),
            _span(self.eager_spread),
            "-",
            "-",
            "",
        ]
        return [*(c.cells() for c in self.candidates), eager]

    def _how(self) -> str:
        """Describe how the times were taken, and how busy the machine was."""
        return f"a run is the median of {RUNS} calls, taken in turns" + load_text(
            self.load
        )

    def __str__(self) -> str:
        return self.text()

    def text(self, width: int | None = None) -> str:
        """Return a table with a row for each lowering.

        If it is wider than ``width`` columns, the rows are listed one below the other.
        """
        shown = table([list(map(str.upper, _HEADS)), *self._rows()])
        if width is not None and max(map(len, shown.split("\n"))) > width:
            shown = "\n".join(map(_block, self._rows()))
        notes = self._missing()
        for backend, counts in self.alone.items():
            notes.append(f"only {backend} takes: {_counts(counts)}")
        return "\n".join([shown, self._how(), *map(printable, notes)])

    def _missing(self) -> list[str]:
        """Return a sentence for each reason for which a row has no figure in some
        columns.
        """
        sentences = []
        for candidate in self.candidates:
            columns: dict[str, list[str]] = {}
            for column, reason in candidate.missing.items():
                columns.setdefault(reason, []).append(column)
            name = " + ".join(candidate.backends)
            sentences += [
                f"{name} has no {', '.join(heads)!r}: {reason}"
                for reason, heads in columns.items()
            ]
        return sentences


def compare(
    program: Program | Mapping[str, Program],
    example_inputs: ExampleInputs = None,
    *,
    backends: Sequence[str] | None = None,
    example_kwargs: Any = None,
    dynamic_shapes: Any = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    transforms: Sequence[Transform] = (),
    registry: Registry | None = None,
    compiler: Compiler | None = None,
) -> Comparison:
    """Export a model once, lower it for each backend alone and for all in the given
    order, run and verify each.

    Arguments are those of ``delegraph.lower``; ``backends`` are all usable ones by
    default. An error of a backend ends its own row only. An unknown backend or option,
    or a failed export, raises. Programs without example inputs are not run.
    """
    chosen = registry or default_registry()
    names = _names_of(backends, chosen)
    for name in names:
        chosen.get_partitioner(name)  # import the plugin before times are measured
    start = time.perf_counter()
    exported = export(
        program,
        example_inputs,
        example_kwargs=example_kwargs,
        dynamic_shapes=dynamic_shapes,
    )
    export_seconds = time.perf_counter() - start
    inputs: Any = {"forward": example_inputs}
    named: Any = {"forward": example_kwargs}
    if isinstance(program, Mapping):
        inputs = example_inputs or {}
        named = example_kwargs or {}
    calls = {}
    for method, made in exported.items():
        call = example_call(inputs.get(method), named.get(method), made)
        if call is not None:
            calls[method] = call
    groups: list[tuple[str, ...]] = [(name,) for name in names]
    if len(names) > 1:
        groups.append(names)

    def lower_for(group: tuple[str, ...]) -> LoweredProgram:
        theirs = {
            name: value for name, value in (options or {}).items() if name in group
        }
        return lower(
            exported,
            backends=group,
            options=theirs,
            transforms=transforms,
            registry=chosen,
            compiler=compiler,
        )

    tried = [_try(group, lower_for) for group in groups]
    lowered = {one.group: one.lowered for one in tried if one.lowered is not None}

    callers: dict[tuple[str, ...], Caller] = {}
    eager = None
    if len(calls) == len(exported):  # all methods have example inputs
        writes = {}
        for method in exported:
            writes[method] = any(
                writes_inputs(result, method) for result in lowered.values()
            )
        for group, result in lowered.items():
            callers[group] = caller_of(result.instance(), calls, writes)
        eager = caller_of_eager(exported, calls, writes)
        call_in_turns([eager, *callers.values()], RUNS)

    load = load_of_machine()
    candidates = [
        _candidate(one, callers.get(one.group), calls, chosen) for one in tried
    ]
    taken = {}
    for group, result in lowered.items():
        if len(group) == 1:
            taken[group[0]] = _delegated(result)
    return Comparison(
        tuple(candidates),
        alone=_alone(taken),
        export_seconds=export_seconds,
        eager_seconds=None if eager is None else eager.median,
        eager_spread=None if eager is None else _spread(eager),
        load=load,
    )


def _names_of(backends: Sequence[str] | None, registry: Registry) -> tuple[str, ...]:
    """Return the backends to compare, each once; by default, all usable ones."""
    if backends is None:
        backends = [b.name for b in registry.usable_backends()]
    if isinstance(backends, str) or not backends:
        raise OptionError(
            "option-invalid", f"backends is a list of names, not {backends!r}"
        )
    return tuple(dict.fromkeys(backends))


Handles = dict[tuple[str, int], str]
"""(Method, debug handle) -> the operator of the model."""
Call = tuple[tuple[Any, ...], Mapping[str, Any]]
"""Arguments and keyword arguments."""


def example_call(inputs: Any, named: Any, program: ExportedProgram) -> Call | None:
    """Return a call of a method: with the given inputs, else with those of its export."""
    if inputs is None and not named:
        stored: Call | None = program.example_inputs
        return stored
    if isinstance(inputs, torch.Tensor):
        inputs = (inputs,)
    return tuple(inputs or ()), named or {}


class _Tried(NamedTuple):
    """A lowering and its seconds, or the error that ended it."""

    group: tuple[str, ...]
    lowered: LoweredProgram | None
    seconds: float
    error: DelegraphError | None = None


def _try(
    group: tuple[str, ...], lower_for: Callable[[tuple[str, ...]], LoweredProgram]
) -> _Tried:
    """Lower for a group of backends, and keep the error of a backend."""
    start = time.perf_counter()
    try:
        lowered = lower_for(group)
        return _Tried(group, lowered, time.perf_counter() - start)
    except (OptionError, InputError):
        raise  # the caller's mistake, which would end all lowerings
    except DelegraphError as e:
        return _Tried(group, None, 0.0, e)


def writes_inputs(lowered: LoweredProgram, method: str) -> bool:
    """Return whether a method writes its inputs.

    The lowered program declares this; the exported one may not.
    """
    return bool(lowered.exported_program(method).graph_signature.user_inputs_to_mutate)


def caller_of(
    lowered: LoweredProgram, calls: Mapping[str, Call], writes: Mapping[str, bool]
) -> Caller:
    """Return a caller of each method of a lowered program."""
    methods = {method: lowered.method(method) for method in calls}
    return Caller(partial(call_methods, methods, calls, writes))


def caller_of_eager(
    programs: Mapping[str, ExportedProgram],
    calls: Mapping[str, Call],
    writes: Mapping[str, bool],
) -> Caller:
    """Return a caller of each method in eager PyTorch.

    It calls the model's own code, so it holds the lock against tracing in other
    threads.
    """
    methods = {
        method: program.module(check_guards=False)
        for method, program in programs.items()
    }

    def call() -> float:
        with TRACING:
            return call_methods(methods, calls, writes)

    return Caller(call)


def call_methods(
    methods: Mapping[str, Callable[..., Any]],
    calls: Mapping[str, Call],
    writes: Mapping[str, bool],
) -> float:
    """Return the seconds of a call of each method.

    A method that writes to its inputs gets copies.
    """
    seconds = 0.0
    for method, run in methods.items():
        args, kwargs = copy.deepcopy(calls[method]) if writes[method] else calls[method]
        start = time.perf_counter()
        with call_of_model(method):
            run(*args, **kwargs)
        seconds += time.perf_counter() - start
    return seconds


def _candidate(
    tried: _Tried, caller: Caller | None, calls: Mapping[str, Call], registry: Registry
) -> Candidate:
    """Return the figures of one lowering; after an error, those measured before it."""
    lowered = tried.lowered
    if lowered is None:
        return Candidate(tried.group, error=tried.error)
    missing: dict[str, str] = {}
    measured: dict[str, Any] = {
        "report": lowered.report,
        "lower_seconds": tried.seconds,
        "file_bytes": _file_bytes(lowered, registry, missing),
        "missing": missing,
    }
    if caller is None:
        missing |= dict.fromkeys(_HEADS_OF_RUNS, "the program has no example inputs")
        return Candidate(tried.group, **measured)
    if caller.peak_bytes is None and caller.error is None:
        missing["memory"] = "this system does not report the peak of memory"
    found = None
    error = caller.error
    try:
        if error is None:
            found = {}
            for method, (args, kwargs) in calls.items():
                found[method] = lowered.verify(*args, method=method, **kwargs)
    except DelegraphError as e:
        error = e
    return Candidate(
        tried.group,
        **measured,
        first_seconds=caller.first_seconds,
        peak_bytes=caller.peak_bytes,
        run_seconds=caller.median,
        spread=None if caller.median is None else _spread(caller),
        verifications=found,
        error=error,
    )


def _file_bytes(
    lowered: LoweredProgram, registry: Registry, missing: dict[str, str]
) -> int | None:
    """Return the size of the program as a ``.pte`` file.

    If it cannot be one, write the reason to ``missing`` and return None.
    """
    try:
        with TRACING:  # a format may trace
            files = FileFormat("program.pte", registry).contents(lowered, {})
    except DelegraphError as e:
        missing[_FILE] = e.message.partition("\n")[0]
        return None
    return sum(map(len, files.values()))


def _spread(caller: Caller) -> tuple[float, float] | None:
    """Return the seconds of the fastest and the slowest call."""
    return (min(caller.seconds), max(caller.seconds)) if caller.seconds else None


def _seconds(value: float | None) -> str:
    """Return a time as text.

    Times below a second get three digits: small programs take microseconds.
    """
    if value is None:
        return "-"
    return format_seconds(value) if value >= 1 else f"{1000 * value:.3g} ms"


def _size(value: int | None) -> str:
    return "-" if value is None else format_size(value)


def _span(value: tuple[float, float] | None) -> str:
    return "-" if value is None else " ... ".join(map(_seconds, value))


def _delegated(lowered: LoweredProgram) -> Handles:
    """Return the operators of the model that are in delegates.

    An operator that was decomposed, and is partly on the host, does not count.
    """
    found: Handles = {}
    for info in lowered.delegates:
        for node in info.nodes:
            names = node.meta.get("decomposed_from") or (operator_name(node),)
            found[info.method, node.meta.get("debug_handle", 0)] = names[0]
    for method in lowered.methods:
        nodes = all_nodes(lowered.exported_program(method).graph_module)
        for left in left_operators(nodes):
            found.pop((method, left.node.meta.get("debug_handle", 0)), None)
    return found


def _alone(taken: Mapping[str, Handles]) -> dict[str, dict[str, int]]:
    """Count the operators that a single backend takes: backend -> operator -> count."""
    if len(taken) < 2:
        return {}
    takers = Counter[Any]()
    for handles in taken.values():
        takers.update(handles.keys())
    found = {}
    for backend, handles in taken.items():
        counts = Counter(
            operator for handle, operator in handles.items() if takers[handle] == 1
        )
        if counts:
            found[backend] = dict(counts)
    return found


def _block(row: Sequence[str]) -> str:
    """Return a row of the table as lines below its name, without unknown facts."""
    known = []
    for head, cell in zip(_HEADS[1:], row[1:], strict=True):
        if cell not in ("-", ""):
            known.append([f"  {head or 'error'}", cell])
    lines = [printable(row[0])]
    if known:
        lines.append(table(known))
    return "\n".join(lines)


def _counts(counts: Mapping[str, int]) -> str:
    """Return operators with their counts, the most frequent first."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{n} x {op}" for op, n in ordered)

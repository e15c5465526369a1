"""``delegraph.compare``: one export of a model, lowered for each of several backends alone, and for all together."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from delegraph import LoweredProgram, Registry, default_registry, export, lower
from delegraph.errors import DelegraphError, InputError, OptionError
from delegraph.exported import TRACING, ExampleInputs, Program, Transform, all_nodes, operator_name
from delegraph.host import Verification
from delegraph.io.escape import table
from delegraph.reports import Report, format_seconds, format_size, left_operators
from torch.export import ExportedProgram

from .page.tables import Section, fragment, tables

RUNS = 5
"""Calls of which the time of a run is the median."""
_HEADS = ("backends", "delegated", "delegates", "size", "lowering", "a run", "largest error", "")


@dataclass(frozen=True)
class Candidate:
    """One lowering: for which backends, its report, and what was measured on this host.

    ``lower_seconds`` is without the export. ``run_seconds``, a call of each method, and ``verifications``, by method,
    are None where a backend has no runtime here. ``error`` is what ended the lowering or the run, and says why.
    """

    backends: tuple[str, ...]
    report: Report | None = None
    lower_seconds: float | None = None
    run_seconds: float | None = None
    verifications: Mapping[str, Verification] | None = None
    error: DelegraphError | None = None

    @property
    def relative_error(self) -> float | None:
        """The largest of all methods."""
        found = self.verifications
        return None if found is None else max((v.relative_error for v in found.values()), default=0.0)

    @property
    def bytes(self) -> int | None:
        """Of all its blobs."""
        return None if self.report is None else sum(row.bytes for row in self.report.delegates)

    def to_json(self) -> dict[str, Any]:
        """As a dictionary of plain values."""
        report, error = self.report, self.error
        return {
            "backends": list(self.backends),
            "delegated_share": report and report.delegated_share,
            "delegates": report and len(report.delegates),
            "bytes": self.bytes,
            "lower_seconds": self.lower_seconds,
            "run_seconds": self.run_seconds,
            "relative_error": self.relative_error,
            "error": error and {"code": error.code, "message": error.message},
            "report": report and report.to_json(),
        }

    def cells(self) -> list[str]:
        """As a row of a table."""
        r, error = self.report, self.relative_error
        taken = "-" if r is None else f"{r.delegated_share:.0%} of {r.delegated_operators + r.host_operators}"
        times = ["-" if s is None else format_seconds(s) for s in (self.lower_seconds, self.run_seconds)]
        return [
            " + ".join(self.backends) or "eager",
            taken,
            "-" if r is None else str(len(r.delegates)),
            "-" if self.bytes is None else format_size(self.bytes),
            *times,
            "-" if error is None else f"{error:.2g}",
            "" if self.error is None else f"{self.error.code}: {self.error.message.partition(chr(10))[0]}",
        ]


@dataclass(frozen=True, repr=False)
class Comparison:
    """All lowerings of one export. ``alone``: backend -> operator -> how many of it no other backend takes by itself.

    ``eager_seconds``: a call of each method in eager PyTorch, by the same measure.
    """

    candidates: tuple[Candidate, ...]
    alone: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    export_seconds: float = 0.0
    eager_seconds: float | None = None

    def __repr__(self) -> str:
        return f"<Comparison: {', '.join(' + '.join(c.backends) or 'eager' for c in self.candidates)}>"

    def to_json(self) -> dict[str, Any]:
        """As a dictionary of plain values."""
        rows = [candidate.to_json() for candidate in self.candidates]
        only = {backend: dict(sorted(counts.items())) for backend, counts in self.alone.items()}
        seconds = {"export_seconds": self.export_seconds, "eager_seconds": self.eager_seconds}
        return {"schema": "delegraph.compare/1", **seconds, "candidates": rows, "only": only}

    def to_html(self) -> str:
        """As one page without scripts."""
        return tables("Comparison of backends", self._sections())

    def _sections(self) -> list[Section]:
        only = [[backend, _counts(counts)] for backend, counts in self.alone.items()]
        return [("Lowerings", _HEADS, self._rows()), ("Operators that only one takes", ("backend", "which"), only)]

    def _rows(self) -> list[list[str]]:
        eager = "-" if self.eager_seconds is None else format_seconds(self.eager_seconds)
        return [*(c.cells() for c in self.candidates), ["eager", "-", "-", "-", "-", eager, "-", ""]]

    def _repr_html_(self) -> str:
        return fragment("Comparison of backends", (), self._sections())

    def __str__(self) -> str:
        rows = [list(map(str.upper, _HEADS)), *self._rows()]
        return "\n".join([table(rows), *(f"only {b} takes: {_counts(n)}" for b, n in self.alone.items())])


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
) -> Comparison:
    """Export a model once, lower it for each backend alone and for all in the given order, run and verify each.

    Arguments are those of ``delegraph.lower``; ``backends`` are all that can be used unless given. What a backend
    raises ends its own row only; a model that cannot be exported, an unknown backend or option raises. Programs
    without example inputs are lowered, but not run.
    """
    chosen = registry or default_registry()
    names = _names_of(backends, chosen)
    start = time.perf_counter()
    exported = export(program, example_inputs, example_kwargs=example_kwargs, dynamic_shapes=dynamic_shapes)
    export_seconds = time.perf_counter() - start
    inputs: Any = example_inputs
    named: Any = example_kwargs
    if not isinstance(program, Mapping):
        inputs, named = {"forward": inputs}, {"forward": named}
    inputs, named = inputs or {}, named or {}
    calls = {m: _call_of(inputs.get(m), named.get(m), made) for m, made in exported.items()}
    groups: list[tuple[str, ...]] = [(name,) for name in names]
    groups += [names] if len(names) > 1 else []

    def one(group: tuple[str, ...]) -> LoweredProgram:
        theirs = {b: o for b, o in (options or {}).items() if b in group}
        return lower(exported, backends=group, options=theirs, transforms=transforms, registry=chosen)

    made, taken = [], {}
    for group in groups:
        candidate, handles = _measure(group, one, calls)
        made.append(candidate)
        if len(group) == 1 and handles is not None:
            taken[group[0]] = handles
    return Comparison(tuple(made), _alone(taken), export_seconds, _eager_seconds(exported, calls))


def _names_of(backends: Sequence[str] | None, registry: Registry) -> tuple[str, ...]:
    """The backends to compare, each once. Loads their plugins, so that none is measured with its imports."""
    if backends is None:
        backends = [b.name for b in registry.usable_backends()]
    if isinstance(backends, str) or not backends:
        raise OptionError("option-invalid", f"backends is a list of names, not {backends!r}")
    for backend in backends:
        registry.get_partitioner(backend)
    return tuple(dict.fromkeys(backends))


Handles = dict[tuple[str, int], str]
"""(Method, debug handle) -> the operator of the model."""
_Call = tuple[tuple[Any, ...], Mapping[str, Any]]


def _call_of(inputs: Any, named: Any, program: ExportedProgram) -> _Call | None:
    """The call to make of a method: with what was given for it, else with what it was exported with."""
    if inputs is None and not named:
        stored: _Call | None = program.example_inputs
        return stored
    return ((inputs,) if isinstance(inputs, torch.Tensor) else tuple(inputs or ())), named or {}


def _measure(
    group: tuple[str, ...], one: Callable[[tuple[str, ...]], LoweredProgram], calls: Mapping[str, _Call | None]
) -> tuple[Candidate, Handles | None]:
    """One lowering and its run; an error ends the measuring, not what was measured before it."""
    start = time.perf_counter()
    try:
        lowered = one(group)
    except (OptionError, InputError):
        raise  # the caller's own, and the same for each
    except DelegraphError as e:
        return Candidate(group, error=e), None
    measured: dict[str, Any] = {"report": lowered.report, "lower_seconds": time.perf_counter() - start}
    runnable = {m: c for m, c in calls.items() if c is not None}
    try:
        if len(runnable) == len(calls):
            measured["run_seconds"] = _median_seconds({m: lowered.instance().method(m) for m in runnable}, runnable)
            found = {m: lowered.verify(*args, method=m, **kwargs) for m, (args, kwargs) in runnable.items()}
            measured["verifications"] = found
    except DelegraphError as e:  # such as NoRuntime
        measured["error"] = e
    return Candidate(group, **measured), _delegated(lowered)


def _eager_seconds(exported: Mapping[str, ExportedProgram], calls: Mapping[str, _Call | None]) -> float | None:
    """A call of each method in eager PyTorch; None if a program has no example inputs."""
    if None in calls.values():
        return None
    with TRACING:  # the model itself is called
        return _median_seconds({m: program.module(check_guards=False) for m, program in exported.items()}, calls)


def _median_seconds(methods: Mapping[str, Callable[..., Any]], calls: Mapping[str, Any]) -> float:
    """A call of each method, after one that loads what there is to load."""
    seconds = []
    for _ in range(RUNS + 1):
        start = time.perf_counter()
        for method, run in methods.items():
            args, kwargs = calls[method]
            run(*args, **kwargs)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])


def _delegated(lowered: LoweredProgram) -> Handles:
    """The operators of the model that are in delegates, whole."""
    found: Handles = {}
    for info in lowered.delegates:
        for node in info.nodes:
            around = node.meta.get("decomposed_from") or (operator_name(node),)
            found[info.method, node.meta.get("debug_handle", 0)] = around[0]
    for method in lowered.methods:
        for left in left_operators(all_nodes(lowered.exported_program(method).graph_module)):
            found.pop((method, left.node.meta.get("debug_handle", 0)), None)
    return found


def _alone(taken: Mapping[str, Handles]) -> dict[str, dict[str, int]]:
    """Backend -> operator -> how many of it are taken by this one only."""
    times = Counter(handle for handles in taken.values() for handle in handles)
    found = {b: Counter(op for h, op in handles.items() if times[h] == 1) for b, handles in taken.items()}
    return {b: dict(counts) for b, counts in found.items() if counts} if len(taken) > 1 else {}


def _counts(counts: Mapping[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{n} x {op}" for op, n in ordered)

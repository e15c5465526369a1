"""Lower one program and keep the facts that checks need."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import delegraph
import torch
from delegraph.backend import CompileSpec
from delegraph.errors import ContractViolation, PluginFailed, Unsupported
from delegraph.partitioner import Partitioner, PartitionResult
from delegraph.report import host_calls
from delegraph_programs import operator_name
from delegraph_programs.call_names import INDEXED, WITHIN
from torch.export import ExportedProgram
from torch.fx import Node

from .programs import Exported, Program, undisturbed

if TYPE_CHECKING:
    from delegraph import LoweredProgram

HandedOver = tuple[bytes, list[CompileSpec], dict[str, Any]]
"""Blob, compile specs and named data of a delegate."""


class Phase(StrEnum):
    """The step at which a lowering stopped."""

    DONE = "done"
    PARTITION = "partition"
    CONTRACT = "contract"
    COMPILE = "compile"
    ENGINE = "engine"
    """No backend can lower the program, so the tested backend is not at fault."""


@dataclass
class LoweringAttempt:
    """One program, its partitioner's answer, and the lowered program or the error."""

    program: Program
    exported: ExportedProgram
    inputs: tuple[Any, ...]
    recording: Recording | None = None
    """None if the partitioner could not be made."""
    phase: Phase = Phase.DONE
    lowered: LoweredProgram | None = None
    error: BaseException | None = None
    changed: Sequence[str] = ()
    """Parts of the exported program that the lowering changed."""
    handed_over: Sequence[HandedOver] = ()
    """The backend's results right after the lowering."""
    seconds: float = 0.0

    @property
    def partitioned(self) -> PartitionResult | None:
        """Return the partitioner's result."""
        return self.recording.result if self.recording else None

    @property
    def refusals(self) -> dict[Node, str]:
        """Return the reason for each refused node.

        Reasons come from the partitioner, or from a compiler that may refuse
        partitions.
        """
        if self.partitioned is None:
            return {}
        reasons = {row.node: row.reason for row in self.partitioned.refusals}
        if self.lowered is None:
            return reasons
        by_partition = {
            row.partition: row.reason for row in self.lowered.report.given_back
        }
        for node in self.calls:
            tag = node.meta.get("delegation_tag")
            if isinstance(tag, str) and tag in by_partition:
                reasons[node] = by_partition[tag]
        return reasons

    @property
    def calls(self) -> list[Node]:
        """Return the calls of the last program that the partitioner got."""
        program = self.recording.program if self.recording else None
        if program is None:
            return []
        return [n for n in program.graph.nodes if n.op == "call_function"]

    @property
    def host_calls(self) -> list[Node]:
        """Return the calls that the host computes, without casts at borders of
        delegates.
        """
        assert self.lowered is not None
        return host_calls(self.lowered.exported_program().graph.nodes)

    @property
    def delegated_operators(self) -> tuple[str, ...]:
        """Return the name of the operator of each delegated node."""
        if self.lowered is None:
            return ()
        names: list[str] = []
        for delegate in self.lowered.delegates:
            names += map(operator_name, delegate.nodes)
        return tuple(names)

    @property
    def failed(self) -> str:
        """Return the type and text of the error."""
        return f"{type(self.error).__name__}: {self.error}"


class Recording(Partitioner):
    """A partitioner that records its input, its result, and its changes of metadata."""

    inner: Partitioner
    support: Any
    program: ExportedProgram | None = None
    result: PartitionResult | None = None
    failure: PluginFailed | None = None
    """The first exception of ``inner``, which a lowering turns into a refusal."""
    changed: tuple[str, ...] = ()

    @staticmethod
    def of(inner: Partitioner) -> Recording:
        """Return a recording with the name of ``inner``, which error messages show."""
        # errors find the plugin by the module of the partitioner
        attributes = {"__module__": type(inner).__module__}
        recording_type = type(type(inner).__name__, (Recording,), attributes)
        recording: Recording = recording_type(inner.spec)
        recording.inner = inner
        if hasattr(inner, "support"):
            recording.support = inner.support
        return recording

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        self.program = exported_program
        before = {n: dict(n.meta) for n in exported_program.graph.nodes}
        try:
            result = self.inner(exported_program)
        except Exception as e:
            if self.failure is None:
                text = (
                    f"partition of {type(self.inner).__name__} raised"
                    f" {type(e).__name__}: {e}"
                )
                self.failure = PluginFailed("plugin-failed", text)
            raise
        packages = tuple(
            {kind.__module__.split(".")[0] for kind in type(self.inner).__mro__}
        )
        # a lowering may call the partitioner more than once
        self.changed += tuple(_changes(before, packages))
        self.result = result
        return result

    def ops_to_not_decompose(self, ep: ExportedProgram) -> Any:
        return self.inner.ops_to_not_decompose(ep)


_ALLOWED = {"delegation_tag", "no_copy", INDEXED, WITHIN}
"""Keys of metadata that every partitioner may set."""


def _changes(
    before: Mapping[Node, Mapping[str, Any]], packages: tuple[str, ...]
) -> Iterator[str]:
    """Yield metadata that was replaced, except keys that a partitioner may set.

    A partitioner of these ``packages`` may set keys with their names.
    """
    for node, meta in before.items():
        for key in dict.fromkeys([*meta, *node.meta]):
            if key in _ALLOWED or key.startswith(packages):
                continue
            if _differs(meta, node.meta, key):
                yield f"meta[{key!r}] of {node.name} ({node.target})"


def _differs(before: Mapping[str, Any], now: Mapping[str, Any], key: str) -> bool:
    """Return whether a key is missing in one dictionary, or has another value."""
    if key not in before or key not in now:
        return True
    # identity first: comparing tensors does not give a bool
    return before[key] is not now[key] and bool(before[key] != now[key])


def attempt_lowering(
    program: Program,
    exported: Exported,
    partitioner: Callable[[], Partitioner],
    registry: delegraph.Registry,
    eager: bool,
    may_refuse: bool = False,
) -> LoweringAttempt:
    """Lower ``program``, which was ``exported`` before.

    With ``eager``, delegates without a runtime run in eager PyTorch. A partition that
    the compiler refuses is an error, unless ``may_refuse``.
    """
    attempt = LoweringAttempt(program, *exported)
    start = time.monotonic()
    try:
        with quiet():
            attempt.recording = Recording.of(partitioner())
            lowered = delegraph.lower(
                attempt.exported, backends=[attempt.recording], registry=registry
            )
            attempt.lowered = (
                lowered.with_missing_runtime("eager") if eager else lowered
            )
            if attempt.recording.failure is not None:
                raise attempt.recording.failure
            attempt.handed_over = handed_over(attempt.lowered)
            given_back = attempt.lowered.report.given_back
            if given_back and not may_refuse:
                row = given_back[0]
                raise Unsupported("unsupported", row.reason, source=row.source)
    except (Exception, SystemExit) as e:
        attempt.lowered = None
        attempt.error = e
        attempt.phase = _phase(e, attempt, registry)
    attempt.seconds = time.monotonic() - start
    return attempt


def _phase(
    error: BaseException, attempt: LoweringAttempt, registry: delegraph.Registry
) -> Phase:
    """Return the step at which a lowering stopped with ``error``."""
    try:
        with quiet():
            delegraph.lower(attempt.exported, backends=[], registry=registry)
    except Exception:  # no backend took part, so the backend is not at fault
        return Phase.ENGINE
    if isinstance(error, ContractViolation):
        return Phase.CONTRACT
    raised = attempt.recording.failure if attempt.recording else None
    has_raised = attempt.partitioned is None or error is raised
    return Phase.PARTITION if has_raised else Phase.COMPILE


@contextmanager
def quiet() -> Iterator[None]:
    """Run with one thread, and without gradients, warnings or logs.

    torch's random state is kept.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with undisturbed(), torch.no_grad():
            yield
    finally:
        torch.set_num_threads(threads)


def handed_over(lowered: LoweredProgram) -> list[HandedOver]:
    """Return the current blob, compile specs and named data of each delegate."""
    modules = [d.module for d in lowered.delegates]
    return [
        (m.processed_bytes, list(m.compile_specs), dict(m.named_data()))
        for m in modules
    ]


def is_random(program: ExportedProgram) -> bool:
    """Return whether the inputs do not determine the results of a program."""

    def draws(target: Any) -> bool:
        name = getattr(target, "__name__", "")
        seeded = torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())
        return seeded or "empty" in name or "resize" in name

    return any(draws(n.target) for n in program.graph.nodes if n.op == "call_function")

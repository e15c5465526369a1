"""Lowering one program and keeping what a check wants to know about it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from delegraph.api import lower
from delegraph.backend import CompileSpec
from delegraph.discovery.registry import Registry
from delegraph.errors import ContractViolation
from delegraph.lowered_program import LoweredProgram
from delegraph.partitioner import Partitioner
from delegraph.partitioner.contract import PartitionResult
from torch.export import ExportedProgram
from torch.fx import Node

from .programs import Exported, Program, undisturbed

HandedOver = tuple[bytes, list[CompileSpec], dict[str, Any]]
"""Blob, compile specs and named data of a delegate."""


class Phase(str, Enum):
    """Where a lowering stopped."""

    DONE = "done"
    PARTITION = "partition"
    CONTRACT = "contract"
    COMPILE = "compile"
    ENGINE = "engine"
    """The program cannot be lowered for any backend, which is not this one's fault."""


@dataclass
class Attempt:
    """One program, what its partitioner said, and the lowered program or the error."""

    program: Program
    exported: ExportedProgram
    inputs: tuple[Any, ...]
    recording: Recording
    phase: Phase
    lowered: LoweredProgram | None = None
    error: BaseException | None = None
    changed: Sequence[str] = ()
    """What the lowering changed in the exported program."""
    handed_over: Sequence[HandedOver] = ()
    """What the backend made, right after the lowering."""

    @property
    def refusals(self) -> dict[Node, str]:
        """Node -> reason, as the partitioner gave it."""
        result = self.recording.result
        return {r.node: r.reason for r in result.refusals} if result else {}

    @property
    def calls(self) -> list[Node]:
        """The calls that the partitioner was asked about."""
        program = self.recording.program
        return [n for n in program.graph.nodes if n.op == "call_function"] if program else []

    @property
    def failed(self) -> str:
        """The error in words."""
        return f"{type(self.error).__name__}: {self.error}"


class Recording(Partitioner):
    """The partitioner in question, with what it was given, what it gave, and what it did to the nodes' metadata."""

    inner: Partitioner
    support: Any
    program: ExportedProgram | None = None
    result: PartitionResult | None = None
    changed: tuple[str, ...] = ()

    @staticmethod
    def of(inner: Partitioner) -> Recording:
        """A recording that is called like the partitioner in error messages."""
        made: Recording = type(type(inner).__name__, (Recording,), {})(inner.spec)
        made.inner = inner
        if hasattr(inner, "support"):
            made.support = inner.support
        return made

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        self.program = exported_program
        before = {n: dict(n.meta) for n in exported_program.graph.nodes}
        result = self.inner(exported_program)
        self.changed = tuple(_changes(before))
        self.result = result
        return result

    def ops_to_not_decompose(self, ep: ExportedProgram) -> Any:
        return self.inner.ops_to_not_decompose(ep)


_ALLOWED = {"delegation_tag", "no_copy"}


def _changes(before: Mapping[Node, Mapping[str, Any]]) -> Iterator[str]:
    """Metadata that is another object than before, apart from what a partitioner may set."""
    for node, meta in before.items():
        for key in dict.fromkeys([*meta, *node.meta]):
            absent = object()
            if key not in _ALLOWED and meta.get(key, absent) is not node.meta.get(key, absent):
                if key not in meta or key not in node.meta or meta[key] != node.meta[key]:
                    yield f"meta[{key!r}] of {node.name} ({node.target})"


def attempt(program: Program, made: Exported, partitioner: Partitioner, registry: Registry, eager: bool) -> Attempt:
    """Lower ``program``, which was exported as ``made``; ``eager`` is for backends without a runtime."""
    exported, inputs = made
    recording = Recording.of(partitioner)
    try:
        with quiet():
            mode: Any = "eager" if eager else "error"
            lowered = lower(exported, backends=[recording], registry=registry, on_missing_runtime=mode)
            made_now = handed_over(lowered)
    except (Exception, SystemExit) as e:
        phase = _phase(e, recording, exported, registry)
        return Attempt(program, exported, inputs, recording, phase, error=e)
    return Attempt(program, exported, inputs, recording, Phase.DONE, lowered, handed_over=made_now)


def _phase(error: BaseException, recording: Recording, exported: ExportedProgram, registry: Registry) -> Phase:
    if _engine_refuses(exported, registry):
        return Phase.ENGINE
    if isinstance(error, ContractViolation):
        return Phase.CONTRACT
    return Phase.COMPILE if recording.result is not None else Phase.PARTITION


def _engine_refuses(exported: ExportedProgram, registry: Registry) -> bool:
    try:
        with quiet():
            lower(exported, backends=[], registry=registry)
    except Exception:  # whatever it is, it is not the backend's
        return True
    return False


@contextmanager
def quiet() -> Iterator[None]:
    """One thread, no gradients, torch's random state kept, no warnings."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with undisturbed(), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_num_threads(threads)


def handed_over(lowered: LoweredProgram) -> list[HandedOver]:
    """What the runtime gets for each delegate, as it is now; joins blobs that are not joined yet."""
    modules = [d.module for d in lowered.delegates]
    return [(m.processed_bytes, list(m.compile_specs), dict(m.named_data())) for m in modules]


def random_calls(program: ExportedProgram) -> bool:
    """Whether what the program returns is not determined by its inputs."""
    return any(_is_random(n) for n in program.graph.nodes if n.op == "call_function")


def _is_random(node: Node) -> bool:
    target: Any = node.target
    seeded = torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())
    return seeded or "empty" in getattr(target, "__name__", "") or "resize" in getattr(target, "__name__", "")

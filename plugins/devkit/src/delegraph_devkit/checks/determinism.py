"""Check in separate processes that blobs are reproducible, and that lowering leaves no
trace.
"""

from __future__ import annotations

import copy
import gc
import io
import os
import sys
import threading
import traceback
import warnings
import weakref
from contextlib import redirect_stderr, redirect_stdout, suppress
from itertools import pairwise
from typing import Any, NamedTuple

import delegraph
import torch
from delegraph import Registry
from delegraph.delegates import LoweredBackendModule
from delegraph.errors import BackendNotFound
from torch.utils import _pytree as pytree

from ..backend_under_test import BackendUnderTest
from ..check import check
from ..check_result import Figures
from ..configured_backend import ConfiguredBackend
from ..failures import CheckFailed
from ..lowering_attempt import quiet
from ..programs import Program
from ..reproduce import compiling_twice
from ..subprocesses import Report, fork_server
from ..warm_up import run_on_host

_APART = 24
"""The bytes between two reported differences of blobs."""
_INTERVALS = 3
"""A count is a leak if it grows in each of this many equal parts of the programs."""


class Made(NamedTuple):
    """The parts of a delegate."""

    blob: bytes
    named_data: dict[str, bytes]
    compile_specs: str
    debug_handle_map: str


Delegates = dict[str, list[Made]]
"""Program -> its delegates."""


@check
def deterministic(backend: BackendUnderTest) -> Figures:
    """The same program gives the same bytes, twice in one process and in processes with
    different hash seeds.
    """
    fork_server(2)  # it starts in the background
    left_out = backend.left_out(times=4)
    first, again = _built(backend, left_out, hash_seed=1)
    second, _ = _built(backend, left_out, hash_seed=2)
    for program in backend.programs:
        for other, where in (
            (again, "the second time in one process"),
            (second, "in a process with another hash seed"),
        ):
            why = _difference(first.get(program.name), other.get(program.name))
            if why is not None:
                advice = (
                    "sort the elements of sets, keep no counters between calls, store"
                    " no addresses or times"
                )
                text = f"lowering {where} gave another result: {why}"
                raise CheckFailed(
                    text, program, advice, ending=compiling_twice(backend)
                )
    size = 0
    for delegates in first.values():
        size += sum(len(delegate.blob) for delegate in delegates)
    return {"programs": len(first), "bytes": size}


def _built(
    backend: BackendUnderTest, left_out: set[str], hash_seed: int
) -> tuple[Delegates, Delegates]:
    """Return the delegates of two lowerings in a process with this hash seed."""
    answer = backend.run_elsewhere(build_twice, left_out, hash_seed=hash_seed)
    if answer.failure:
        raise CheckFailed(
            f"lowering in a fresh process {answer.failure}; last program:"
            f" {answer.progress}"
        )
    both: tuple[Delegates, Delegates] = answer.result
    return both


def build_twice(
    backend: ConfiguredBackend, skipped: set[str], report: Report
) -> tuple[Delegates, Delegates]:
    """Lower each sample twice and return the delegates. Runs in another process."""

    def build() -> Delegates:
        delegates = {}
        for program in backend.programs:
            if program.name in skipped:
                continue
            report(program.name)
            attempt = backend.attempt(program)
            if attempt is not None and attempt.lowered is not None:
                delegates[program.name] = [
                    _made(d.module) for d in attempt.lowered.delegates
                ]
        return delegates

    return build(), build()


def _made(module: LoweredBackendModule) -> Made:
    return Made(
        blob=module.processed_bytes,
        named_data=dict(module.named_data()),
        compile_specs=repr(module.compile_specs),
        debug_handle_map=repr(module.meta["debug_handle_map"]),
    )


def _difference(a: list[Made] | None, b: list[Made] | None) -> str | None:
    """Describe the difference between two lowerings of a program."""
    if a == b:
        return None
    if a is None or b is None or len(a) != len(b):
        return f"{len(a or ())} delegates, then {len(b or ())}"
    for k, (x, y) in enumerate(zip(a, b, strict=True)):
        for field, mine, other in zip(Made._fields, x, y, strict=True):
            if mine != other:
                part = field.replace("_", " ")
                return f"the {part} of delegate {k} differs{_where(mine, other)}"
    return None


def _where(a: Any, b: Any) -> str:
    """Describe how two parts of a delegate differ, as the end of a sentence."""
    if not isinstance(a, bytes) or not isinstance(b, bytes):
        return f": {a!r:.200} and {b!r:.200}"
    places = _places(a, b)
    shown = "; ".join(
        f"{a[near]!r} and {b[near]!r}"
        for near in (slice(max(0, p - 8), p + 24) for p in places)
    )
    return f" from byte {places[0]} of {len(a)} and {len(b)}: {shown}"


def _places(a: bytes, b: bytes) -> list[int]:
    """Return the first byte that differs, and the next one far from it.

    The first may be in a checksum of the rest.
    """
    differing = [k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y]
    if not differing:
        return [min(len(a), len(b))]
    later = [k for k in differing if k >= differing[0] + _APART]
    return [differing[0], *later[:1]]


# --- traces ---------------------------------------------------------------------------


@check
def unregistering_leaves_no_trace(backend: BackendUnderTest) -> Figures:
    """Registering, lowering, running and unregistering leave no trace in the process,
    and release programs.
    """
    answer = backend.run_elsewhere(find_traces, backend.left_out(times=1))
    if answer.failure:
        raise CheckFailed(
            f"registering and unregistering {answer.failure}: {answer.output[-500:]}"
        )
    traces: Traces = answer.result
    if traces.printed or answer.output:
        text = (
            f"lowering and running prints {traces.printed or repr(answer.output[:200])}"
            "; a library must use the module logging"
        )
        backend.warnings.append(text)
    if traces.left:
        advice = (
            "keep state in objects of one lowering; change no setting of the process"
        )
        first = traces.left[0]
        if _PUT_BACK not in first:
            first = f"the backend was unregistered, but its lowering left {first}"
        raise CheckFailed(first, advice=advice, more=traces.left[1:])
    return {"programs": traces.programs, "settings": len(_settings())}


class Traces(NamedTuple):
    """Traces that lowerings ``left``, the number of programs, and the first printed
    text.
    """

    left: list[str]
    programs: int
    printed: str


_PUT_BACK = ", changed torch's "
"""Text in delegraph's warnings about settings that a plugin left changed."""


def find_traces(
    backend: ConfiguredBackend, skipped: set[str], report: Report
) -> Traces:
    """Register, lower, run and unregister; return the traces.

    Runs in another process.
    """
    programs = [
        p for p in backend.programs if p.name not in skipped and p.exported is not None
    ]
    for program in programs:
        if program.name == "example" and program.exported is not None:
            run_on_host(program.exported)
    spec = backend.registry.spec(backend.name)
    partitioner = backend.partitioner()
    target = backend.registry.get_backend(backend.name)
    runtime = backend.runtime
    registry = Registry(discover=False)
    printed = Printed()
    given = type(partitioner) if spec.options else partitioner
    registered = registry.register(
        target, partitioner=given, runtime=runtime, name=spec.name, options=spec.options
    )
    alive = []
    held = []
    with (
        quiet(),
        redirect_stdout(printed),
        redirect_stderr(printed),
        warnings.catch_warnings(record=True) as warned,
    ):
        # delegraph warns about settings that it restores after a plugin
        warnings.simplefilter("always", delegraph.DelegraphWarning)
        before = _settings()
        with registered:
            for program in programs:
                report(program.name)
                alive += _lowered_once(program, registry, spec.name, backend)
                held.append(_held())
        after = _settings()
    partitioner = given = None  # type: ignore[assignment]
    gc.collect()
    left = _still_there(registry, spec.name)
    for name, now in after.items():
        if now != before[name]:
            left.append(f"{name} changed ({_change(before[name], now)})")
    left += [f"program {name} in memory" for name, ref in alive if ref() is not None]
    messages = [str(warning.message) for warning in warned]
    left += [message for message in messages if _PUT_BACK in message]
    left += _growing(held)
    return Traces(left, len(programs), printed.first)


def _lowered_once(
    program: Program, registry: Registry, name: str, backend: ConfiguredBackend
) -> list[tuple[str, Any]]:
    """Lower and run as a user does; return weak references to the backend's partitions.

    Nothing here restores the settings that the backend changes.
    """
    assert program.exported is not None
    exported, inputs = program.exported
    try:
        partitioner = registry.get_partitioner(name, **backend.options)
        lowered = delegraph.lower(exported, backends=[partitioner], registry=registry)
        if backend.runtime is None:
            lowered = lowered.with_missing_runtime("eager")
    except (Exception, SystemExit):  # accepted_compiles reports it
        return []
    with suppress(Exception):  # numerics reports it
        lowered(*copy.deepcopy(inputs))
    return [
        (program.name, weakref.ref(d.module.original_module.graph_module))
        for d in lowered.delegates
    ]


class Printed(io.StringIO):
    """Replaces stdout. ``first`` is the first text, and the line that wrote it."""

    first = ""

    def write(self, text: str) -> int:
        if text.strip() and not self.first:
            place = traceback.extract_stack(limit=2)[0]
            self.first = f"{text!r:.200} at {place.filename}:{place.lineno}"
        return len(text)


def _held() -> dict[str, int]:
    """Return the number of threads and open files."""
    held = {"threads": threading.active_count()}
    with suppress(OSError):  # Linux has the folder
        held["open files"] = len(os.listdir("/proc/self/fd"))
    return held


def _growing(held: list[dict[str, int]]) -> list[str]:
    """Describe the counts that grew in every part of the programs.

    ``held`` has the counts after each program. Objects that a backend creates once,
    such as a pool, stop growing before.
    """
    if not held:
        return []
    last = len(held) - 1
    points = [held[k * last // _INTERVALS] for k in range(_INTERVALS + 1)]
    growing = []
    for name, at_first in points[0].items():
        if all(before[name] < after[name] for before, after in pairwise(points)):
            more = points[-1][name] - at_first
            growing.append(f"{more} more {name} than after the first program")
    return growing


def _still_there(registry: Registry, name: str) -> list[str]:
    """Describe where an unregistered backend can still be found."""
    listed = [f"backend {b.name!r} in the registry" for b in registry.backends()]
    try:
        registry.get_backend(name)
    except BackendNotFound:
        return listed
    return [*listed, f"backend {name!r} in lookups of the registry"]


def _settings() -> dict[str, Any]:
    """Return the settings of the process that a backend must not change."""
    return {
        "backends in the default registry": frozenset(
            b.full_name for b in delegraph.backends()
        ),
        "operators of torch": frozenset(torch._C._dispatch_get_all_op_names()),
        "pytree types": frozenset(map(str, pytree.SUPPORTED_NODES)),
        "the default element type": torch.get_default_dtype(),
        "the number of threads": torch.get_num_threads(),
        "gradient mode": torch.is_grad_enabled(),
        "deterministic mode": torch.are_deterministic_algorithms_enabled(),
        "torch's random state": torch.get_rng_state().numpy().tobytes(),
        "the working directory": os.getcwd(),
        "environment variables": frozenset(os.environ.items()),
        "the module path": tuple(sys.path),
        "warning filters": tuple(map(str, warnings.filters)),
        "garbage collection": gc.isenabled(),
    }


def _change(before: Any, now: Any) -> str:
    """Describe the change of a setting."""
    if isinstance(before, frozenset):
        added = sorted(map(str, now - before))
        removed = sorted(map(str, before - now))
        changes = [f"new: {name}" for name in added[:3]]
        changes += [f"gone: {name}" for name in removed[:3]]
        return ", ".join(changes)
    if isinstance(before, bytes):
        return "another state"
    return f"{before!r:.80}, now {now!r:.80}"

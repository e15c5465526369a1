"""Check in separate processes that blobs are reproducible and nothing is left behind."""

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
from typing import Any

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
_MARKS = 3
"""A count is a leak if it grows between this many points in time."""
Made = tuple[bytes, dict[str, bytes], str, str]
"""Blob, named data, compile specs and debug handle map of a delegate."""


@check
def deterministic(backend: BackendUnderTest) -> Figures:
    """The same program gives the same bytes: in one process twice, and in two with
    different hash seeds.
    """
    fork_server(2)  # started now, it gets ready meanwhile
    left_out = backend.left_out(times=4)
    first, again = _built(backend, left_out, 1)
    second, _ = _built(backend, left_out, 2)
    for program in backend.programs:
        for other, where in (
            (again, "the second time in one process"),
            (second, "in a process with another hash seed"),
        ):
            why = _difference(first.get(program.name), other.get(program.name))
            if why is not None:
                advice = (
                    "sort what comes from sets, keep no counters between calls, store"
                    " no addresses or times"
                )
                text = f"lowering {where} gave something else: {why}"
                raise CheckFailed(
                    text, program, advice, ending=compiling_twice(backend)
                )
    return {
        "programs": len(first),
        "bytes": sum(len(d[0]) for made in first.values() for d in made),
    }


def _built(
    backend: BackendUnderTest, left_out: set[str], hash_seed: int
) -> tuple[dict[str, list[Made]], dict[str, list[Made]]]:
    answer = backend.run_elsewhere(build_twice, left_out, hash_seed=hash_seed)
    if answer.failure:
        raise CheckFailed(
            f"lowering in a fresh process {answer.failure}; last program:"
            f" {answer.progress}"
        )
    delegates: tuple[dict[str, list[Made]], dict[str, list[Made]]] = answer.result
    return delegates


def build_twice(
    backend: ConfiguredBackend, skipped: set[str], report: Report
) -> tuple[dict[str, list[Made]], dict[str, list[Made]]]:
    """Lower each sample twice and return the delegates. Runs in another process."""

    def build() -> dict[str, list[Made]]:
        delegates = {}
        for program in (p for p in backend.programs if p.name not in skipped):
            report(program.name)
            one = backend.attempt(program)
            if one is not None and one.lowered is not None:
                delegates[program.name] = [
                    _made(d.module) for d in one.lowered.delegates
                ]
        return delegates

    return build(), build()


def _made(module: LoweredBackendModule) -> Made:
    handles = repr(module.meta["debug_handle_map"])
    return (
        module.processed_bytes,
        dict(module.named_data()),
        repr(module.compile_specs),
        handles,
    )


def _difference(a: list[Made] | None, b: list[Made] | None) -> str | None:
    """Describe the difference between two lowerings of a program."""
    if a == b:
        return None
    if a is None or b is None or len(a) != len(b):
        return (
            f"{0 if a is None else len(a)} delegates, then {0 if b is None else len(b)}"
        )
    for k, (x, y) in enumerate(zip(a, b, strict=True)):
        what = ("blob", "named data", "compile specs", "debug handle map")
        parts = zip(what, x, y, strict=True)
        for name, mine, other in parts:
            if mine != other:
                return f"the {name} of delegate {k} differs{_where(mine, other)}"
    return None


def _where(a: Any, b: Any) -> str:
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
    differing = [k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y] or [
        min(len(a), len(b))
    ]
    later = [k for k in differing if k >= differing[0] + _APART]
    return [differing[0], *later[:1]]


# --- nothing left behind --------------------------------------------------------------


@check
def unregistering_leaves_no_trace(backend: BackendUnderTest) -> Figures:
    """After registering, lowering, running and unregistering, the process is as before,
    and programs are released.
    """
    answer = backend.run_elsewhere(find_traces, backend.left_out(times=1))
    if answer.failure:
        raise CheckFailed(
            f"registering and unregistering {answer.failure}: {answer.output[-500:]}"
        )
    changed, programs, printed = answer.result
    if printed or answer.output:
        text = (
            f"lowering and running prints {printed or repr(answer.output[:200])}; a"
            " library logs with logging"
        )
        backend.warnings.append(text)
    if changed:
        advice = (
            "keep what you need in objects of one lowering; change no setting of the"
            " process"
        )
        first = changed[0]
        text = (
            first
            if _PUT_BACK in first
            else f"a lowering left {first}, which unregistering did not take away"
        )
        raise CheckFailed(text, advice=advice, more=changed[1:])
    return {"programs": programs, "settings": len(_settings())}


_PUT_BACK = ", changed torch's "
"""Text in delegraph's warnings about settings that a plugin left changed."""


def find_traces(
    backend: ConfiguredBackend, skipped: set[str], report: Report
) -> tuple[list[str], int, str]:
    """Return differences of the process after unregistering. Runs in another process.

    Also returns how many programs were lowered, and the output by its source.
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
    heard = Printed()
    given = type(partitioner) if spec.options else partitioner
    registered = registry.register(
        target, partitioner=given, runtime=runtime, name=spec.name, options=spec.options
    )
    alive = []
    held = []
    with (
        quiet(),
        redirect_stdout(heard),
        redirect_stderr(heard),
        warnings.catch_warnings(record=True) as told,
    ):
        # of settings that lowering and calls put back
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
    changed = [
        f"{w} other than before ({_change(before[w], now)})"
        for w, now in after.items()
        if now != before[w]
    ]
    changed += [f"program {name} in memory" for name, ref in alive if ref() is not None]
    changed += [text for text in (str(w.message) for w in told) if _PUT_BACK in text]
    return (
        [*_still_there(registry, spec.name), *changed, *_growing(held)],
        len(programs),
        heard.first,
    )


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
    except (Exception, SystemExit):  # which accepted_compiles is about
        return []
    with suppress(Exception):  # which numerics is about
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
    """Return the counts that still grew with the last programs.

    Objects that a backend creates once, such as a pool, stop growing before.
    """
    marks = (
        [held[k * (len(held) - 1) // _MARKS] for k in range(_MARKS + 1)] if held else []
    )
    rising = [
        w
        for w in (marks[0] if marks else ())
        if all(a[w] < b[w] for a, b in pairwise(marks))
    ]
    return [
        f"{marks[-1][w] - marks[0][w]} more {w} than after the first program"
        for w in rising
    ]


def _still_there(registry: Registry, name: str) -> list[str]:
    listed = [f"backend {b.name!r} in the registry" for b in registry.backends()]
    try:
        registry.get_backend(name)
    except BackendNotFound:
        return listed
    return [*listed, f"backend {name!r} to be found in the registry"]


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
    if isinstance(before, frozenset):
        added = sorted(map(str, now - before))
        removed = sorted(map(str, before - now))
        return ", ".join(
            [*(f"new: {a}" for a in added[:3]), *(f"gone: {r}" for r in removed[:3])]
        )
    return (
        "another state"
        if isinstance(before, bytes)
        else f"{before!r:.80}, now {now!r:.80}"
    )

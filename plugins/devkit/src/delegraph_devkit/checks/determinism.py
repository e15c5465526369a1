"""Checks that need a process of their own: equal bytes in any of them, and nothing left behind in one."""

from __future__ import annotations

import gc
import os
import sys
import warnings
import weakref
from contextlib import suppress
from functools import partial
from typing import Any

import delegraph
import torch
from delegraph import Registry
from delegraph.errors import BackendNotFound
from delegraph.lowering import LoweredBackendModule
from torch.utils import _pytree as pytree

from ..backend_under_test import BackendUnderTest
from ..check import Figures, check
from ..configured_backend import ConfiguredBackend
from ..failures import CheckFailed
from ..lowering_attempt import attempt_lowering, quiet
from ..programs import Program
from ..reproduce import compiling_twice
from ..subprocesses import Report, fork_server
from ..warm_up import run_on_host

Made = tuple[bytes, dict[str, bytes], str, str]
"""Blob, named data, compile specs and debug handle map of a delegate."""


@check
def deterministic(backend: BackendUnderTest) -> Figures:
    """The same program gives the same bytes: in one process twice, and in two with different hash seeds."""
    fork_server(2)  # started now, it gets ready meanwhile
    first, again = _built(backend, 1)
    second, _ = _built(backend, 2)
    for program in backend.programs:
        for other, where in (
            (again, "the second time in one process"),
            (second, "in a process with another hash seed"),
        ):
            why = _difference(first.get(program.name), other.get(program.name))
            if why is not None:
                advice = "sort what comes from sets, keep no counters between calls, store no addresses or times"
                text = f"lowering {where} gave something else: {why}"
                raise CheckFailed(text, program, advice, ending=compiling_twice(backend))
    return {"programs": len(first), "bytes": sum(len(d[0]) for made in first.values() for d in made)}


def _built(backend: BackendUnderTest, hash_seed: int) -> tuple[dict[str, list[Made]], dict[str, list[Made]]]:
    answer = backend.run_elsewhere(build_twice, backend.fatal, hash_seed=hash_seed)
    if answer.failure:
        raise CheckFailed(f"lowering in a fresh process {answer.failure}; last program: {answer.progress}")
    delegates: tuple[dict[str, list[Made]], dict[str, list[Made]]] = answer.result
    return delegates


def build_twice(
    backend: ConfiguredBackend, skipped: set[str], report: Report
) -> tuple[dict[str, list[Made]], dict[str, list[Made]]]:
    """Run in another process: the samples' delegates, of two lowerings each."""

    def build() -> dict[str, list[Made]]:
        delegates = {}
        for program in (p for p in backend.programs if p.name not in skipped):
            report(program.name)
            one = backend.attempt(program)
            if one is not None and one.lowered is not None:
                delegates[program.name] = [_made(d.module) for d in one.lowered.delegates]
        return delegates

    return build(), build()


def _made(module: LoweredBackendModule) -> Made:
    handles = repr(module.meta["debug_handle_map"])
    return module.processed_bytes, dict(module.named_data()), repr(module.compile_specs), handles


def _difference(a: list[Made] | None, b: list[Made] | None) -> str | None:
    """Where two lowerings of a program differ."""
    if a == b:
        return None
    if a is None or b is None or len(a) != len(b):
        return f"{0 if a is None else len(a)} delegates, then {0 if b is None else len(b)}"
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
    position = next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    near = slice(max(0, position - 8), position + 24)
    return f" from byte {position} of {len(a)} and {len(b)}: {a[near]!r} and {b[near]!r}"


# --- nothing left behind ----------------------------------------------------------------------------------------------


@check
def unregistering_leaves_no_trace(backend: BackendUnderTest) -> Figures:
    """After registering, lowering, running and unregistering, the process is as before, and programs are released."""
    answer = backend.run_elsewhere(find_traces, backend.fatal)
    if answer.failure:
        raise CheckFailed(f"registering and unregistering {answer.failure}: {answer.output[-500:]}")
    changed, programs = answer.result
    if changed:
        advice = "keep what you need in objects of one lowering; change no setting of the process"
        text = f"a lowering left {changed[0]}, which unregistering did not take away"
        raise CheckFailed(text, advice=advice, more=changed[1:])
    return {"programs": programs, "settings": len(_settings())}


def find_traces(backend: ConfiguredBackend, skipped: set[str], report: Report) -> tuple[list[str], int]:
    """Run in another process: what differs afterwards, and how many programs were lowered."""
    programs = [p for p in backend.programs if p.name not in skipped]
    for program in programs:
        if program.name == "example" and program.exported is not None:
            run_on_host(program.exported)
    spec, partitioner = backend.registry.spec(backend.name), backend.partitioner()
    target, runtime = backend.registry.get_backend(backend.name), backend.runtime
    registry = Registry(discover=False)
    before, alive = _settings(), []
    given = type(partitioner) if spec.options else partitioner
    with registry.register(target, partitioner=given, runtime=runtime, name=spec.name, options=spec.options):
        for program in programs:
            report(program.name)
            alive += _lowered_once(program, registry, spec.name, backend)
    partitioner = given = None  # type: ignore[assignment]
    gc.collect()
    changed = [
        f"{what} other than before ({_change(before[what], now)})"
        for what, now in _settings().items()
        if now != before[what]
    ]
    changed += [f"program {name} in memory" for name, ref in alive if ref() is not None]
    return [*_still_there(registry, spec.name), *changed], len(programs)


def _lowered_once(program: Program, registry: Registry, name: str, backend: ConfiguredBackend) -> list[tuple[str, Any]]:
    """Lower and run; weak references to the partitions that the backend was given."""
    if program.exported is None:
        return []
    made = partial(registry.get_partitioner, name, **backend.options)
    one = attempt_lowering(program, program.exported, made, registry, backend.runtime is None)
    if one.lowered is None:
        return []
    with quiet(), suppress(Exception):  # which numerics is about
        one.lowered(*one.inputs)
    return [(program.name, weakref.ref(d.module.original_module.graph_module)) for d in one.lowered.delegates]


def _still_there(registry: Registry, name: str) -> list[str]:
    listed = [f"backend {b.name!r} in the registry" for b in registry.backends()]
    try:
        registry.get_backend(name)
    except BackendNotFound:
        return listed
    return [*listed, f"backend {name!r} to be found in the registry"]


def _settings() -> dict[str, Any]:
    """Everything of the process that a backend might change and has no business to."""
    return {
        "backends in the default registry": frozenset(b.full_name for b in delegraph.backends()),
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
        added, removed = sorted(map(str, now - before)), sorted(map(str, before - now))
        return ", ".join([*(f"new: {a}" for a in added[:3]), *(f"gone: {r}" for r in removed[:3])])
    return "another state" if isinstance(before, bytes) else f"{before!r:.80}, now {now!r:.80}"

"""Checks that need a process of their own: equal bytes in any of them, and nothing left behind in one."""

from __future__ import annotations

import gc
import os
import sys
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch
from delegraph.discovery.registry import Registry, default_registry
from delegraph.errors import BackendNotFound
from delegraph.program.lowered_module import LoweredBackendModule
from torch.utils import _pytree as pytree

from ..backend_under_test import Recipe, Subject
from ..check import Figures, check
from ..lowering_attempt import Phase, attempt, quiet
from ..outcomes import CheckFailed
from ..prepare import warm_up
from ..programs import Program
from ..subprocesses import worker

_HERE = __name__
Made = tuple[bytes, dict[str, bytes], str, str]
"""Blob, named data, compile specs and debug handle map of a delegate."""


@check
def deterministic(subject: Subject) -> Figures:
    """The same program gives the same bytes: in one process twice, and in two with different hash seeds."""
    worker(2)  # started now, it gets ready meanwhile
    first, again = _built(subject, 1)
    second, _ = _built(subject, 2)
    for program in subject.programs:
        for other, where in (
            (again, "the second time in one process"),
            (second, "in a process with another hash seed"),
        ):
            why = _difference(first.get(program.name), other.get(program.name))
            if why is not None:
                advice = "sort what comes from sets, keep no counters between calls, store no addresses or times"
                raise CheckFailed(f"lowering {where} gave something else: {why}", program, advice)
    return {"programs": len(first), "bytes": sum(len(d[0]) for made in first.values() for d in made)}


def _built(subject: Subject, hash_seed: int) -> tuple[dict[str, list[Made]], dict[str, list[Made]]]:
    answer = subject.elsewhere(f"{_HERE}:build_twice", hash_seed=hash_seed)
    if not answer.finished:
        raise CheckFailed(f"lowering in a fresh process {answer.failure}; last program: {answer.progress}")
    found: tuple[dict[str, list[Made]], dict[str, list[Made]]] = answer.result
    return found


def build_twice(recipe: Recipe, progress: Callable[[str], None]) -> tuple[dict[str, list[Made]], dict[str, list[Made]]]:
    """Run in another process: the samples' delegates, of two lowerings each."""
    subject = recipe.subject()
    return _build(subject, progress), _build(subject, progress)


def _build(subject: Subject, progress: Callable[[str], None]) -> dict[str, list[Made]]:
    made = {}
    for program in subject.programs:
        progress(program.name)
        one = subject.attempt(program, program.kept())
        if one is not None and one.phase is Phase.DONE and one.lowered is not None:
            made[program.name] = [_made(d.module) for d in one.lowered.delegates]
    return made


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
def unregistering_leaves_no_trace(subject: Subject) -> Figures:
    """After registering, lowering, running and unregistering, the process is as before, and programs are released."""
    answer = subject.elsewhere(f"{_HERE}:traces")
    if not answer.finished:
        raise CheckFailed(f"registering and unregistering {answer.failure}: {answer.output[-500:]}")
    changed, programs = answer.result
    if changed:
        advice = "keep what you need in objects of one lowering; change no setting of the process"
        text = f"a lowering left {changed[0]}, which unregistering did not take away"
        raise CheckFailed(text, advice=advice, more=changed[1:])
    return {"programs": programs, "settings": len(_settings())}


def traces(recipe: Recipe, progress: Callable[[str], None]) -> tuple[list[str], int]:
    """Run in another process: what differs afterwards, and how many programs were lowered."""
    subject = recipe.subject()
    programs = subject.programs
    example = next((made for p in programs if p.name == "example" and (made := p.kept())), None)
    if example is not None:
        warm_up(example)
    spec, partitioner = subject.registry.spec(subject.backend), subject.partitioner()
    backend, runtime = subject.registry.get_backend(subject.backend), subject.runtime
    registry = Registry(discover=False)
    before, alive = _settings(), []
    given = type(partitioner) if spec.options else partitioner
    with registry.register(backend, partitioner=given, runtime=runtime, name=spec.name, options=spec.options):
        for program in programs:
            progress(program.name)
            alive += _lowered_once(program, registry, spec.name, subject)
    partitioner = given = None  # type: ignore[assignment]
    gc.collect()
    found = [
        f"{what} other than before ({_change(before[what], now)})"
        for what, now in _settings().items()
        if now != before[what]
    ]
    found += [f"program {name} in memory" for name, ref in alive if ref() is not None]
    return [*_still_there(registry, spec.name), *found], len(programs)


def _lowered_once(program: Program, registry: Registry, name: str, subject: Subject) -> list[tuple[str, Any]]:
    """Lower and run; weak references to the partitions that the backend was given."""
    exported = program.kept()
    if exported is None:
        return []
    partitioner = registry.get_partitioner(name, **subject.options)
    made = attempt(program, exported, partitioner, registry, subject.runtime is None)
    if made.lowered is None:
        return []
    try:
        with quiet():
            made.lowered(*made.inputs)
    except Exception:  # what numerics is about
        pass
    return [(program.name, weakref.ref(d.module.original_module.graph_module)) for d in made.lowered.delegates]


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
        "backends in the default registry": frozenset(b.full_name for b in default_registry().backends()),
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

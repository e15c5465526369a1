"""Check backends that declare ``thread_safe``: compile and call in several threads."""

from __future__ import annotations

import copy
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, NamedTuple
from unittest import mock

import delegraph
import torch
from delegraph.backend import CompileSpec
from delegraph.compiler import Compiled, Request, calls_of, compile_here
from delegraph.host import Verification
from delegraph.partitioner import Partitioner, PartitionResult
from delegraph.runtime import BackendRuntime, Delegate
from torch.export import ExportedProgram

from ..backend_under_test import BackendUnderTest
from ..check import check
from ..check_result import Figures
from ..configured_backend import ConfiguredBackend
from ..failures import CheckFailed, CheckSkipped
from ..lowering_attempt import HandedOver, handed_over, quiet
from ..subprocesses import Report
from ..tolerance import tolerance_of
from ..trial import Kind, is_comparable

_THREADS = 4
_ROUNDS = 3
_VARIANTS = 5
"""The number of inputs that threads call a delegate with.

It is no multiple of _THREADS, so that all pairs of inputs meet.
"""
_CALLS = 30
_PAUSED_CALLS = 15
"""Calls of a delegate in each thread: without pauses, and with pauses."""
_SECONDS = 2.0
"""Seconds that threads call one delegate, if it is too slow for all calls."""
_PAUSE_SECONDS = 1e-4
"""A pause at a line of the runtime.

Without pauses, a busy machine runs most calls from begin to end.
"""
_TORCH = os.path.dirname(torch.__file__) + os.sep


@check
def thread_safety(backend: BackendUnderTest) -> Figures:
    """A backend that declares ``thread_safe`` makes the same of many partitions at once
    as of each alone.
    """
    if not backend.registry.get_backend(backend.name).thread_safe:
        raise CheckSkipped("the backend does not declare thread_safe")
    left_out = backend.left_out(times=1 + _ROUNDS)
    names = [
        one.program.name for one in backend.lowered if one.program.name not in left_out
    ]
    answer = backend.run_apart(compile_at_once, names)
    if answer.died:
        raise CheckFailed(
            f"compiling {answer.progress}, the process {answer.died}",
            advice=Kind.CRASH.value,
        )
    delegates, why = answer.result or (
        0,
        f"compiling {answer.progress} {answer.failure}",
    )
    if why:
        advice = (
            "keep what preprocess works on in local variables, or leave thread_safe"
            " False"
        )
        raise CheckFailed(why, advice=advice)
    return {"delegates": delegates, "threads": _THREADS}


def compile_at_once(
    backend: ConfiguredBackend, names: list[str], report: Report
) -> tuple[int, str | None]:
    """Compile the samples one by one and in threads. Runs in another process.

    Returns the number of delegates, and the differences.
    """
    programs = {
        p.name: p.exported[0]
        for p in backend.programs
        if p.name in names and p.exported is not None
    }

    def compile_all(executor: ThreadPoolExecutor | None) -> list[HandedOver]:
        """Lower all programs as methods of one lowering."""
        report(
            "all samples in one lowering"
            if executor is None
            else f"all samples by {_THREADS} threads"
        )
        compiler = None if executor is None else _InThreads(executor)
        with quiet():
            partitioner = backend.partitioner()
            lowered = delegraph.lower(
                programs,
                backends=[partitioner],
                registry=backend.registry,
                compiler=compiler,
            )
            return handed_over(lowered)

    how = "all samples in one lowering"
    try:
        alone = compile_all(None)
        how = f"{_THREADS} threads"
        for _ in range(_ROUNDS):
            with ThreadPoolExecutor(_THREADS) as executor:
                together = compile_all(executor)
            if together != alone:
                place = next(
                    k
                    for k, (a, b) in enumerate(zip(together, alone, strict=True))
                    if a != b
                )
                return (
                    0,
                    (
                        f"compiled by {how}, delegate {place} of all samples together"
                        " is another than alone"
                    ),
                )
    except (Exception, SystemExit) as e:
        return 0, f"preprocess, called for {how}, raised {type(e).__name__}: {e}"
    return len(alone), None


class _InThreads:
    """A compiler and its session that compile each partition in a thread of
    ``executor``.
    """

    notes = ()

    def __init__(self, executor: ThreadPoolExecutor) -> None:
        self._executor = executor

    def session(
        self, registry: delegraph.Registry, backends: Sequence[str]
    ) -> _InThreads:
        return self

    def __enter__(self) -> _InThreads:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def partition(
        self, partitioner: Partitioner, program: ExportedProgram
    ) -> PartitionResult:
        return partitioner(program)

    def compile(self, requests: Sequence[Request]) -> list[Compiled]:
        answers = self._executor.map(
            compile_here, [[requests[k] for k in call] for call in calls_of(requests)]
        )
        return [compiled for answer in answers for compiled in answer]


# --- the runtime


@check
def runtime_thread_safety(backend: BackendUnderTest) -> Figures:
    """Delegates of a runtime that declares ``thread_safe`` compute the same in several
    threads at once as in one.
    """
    if not backend.needs_runtime().thread_safe:
        raise CheckSkipped("the runtime does not declare thread_safe")
    left_out = backend.left_out(times=2)
    samples = {
        one.program.name: one.program
        for one in backend.lowered
        if is_comparable(one, backend)
    }
    names = [name for name in samples if name not in left_out]
    answer = backend.run_apart(call_at_once, names)
    if answer.died:
        text = f"calling delegates in {_THREADS} threads, the process {answer.died}"
        raise CheckFailed(text, samples.get(answer.progress), Kind.CRASH.value)
    found = answer.result or Hammered(wrong=answer.failure, program=answer.progress)
    if found.wrong:
        advice = (
            "keep what a call works on in local variables, one buffer for each call, or"
            " leave thread_safe False"
        )
        raise CheckFailed(found.wrong, samples.get(found.program), advice)
    if not found.delegates:
        raise CheckSkipped(
            "no delegate of the samples can be told apart by its results"
        )
    return {"delegates": found.delegates, "calls": found.calls, "threads": _THREADS}


class Hammered(NamedTuple):
    """The delegates that threads called, the number of calls, and the fault by program."""

    delegates: int = 0
    calls: int = 0
    wrong: str = ""
    program: str = ""


@dataclass
class _Loaded:
    """A loaded delegate with the inputs and results of its calls in one thread."""

    parts: tuple[bytes, list[CompileSpec], dict[str, bytes]]
    delegate: Delegate
    calls: list[tuple[tuple[Any, ...], tuple[Any, ...]]] = field(default_factory=list)


def call_at_once(
    backend: ConfiguredBackend, names: list[str], report: Report
) -> Hammered:
    """Call each delegate of the samples in one thread, then in several.

    Runs in another process.
    """
    delegates = 0
    calls = 0
    for program in (p for p in backend.programs if p.name in names):
        report(program.name)
        one = backend.attempt(program)
        if (
            one is None
            or one.lowered is None
            or any(d.module.state for d in one.lowered.delegates)
        ):
            continue
        limit = tolerance_of(one.exported, backend.tolerance)
        for loaded in _called_in_one_thread(
            backend.needs_runtime(), one.lowered, one.inputs
        ):
            if not _is_told_apart(loaded, limit):
                continue
            made, wrong = _call_in_threads(backend.needs_runtime(), loaded, limit)
            delegates += 1
            calls += made
            if wrong:
                return Hammered(delegates, calls, wrong, program.name)
    return Hammered(delegates, calls)


def _called_in_one_thread(
    runtime: type[BackendRuntime],
    lowered: delegraph.LoweredProgram,
    inputs: Sequence[Any],
) -> list[_Loaded]:
    """Return the delegates of a program, each called with several inputs.

    Inputs for which a call fails are left out.
    """
    made: list[_Loaded] = []
    load = runtime.load

    def recorded(
        processed_bytes: bytes,
        compile_specs: Sequence[CompileSpec],
        named_data: Mapping[str, bytes],
    ) -> Delegate:
        parts = processed_bytes, list(compile_specs), dict(named_data)
        loaded = _Loaded(parts, load(processed_bytes, compile_specs, named_data))
        made.append(loaded)

        def call(*values: Any) -> Any:
            given = copy.deepcopy(values)
            results = loaded.delegate(*values)
            loaded.calls.append((given, copy.deepcopy(tuple(results))))
            return results

        return call

    with quiet(), mock.patch.object(runtime, "load", recorded):
        for values in _variants(inputs):
            try:
                lowered(*values)
            except (Exception, SystemExit):  # values that the operator does not take
                continue
    return made


def _variants(inputs: Sequence[Any]) -> Iterator[list[Any]]:
    """Yield inputs of the same types with other values in the domain of most operators."""
    for k in range(_VARIANTS):
        yield [_variant(value, k) for value in copy.deepcopy(tuple(inputs))]


def _variant(value: Any, k: int) -> Any:
    """Return a tensor with its elements rotated by ``k``; floats also get a little
    smaller.
    """
    if not isinstance(value, torch.Tensor):
        return value
    moved = value.flatten().roll(k).reshape(value.shape)
    if value.is_floating_point():
        moved = moved * (1 - 0.1 * k)
    laid_out = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
    return laid_out.copy_(moved)


def _is_told_apart(loaded: _Loaded, limit: float) -> bool:
    """Return whether results differ for different inputs and agree for the same ones."""
    first, *others = loaded.calls or [((), ())]
    if not any(_differ(results, first[1], limit) for _, results in others):
        return False
    with quiet():
        for inputs, results in loaded.calls:
            # compared at once: the next call may overwrite the results
            if _differ(loaded.delegate(*copy.deepcopy(inputs)), results, limit):
                return False
    return True


def _differ(results: Sequence[Any], wanted: Sequence[Any], limit: float) -> bool:
    return not Verification.of(tuple(results), tuple(wanted)).relative_error <= limit


def _call_in_threads(
    runtime: type[BackendRuntime], loaded: _Loaded, limit: float
) -> tuple[int, str]:
    """Call one delegate in all threads, and then one that each thread loads; how many
    calls, and what is wrong.
    """

    def load_another() -> Delegate:
        return runtime.load(*copy.deepcopy(loaded.parts))

    made = 0
    for how, get in (
        ("one loaded delegate", lambda: loaded.delegate),
        ("a delegate that each loads", load_another),
    ):
        for pauses in (False, True):
            done, wrong = _hammer(get, loaded.calls, limit, pauses)
            made += done
            if wrong:
                return (
                    made,
                    f"{_THREADS} threads called {how}, each with other inputs: {wrong}",
                )
    return made, ""


def _hammer(
    get: Callable[[], Delegate],
    calls: Sequence[tuple[tuple[Any, ...], tuple[Any, ...]]],
    limit: float,
    pauses: bool,
) -> tuple[int, str]:
    """Let all threads begin at once; the results are compared after the last call, so
    that none may change.

    ``pauses``: pause at lines of the runtime, so that other threads run between any two
    of them.
    """
    begin = threading.Barrier(_THREADS)
    kept: list[list[tuple[int, Any]]] = [[] for _ in range(_THREADS)]
    errors: list[str] = []

    def work(thread: int) -> None:
        own_inputs = [copy.deepcopy(inputs) for inputs, _ in calls]
        begin.wait()
        stop = time.monotonic() + _SECONDS
        before = sys.gettrace()
        try:
            if pauses:
                sys.settrace(_pausing(random.Random(thread)))
            delegate = get()
            for k in range(_PAUSED_CALLS if pauses else _CALLS):
                which = (thread + k) % len(calls)
                kept[thread].append((which, delegate(*own_inputs[which])))
                if time.monotonic() > stop:
                    return
        except (Exception, SystemExit) as e:
            errors.append(f"a call raised {type(e).__name__}: {e}")
        finally:
            sys.settrace(before)

    with quiet():
        threads = [threading.Thread(target=work, args=(k,)) for k in range(_THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    results = [pair for of_thread in kept for pair in of_thread]
    wrong = [
        which for which, found in results if _differ(found, calls[which][1], limit)
    ]
    if errors:
        return len(results), errors[0]
    if wrong:
        return (
            len(results),
            (
                f"{len(wrong)} of {len(results)} calls returned other results than in"
                " one thread"
            ),
        )
    return len(results), ""


def _pausing(chance: random.Random) -> Callable[..., Any]:
    """A trace function that pauses at every second line or so, but not inside of torch."""

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename.startswith(_TORCH):
            return None
        if event == "line" and chance.random() < 0.5:
            time.sleep(_PAUSE_SECONDS)
        return trace

    return trace

"""Check backends that declare ``thread_safe``: compile and call in several threads."""

from __future__ import annotations

import copy
import itertools
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
"""The number of different inputs for a delegate.

It is no multiple of _THREADS, so that all pairs of inputs meet.
"""
_CALLS = 30
"""Calls of a delegate in each thread without pauses."""
_PAUSED_CALLS = 15
"""Calls of a delegate in each thread with pauses."""
_SECONDS = 2.0
"""Seconds that threads call one delegate, if it is too slow for all calls."""
_PAUSE_SECONDS = 1e-4
"""A pause at a line of the runtime.

Without pauses, a busy machine runs most calls from begin to end.
"""
_TORCH = os.path.dirname(torch.__file__) + os.sep


@check
def thread_safety(backend: BackendUnderTest) -> Figures:
    """A backend that declares ``thread_safe`` compiles partitions in several threads to
    the same bytes as one by one.
    """
    if not backend.registry.get_backend(backend.name).thread_safe:
        raise CheckSkipped("the backend does not declare thread_safe")
    left_out = backend.left_out(times=1 + _ROUNDS)
    names = [
        attempt.program.name
        for attempt in backend.lowered
        if attempt.program.name not in left_out
    ]
    answer = backend.run_apart(compile_at_once, names)
    if answer.died:
        raise CheckFailed(
            f"compiling {answer.progress}, the process {answer.died}",
            advice=Kind.CRASH.value,
        )
    compiled: CompiledAtOnce = answer.result or CompiledAtOnce(
        wrong=f"compiling {answer.progress} {answer.failure}"
    )
    if compiled.wrong:
        advice = (
            "keep the state of preprocess in local variables, or leave thread_safe"
            " False"
        )
        raise CheckFailed(compiled.wrong, advice=advice)
    return {"delegates": compiled.delegates, "threads": _THREADS}


class CompiledAtOnce(NamedTuple):
    """The number of compiled delegates, and the fault; "" if there is none."""

    delegates: int = 0
    wrong: str = ""


def compile_at_once(
    backend: ConfiguredBackend, names: list[str], report: Report
) -> CompiledAtOnce:
    """Compile the samples one by one and in threads, and compare.

    Runs in another process.
    """
    programs = {
        p.name: p.exported[0]
        for p in backend.programs
        if p.name in names and p.exported is not None
    }

    def compile_all(executor: ThreadPoolExecutor | None) -> list[HandedOver]:
        """Lower all programs as methods of one lowering."""
        compiler = None
        if executor is None:
            report("all samples in one lowering")
        else:
            report(f"all samples by {_THREADS} threads")
            compiler = _InThreads(executor)
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
            for k, (threaded, alone_made) in enumerate(
                zip(together, alone, strict=True)
            ):
                if threaded != alone_made:
                    return CompiledAtOnce(
                        wrong=f"delegate {k} of the samples differs if {how}"
                        " compile the partitions at once"
                    )
    except (Exception, SystemExit) as e:
        return CompiledAtOnce(
            wrong=f"preprocess, called for {how}, raised {type(e).__name__}: {e}"
        )
    return CompiledAtOnce(delegates=len(alone))


class _InThreads:
    """A compiler, and its session, that compiles each partition in a thread."""

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
        batches = [[requests[k] for k in call] for call in calls_of(requests)]
        compiled: list[Compiled] = []
        for results in self._executor.map(compile_here, batches):
            compiled += results
        return compiled


# --- the runtime


@check
def runtime_thread_safety(backend: BackendUnderTest) -> Figures:
    """Delegates of a runtime that declares ``thread_safe`` compute the same in several
    threads as in one.
    """
    if not backend.needs_runtime().thread_safe:
        raise CheckSkipped("the runtime does not declare thread_safe")
    left_out = backend.left_out(times=2)
    samples = {
        attempt.program.name: attempt.program
        for attempt in backend.lowered
        if is_comparable(attempt, backend)
    }
    names = [name for name in samples if name not in left_out]
    answer = backend.run_apart(call_at_once, names)
    if answer.died:
        text = f"calling delegates in {_THREADS} threads, the process {answer.died}"
        raise CheckFailed(text, samples.get(answer.progress), Kind.CRASH.value)
    found = answer.result or CalledAtOnce(wrong=answer.failure, program=answer.progress)
    if found.wrong:
        advice = (
            "keep the state of a call in local variables and in buffers of its own, or"
            " leave thread_safe False"
        )
        raise CheckFailed(found.wrong, samples.get(found.program), advice)
    if not found.delegates:
        raise CheckSkipped(
            "no delegate of the samples has results that depend on its inputs"
        )
    return {"delegates": found.delegates, "calls": found.calls, "threads": _THREADS}


class CalledAtOnce(NamedTuple):
    """The numbers of delegates and calls, and the fault of a program.

    ``wrong`` and ``program`` are "" if there is no fault.
    """

    delegates: int = 0
    calls: int = 0
    wrong: str = ""
    program: str = ""


class _ThreadedCalls(NamedTuple):
    """The number of calls that threads made, and the fault; "" if there is none."""

    calls: int
    wrong: str = ""


class _Call(NamedTuple):
    """The inputs of a delegate's call in one thread, and its results."""

    inputs: tuple[Any, ...]
    results: tuple[Any, ...]


@dataclass
class _Loaded:
    """A loaded delegate with its calls in one thread."""

    parts: HandedOver
    delegate: Delegate
    calls: list[_Call] = field(default_factory=list)


def call_at_once(
    backend: ConfiguredBackend, names: list[str], report: Report
) -> CalledAtOnce:
    """Call each delegate of the samples in one thread, then in several.

    Runs in another process.
    """
    runtime = backend.needs_runtime()
    delegates = 0
    calls = 0
    for program in backend.programs:
        if program.name not in names:
            continue
        report(program.name)
        attempt = backend.attempt(program)
        if attempt is None or attempt.lowered is None:
            continue
        if any(d.module.state for d in attempt.lowered.delegates):
            continue
        limit = tolerance_of(attempt.exported, backend.tolerance)
        for loaded in _called_in_one_thread(runtime, attempt.lowered, attempt.inputs):
            if not _depends_on_inputs(loaded, limit):
                continue
            made = _call_in_threads(runtime, loaded, limit)
            delegates += 1
            calls += made.calls
            if made.wrong:
                return CalledAtOnce(delegates, calls, made.wrong, program.name)
    return CalledAtOnce(delegates, calls)


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
            loaded.calls.append(_Call(given, copy.deepcopy(tuple(results))))
            return results

        return call

    with quiet(), mock.patch.object(runtime, "load", recorded):
        for values in _variants(inputs):
            try:
                lowered(*values)
            except (Exception, SystemExit):  # the operator refuses these values
                continue
    return made


def _variants(inputs: Sequence[Any]) -> Iterator[list[Any]]:
    """Yield inputs with other values, which are in the domain of most operators."""
    for k in range(_VARIANTS):
        yield [_variant(value, k) for value in copy.deepcopy(tuple(inputs))]


def _variant(value: Any, k: int) -> Any:
    """Rotate the elements of a tensor by ``k``, and make floats a little smaller."""
    if not isinstance(value, torch.Tensor):
        return value
    moved = value.flatten().roll(k).reshape(value.shape)
    if value.is_floating_point():
        moved = moved * (1 - 0.1 * k)
    laid_out = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
    return laid_out.copy_(moved)


def _depends_on_inputs(loaded: _Loaded, limit: float) -> bool:
    """Return whether results differ for different inputs and agree for the same ones."""
    if not loaded.calls:
        return False
    first, *others = loaded.calls
    if not any(_differ(call.results, first.results, limit) for call in others):
        return False
    with quiet():
        for call in loaded.calls:
            # compared at once: the next call may overwrite the results
            again = loaded.delegate(*copy.deepcopy(call.inputs))
            if _differ(again, call.results, limit):
                return False
    return True


def _differ(results: Sequence[Any], wanted: Sequence[Any], limit: float) -> bool:
    """Return whether results differ by more than a relative error of ``limit``."""
    found = Verification.of(tuple(results), tuple(wanted))
    return not found.relative_error <= limit  # NaN differs, too


def _call_in_threads(
    runtime: type[BackendRuntime], loaded: _Loaded, limit: float
) -> _ThreadedCalls:
    """Call one delegate in all threads, then one that each thread loads."""

    def get_shared() -> Delegate:
        return loaded.delegate

    def load_another() -> Delegate:
        return runtime.load(*copy.deepcopy(loaded.parts))

    ways = {
        "one loaded delegate": get_shared,
        "a delegate that each loads": load_another,
    }
    calls = 0
    for how, get in ways.items():
        for pauses in (False, True):
            made = _call_from_all_threads(get, loaded.calls, limit, pauses)
            calls += made.calls
            if made.wrong:
                text = (
                    f"{_THREADS} threads called {how}, each with other inputs:"
                    f" {made.wrong}"
                )
                return _ThreadedCalls(calls, text)
    return _ThreadedCalls(calls)


def _call_from_all_threads(
    get: Callable[[], Delegate],
    calls: Sequence[_Call],
    limit: float,
    pauses: bool,
) -> _ThreadedCalls:
    """Make all calls in each thread, and compare the results after the last call.

    The threads begin at once. ``get`` returns the delegate that a thread calls.
    ``calls`` has the inputs, and the results of one thread. A result that a later call
    changes is a fault. With ``pauses``, threads pause at lines of the runtime, so that
    other threads run in between.
    """
    begin = threading.Barrier(_THREADS)
    kept: list[list[tuple[int, Any]]] = [[] for _ in range(_THREADS)]
    errors: list[str] = []

    def work(thread: int) -> None:
        own_inputs = [copy.deepcopy(call.inputs) for call in calls]
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
    results = list(itertools.chain(*kept))
    if errors:
        return _ThreadedCalls(len(results), errors[0])

    wrong = sum(_differ(found, calls[which].results, limit) for which, found in results)
    if wrong:
        text = (
            f"{wrong} of {len(results)} calls returned other results than in one thread"
        )
        return _ThreadedCalls(len(results), text)
    return _ThreadedCalls(len(results))


def _pausing(chance: random.Random) -> Callable[..., Any]:
    """Return a trace function that pauses at about half of the lines outside torch."""

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename.startswith(_TORCH):
            return None
        if event == "line" and chance.random() < 0.5:
            time.sleep(_PAUSE_SECONDS)
        return trace

    return trace

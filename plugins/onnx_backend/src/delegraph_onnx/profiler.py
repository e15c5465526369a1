"""Profile delegates with ONNX Runtime's profiler, by calls of the program."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import onnx
import onnxruntime as ort
import torch
from delegraph.runtime import Spent
from delegraph_engines import Kernel, Signature, calls_in, computed_by

from .session import Loaded


class Profiled:
    """A delegate whose calls also return the seconds of their kernels.

    A session of ONNX Runtime writes its times once, when profiling ends. So each call
    needs a new session. It is made, and run once to warm up, after the call before.
    """

    def __init__(
        self,
        make: Callable[[str], ort.InferenceSession],
        model: bytes,
        signature: Signature,
    ) -> None:
        """``make``: returns a session that writes its profile to files of a prefix."""
        self._make = make
        self._signature = signature
        self._folder = tempfile.mkdtemp()
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._reads = list(_reads(onnx.ModelProto.FromString(model).graph))
        self._ready = self._load()

    def __call__(
        self, *args: torch.Tensor | int | float | bool
    ) -> tuple[tuple[Any, ...], Callable[[], Spent]]:
        """Return the results, and a function that returns the times."""
        loaded = self._ready
        results = loaded(*args)

        def read() -> Spent:
            begin = _begin_of_profile(loaded.session)
            events = json.loads(Path(loaded.session.end_profiling()).read_text())
            self._ready = self._load()
            self._ready(*args)
            return self._by_calls(_last_run(events), begin)

        return results, read

    def _load(self) -> Loaded:
        """Return a new session that profiles."""
        prefix = str(Path(self._folder, "profile"))
        return Loaded(self._make(prefix), self._signature)

    def _by_calls(self, kernels: list[_Run], begin: float) -> Spent:
        """Return the times of calls, by their numbers.

        ``begin``: the begin of the profile in seconds of ``time.perf_counter()``.
        """
        names = dict.fromkeys(kernel.name for kernel in kernels)
        listed = [Kernel(name, calls_in(name), []) for name in names]
        calls = computed_by(listed, self._reads)
        spent: dict[Any, dict[str, Any]] = {}
        for kernel in kernels:
            amounts = spent.setdefault(
                calls[kernel.name], {"seconds": 0.0, "intervals": []}
            )
            start = begin + kernel.start
            amounts["seconds"] += kernel.seconds
            amounts["intervals"].append((start, start + kernel.seconds))
        return spent


class _Run(NamedTuple):
    """A kernel that ran; ``start`` is in seconds since the profile began."""

    name: str
    start: float
    seconds: float


def _begin_of_profile(session: ort.InferenceSession) -> float:
    """Return the begin of a session's profile in seconds of ``time.perf_counter()``."""
    begin: int = session.get_profiling_start_time_ns()
    # The platform decides whether ONNX Runtime's clock is that of the day.
    clock = min(
        (time.time_ns, time.monotonic_ns), key=lambda clock: abs(clock() - begin)
    )
    # The process may be interrupted between two readings, so take the closest ones.
    readings = [
        (time.perf_counter_ns(), clock(), time.perf_counter_ns()) for _ in range(3)
    ]
    before, now, after = min(readings, key=lambda times: times[2] - times[0])
    return ((before + after) / 2 - now + begin) / 1e9


def _last_run(events: list[dict[str, Any]]) -> list[_Run]:
    """Return the kernels of the last run. Each run has the same number of kernels."""
    kernels = list[_Run]()
    for event in events:
        if event["name"].endswith("_kernel_time"):
            name = event["name"].removesuffix("_kernel_time")
            kernels.append(_Run(name, event["ts"] / 1e6, event["dur"] / 1e6))
    runs = sum(event["name"] == "model_run" for event in events)
    if not kernels:
        return []
    kernels_in_run = len(kernels) // max(runs, 1)
    return kernels[-kernels_in_run:]


def _reads(graph: onnx.GraphProto) -> Iterator[tuple[int, int]]:
    """Yield pairs: the number of a call, and that of a call whose result it reads."""
    makers = {name: calls_in(node.name) for node in graph.node for name in node.output}
    for node in graph.node:
        for call in calls_in(node.name):
            for name in node.input:
                for operand in makers.get(name, []):
                    yield call, operand

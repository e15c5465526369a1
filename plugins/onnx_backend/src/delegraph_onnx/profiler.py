"""Profile delegates with ONNX Runtime's profiler, by calls of the program."""

from __future__ import annotations

import json
import shutil
import tempfile
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort
import torch
from delegraph.runtime import Spent
from delegraph_engines import Kernel, Signature, calls_in, computed_by

from .session import Loaded


class Profiled:
    """A delegate whose calls also return the seconds of their kernels.

    A session of ONNX Runtime tells its times once, when profiling ends. So each call
    has a session of its own, which is made and run once before.
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
            events = json.loads(Path(loaded.session.end_profiling()).read_text())
            self._ready = self._load()
            self._ready(*args)
            return self._by_calls(_last_run(events))

        return results, read

    def _load(self) -> Loaded:
        prefix = str(Path(self._folder, "profile"))
        return Loaded(self._make(prefix), self._signature)

    def _by_calls(self, kernels: list[tuple[str, float]]) -> Spent:
        """Return the seconds of calls, by their numbers."""
        names = dict.fromkeys(name for name, _ in kernels)
        listed = [Kernel(name, calls_in(name), []) for name in names]
        calls = computed_by(listed, self._reads)
        seconds = Counter[Any]()
        for name, duration in kernels:
            seconds[calls[name]] += duration  # type: ignore[assignment]
        return {key: {"seconds": spent} for key, spent in seconds.items()}


def _last_run(events: list[dict[str, Any]]) -> list[tuple[str, float]]:
    """Return the kernels of the last run with their seconds."""
    kernels = list[tuple[str, float]]()
    for event in events:
        if event["name"].endswith("_kernel_time"):
            name = event["name"].removesuffix("_kernel_time")
            kernels.append((name, event["dur"] / 1e6))
    runs = sum(event["name"] == "model_run" for event in events)
    return kernels[-(len(kernels) // max(runs, 1)) :] if kernels else []


def _reads(graph: onnx.GraphProto) -> Iterator[tuple[int, int]]:
    """Yield the numbers of each call and of a call that it reads."""
    makers = {name: calls_in(node.name) for node in graph.node for name in node.output}
    for node in graph.node:
        for call in calls_in(node.name):
            for name in node.input:
                for operand in makers.get(name, []):
                    yield call, operand

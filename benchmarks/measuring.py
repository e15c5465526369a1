"""How everything here is timed: CPU seconds on one thread, in processes of their own
that the scripts talk to.

A worker imports what it needs, lowers a throw-away model, and then makes one run for
every line that it is sent; so two workers, one of them perhaps in another environment,
can take turns. Needs torch and the standard library only.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib.util
import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

Result = TypeVar("Result")
Run = Callable[[], dict[str, float]]

MODELS = {
    "MobileNetV2": "mobilenet_v2.py:mobilenet_v2",
    "ResNet-18": "resnet.py:resnet18",
    "ResNet-50": "resnet.py:resnet50",
    "ViT-B/16": "transformer.py:vit_b16",
    "BERT-base": "transformer.py:bert_base",
    "Llama, 8 layers": "transformer.py:llama_8",
}
_EXAMPLES = Path(__file__).parent.parent / "examples"


def model(name: str) -> tuple[Any, tuple[Any, ...]]:
    """The module in eval mode and its inputs, from examples/; ``throw-away`` is one
    convolution.
    """
    import torch

    if name == "throw-away":
        return torch.nn.Conv2d(3, 4, 3).eval(), (torch.ones(1, 3, 8, 8),)
    file, function = MODELS[name].split(":")
    return getattr(example(file), function)()  # type: ignore[no-any-return]


def example(file: str) -> Any:
    """A module of examples/."""
    spec = importlib.util.spec_from_file_location(Path(file).stem, _EXAMPLES / file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cpu_clock() -> float:
    """CPU seconds of this process so far, and of the compilers that it ran and waited
    for.
    """
    times = os.times()
    return time.process_time() + times.children_user + times.children_system


def cpu_seconds(function: Callable[[], Result]) -> tuple[Result, float]:
    """The result, and the CPU seconds that it took."""
    start = cpu_clock()
    result = function()
    return result, cpu_clock() - start


def raised_memory(function: Callable[[], Result]) -> tuple[Result, float]:
    """The result, and the bytes by which the call raised this process's peak resident
    set above what it had (Linux).
    """
    gc.collect()
    # what is free goes back to the system, so that using it again shows
    ctypes.CDLL(None).malloc_trim(0)
    # VmHWM, the peak, starts again from now
    Path("/proc/self/clear_refs").write_text("5")
    before = _resident("VmRSS")
    result = function()
    return result, _resident("VmHWM") - before


def _resident(field: str) -> float:
    """A field of /proc/self/status, in bytes."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024.0 * int(found[1])


def exponent(sizes: Sequence[float], figures: Sequence[float]) -> float:
    """The slope of log(figure) over log(size), by least squares: 1 is linear."""
    xs = [math.log(n) for n in sizes]
    ys = [math.log(f) for f in figures]
    x0 = fmean(xs)
    y0 = fmean(ys)
    return sum((x - x0) * (y - y0) for x, y in zip(xs, ys, strict=True)) / sum(
        (x - x0) ** 2 for x in xs
    )


class Worker:
    """A child process that runs ``script --worker KIND MODEL`` and answers each line
    with one measurement.
    """

    def __init__(
        self, script: str, kind: str, name: str, python: str = sys.executable
    ) -> None:
        command = [python, "-W", "ignore", script, "--worker", kind, name]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def run(self) -> dict[str, float]:
        """One measurement; SystemExit if the worker died (its error is on stderr)."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("run\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit(f"the worker {self._process.args} died")
        return json.loads(answer)  # type: ignore[no-any-return]

    def close(self) -> None:
        """Let the worker end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def parse(
    parser: argparse.ArgumentParser, make_run: Callable[[str, str], Run]
) -> argparse.Namespace:
    """The arguments of a script. Its workers (``--worker KIND MODEL``) serve what
    ``make_run`` makes, and end here.
    """
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        _serve(lambda: make_run(*arguments.worker))
        raise SystemExit
    return arguments


def _serve(make_run: Callable[[], Run]) -> None:
    """The worker's side: prepare, then one measurement a line. What libraries print
    goes to stderr.
    """
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    import torch

    torch.set_num_threads(1)
    run = make_run()
    for _ in sys.stdin:
        answers.write(json.dumps(run()) + "\n")
        answers.flush()


def once(
    script: str, kind: str, name: str, python: str = sys.executable
) -> dict[str, float]:
    """One measurement in a fresh process."""
    worker = Worker(script, kind, name, python)
    result = worker.run()
    worker.close()
    return result

"""Lowering to TOSA against torch.export of the same model: CPU time, and memory against
the size of the file.

    python benchmarks/lowering.py [MobileNetV2] [ResNet-50] [ViT-B/16] [...] [--repeats
        5] [--least]

Warm: imports and a throw-away model first; the median of interleaved runs, each
exporting the module anew and lowering that program, or with --least the least of them,
which is what other work on the machine disturbs least. Garbage is collected before
each. "both" is lowering and writing together. A second table has the steps of a
lowering (see docs/architecture.md); what they leave is the report and the collector's
first run after them. Cold: the first lowering of a process, plugin imports included.
Memory: a fresh process's peak resident set while it lowers and writes the file, minus
its resident set just before (Linux).
"""

from __future__ import annotations

import gc
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

import measuring
import publishing


def main() -> None:
    """Measure the models that are named, or all, and print a table."""
    parser = publishing.parser(__doc__)
    parser.add_argument(
        "models", nargs="*", metavar="MODEL", help=", ".join(measuring.MODELS)
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--least", action="store_true")
    arguments = measuring.parse(parser, lambda kind, name: WORKERS[kind](name))
    models = arguments.models or list(measuring.MODELS)
    found = {
        name: _measured(name, arguments.repeats, min if arguments.least else median)
        for name in models
    }
    rows = publishing.Table(
        HEADER, [_row(name, *figures) for name, figures in found.items()], "models"
    )
    steps = [_steps(name, warm) for name, (warm, _, _) in found.items()]
    packages = ["torch", "delegraph", "delegraph-tosa"]
    publishing.report(
        arguments,
        "lowering",
        packages,
        rows,
        publishing.Table(("step, ms", *STEPS), steps, "steps"),
    )


Figures = dict[str, float]


HEADER = (
    "model",
    "export, ms",
    "lower, ms",
    "of export",
    "write file, ms",
    "both, of export",
    "cold: export, ms",
    "cold: lower, ms",
    "file, MB",
    "memory raised, MB",
    "of file",
)


STEPS = (
    "normalize",
    "decompose-and-partition",
    "extract",
    "compile",
    "insert",
    "finish",
)


def _measured(
    name: str, repeats: int, choose: Callable[[list[float]], float]
) -> tuple[Figures, Figures, Figures]:
    worker = measuring.Worker(__file__, "warm", name)
    runs = [worker.run() for _ in range(repeats)]
    worker.close()
    warm = {phase: choose([run[phase] for run in runs]) for phase in runs[0]}
    return (
        warm,
        measuring.once(__file__, "cold", name),
        measuring.once(__file__, "memory", name),
    )


def _row(name: str, warm: Figures, cold: Figures, memory: Figures) -> list[str]:
    export = warm["export"]
    lower = warm["lower"]
    write = warm["write"]
    return [
        name,
        *(f"{1e3 * export:.0f}", f"{1e3 * lower:.1f}", f"{100 * lower / export:.1f} %"),
        *(f"{1e3 * write:.1f}", f"{100 * (lower + write) / export:.1f} %"),
        *(f"{1e3 * cold['export']:.0f}", f"{1e3 * cold['lower']:.1f}"),
        *(
            f"{memory['file'] / 1e6:.1f}",
            f"{memory['raised'] / 1e6:.1f}",
            f"{memory['raised'] / memory['file']:.2f}",
        ),
    ]


def _steps(name: str, warm: Figures) -> list[str]:
    return [name, *(f"{1e3 * warm[step]:.1f}" for step in STEPS)]


def _warm(name: str) -> measuring.Run:
    _times(measuring.model("throw-away"))
    model = measuring.model(name)
    return lambda: _times(model)


def _cold(name: str) -> measuring.Run:
    model = measuring.model(name)
    return lambda: _times(model)


def _times(model: tuple[object, tuple[object, ...]]) -> dict[str, float]:
    import delegraph
    import torch

    gc.collect()
    program, export = measuring.cpu_seconds(lambda: torch.export.export(*model))  # type: ignore[arg-type]
    gc.collect()
    with _steps_in_cpu_seconds():
        lowered, lower = measuring.cpu_seconds(
            lambda: delegraph.lower(program, backends=["tosa"])
        )
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "model.tosa")
        _, write = measuring.cpu_seconds(lambda: lowered.delegates[0].save(file))
    return {**lowered.report.seconds, "export": export, "lower": lower, "write": write}


@contextmanager
def _steps_in_cpu_seconds() -> Iterator[None]:
    """Let the pipeline, whose reports have seconds on the clock, time its steps as
    everything here is timed.
    """
    clock = time.perf_counter
    time.perf_counter = time.process_time
    try:
        yield
    finally:
        time.perf_counter = clock


def _memory(name: str) -> measuring.Run:
    import delegraph
    import torch

    _times(measuring.model("throw-away"))
    program = torch.export.export(*measuring.model(name))

    def run() -> dict[str, float]:
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "model.tosa")
            _, raised = measuring.raised_memory(
                lambda: (
                    delegraph.lower(program, backends=["tosa"]).delegates[0].save(file)
                )
            )
            return {"raised": raised, "file": os.path.getsize(file)}

    return run


WORKERS = {"warm": _warm, "cold": _cold, "memory": _memory}

if __name__ == "__main__":
    main()

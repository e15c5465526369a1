"""Lowering to TOSA against torch.export of the same model: CPU time, and memory against the size of the file.

    python benchmarks/lowering.py [MobileNetV2] [ResNet-18] [ResNet-50] [--repeats 5]

Warm: imports and a throw-away model first; the median of interleaved runs, each exporting the module anew and lowering
that program. Cold: the first lowering of a process, plugin imports included. Memory: a fresh process's peak resident
set while it lowers and writes the file, minus its resident set just before (Linux).
"""

from __future__ import annotations

import argparse
import os
import tempfile
from statistics import median

import measuring


def main() -> None:
    """Measure the models that are named, or all, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(measuring.MODELS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        kind, name = arguments.worker
        measuring.serve(lambda: WORKERS[kind](name))
        return
    models = arguments.models or list(measuring.MODELS)
    command = " ".join(["python benchmarks/lowering.py", *models, "--repeats", str(arguments.repeats)])
    print(measuring.heading(command, ["torch", "delegraph", "delegraph-tosa"]))
    rows = [_row(name, arguments.repeats) for name in models]
    print(measuring.table(HEADER, rows))


HEADER = (
    "model",
    "export, ms",
    "lower, ms",
    "of export",
    "write file, ms",
    "cold: export, ms",
    "cold: lower, ms",
    "file, MB",
    "memory raised, MB",
    "of file",
)


def _row(name: str, repeats: int) -> list[str]:
    worker = measuring.Worker(__file__, "warm", name)
    runs = [worker.run() for _ in range(repeats)]
    worker.close()
    export, lower, write = (median(run[phase] for run in runs) for phase in ("export", "lower", "write"))
    cold, memory = measuring.once(__file__, "cold", name), measuring.once(__file__, "memory", name)
    return [
        name,
        *(f"{1e3 * export:.0f}", f"{1e3 * lower:.1f}", f"{100 * lower / export:.1f} %", f"{1e3 * write:.1f}"),
        *(f"{1e3 * cold['export']:.0f}", f"{1e3 * cold['lower']:.1f}"),
        *(f"{memory['file'] / 1e6:.1f}", f"{memory['raised'] / 1e6:.1f}", f"{memory['raised'] / memory['file']:.2f}"),
    ]


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

    program, export = measuring.cpu_seconds(lambda: torch.export.export(*model))  # type: ignore[arg-type]
    lowered, lower = measuring.cpu_seconds(lambda: delegraph.lower(program, backends=["tosa"], require_full=True))
    with tempfile.TemporaryDirectory() as folder:
        _, write = measuring.cpu_seconds(lambda: lowered.save(os.path.join(folder, "model.tosa")))
    return {"export": export, "lower": lower, "write": write}


def _memory(name: str) -> measuring.Run:
    import delegraph
    import torch

    _times(measuring.model("throw-away"))
    program = torch.export.export(*measuring.model(name))

    def run() -> dict[str, float]:
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "model.tosa")
            _, raised = measuring.raised_memory(
                lambda: delegraph.lower(program, backends=["tosa"], require_full=True).save(file)
            )
            return {"raised": raised, "file": os.path.getsize(file)}

    return run


WORKERS = {"warm": _warm, "cold": _cold, "memory": _memory}

if __name__ == "__main__":
    main()

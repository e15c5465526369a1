"""What two processes gain on the cells of a matrix, and what it costs to have them
done.

    python benchmarks/matrix_speed.py [CELLS]

CELLS copies of examples/two_partitions.py, which are as many cells that share nothing,
on TOSA: by one process and by two, which have been started before. "In cells" is the
CPU time of the cells' processes, "dispatch" that of the command and of the processes
that fork, by it. What two processes gain is the wall time, and where the machine is
busy with other things, the ratio of the CPU time of all cells to that of the worker
that had most.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import publishing
from delegraph_analysis.matrix import cells, description, executors, schedule
from delegraph_analysis.matrix.forking import ForkingProcess, give_back
from delegraph_analysis.matrix.store import Store

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Print the table."""
    parser = publishing.parser(__doc__)
    parser.add_argument("cells", nargs="?", type=int, default=12, metavar="CELLS")
    given = parser.parse_args()
    count = given.cells
    rows = []
    with tempfile.TemporaryDirectory() as name:
        figures = {
            text: _by(text, _cells(count, Path(name)), Path(name))
            for text in ("serial", "process:2")
        }
    for text, told in figures.items():
        shares = (
            f"{told['wall']:.1f} s",
            f"{told['cells']:.1f} s",
            f"{told['dispatch'] / told['cells']:.1%}",
        )
        rows.append(
            [
                text,
                *shares,
                f"{figures['serial']['wall'] / told['wall']:.2f}",
                f"{told['balance']:.2f}",
            ]
        )
    table = publishing.Table(
        ["executor", "wall", "in cells", "dispatch", "wall gain", "CPU gain"], rows
    )
    publishing.report(given, "matrix_speed", ["torch", "delegraph-tosa"], table)


def _cells(count: int, folder: Path) -> list[cells.Cell]:
    source = (ROOT / "examples/two_partitions.py").read_text()
    names = [f"copy{k}.py" for k in range(count)]
    for name in names:
        (folder / name).write_text(f"# {name}\n{source}")
    models = tuple(description.Model(f"{name}:two_partitions", name) for name in names)
    target = description.target_of(["tosa"], {})
    return cells.cells_of(description.Matrix(models, (target,), folder=folder))


def _by(executor: str, listed: list[cells.Cell], folder: Path) -> dict[str, Any]:
    """Have cells done in a store of their own, and look at all clocks."""
    store = Store(folder / executor.replace(":", ""))
    store.create()
    workers = 1 if executor == "serial" else 2
    with executors.engine_of(executor, store.folder, 600) as engine:
        forking = [ForkingProcess(1) for _ in range(workers)]
        for process in forking:
            process.await_ready()
            give_back(process, 1)
        before = time.process_time() + sum(map(_seconds, forking))
        start = time.perf_counter()
        rows = schedule.run_cells(listed, store, engine)
        wall = time.perf_counter() - start
        after = time.process_time() + sum(map(_seconds, forking))
    spent = [row["measured"]["cpu_seconds"] for row in rows]
    return {
        "wall": wall,
        "cells": sum(spent),
        "dispatch": after - before,
        "balance": _balance(spent, workers),
    }


def _seconds(process: ForkingProcess) -> float:
    """CPU seconds of a process itself, without those of its cells."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _balance(spent: list[float], workers: int) -> float:
    """All CPU time by that of the busiest worker, if each takes the next cell when it
    is free.
    """
    busy = [0.0] * workers
    for seconds in spent:
        busy[busy.index(min(busy))] += seconds
    return sum(busy) / max(busy) if max(busy) else 1.0


if __name__ == "__main__":
    main()

"""What it costs to run lowered networks on this host: `evaluate` of delegraph-tosa,
eager PyTorch, the reference model.

    python benchmarks/evaluating.py [MODEL ...] [--repeats 5]

Images of 224 x 224 pixels, one at a time. CPU milliseconds on one thread, medians of
interleaved runs in one process; OMP_NUM_THREADS is set to 1 before numpy is loaded. The
reference model, of the package tosa-tools, runs once. Against eager: the largest
difference over the largest value.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

from collections.abc import Callable
from statistics import median
from typing import Any

import delegraph
import measuring
import numpy as np
import publishing
import torch
import tosa_reference_model
from delegraph_tosa.evaluate import evaluate
from delegraph_tosa.serialize import read
from delegraph_tosa.tools import figures


def main() -> None:
    """Measure each model and print a table."""
    parser = publishing.parser(__doc__)
    parser.add_argument("models", nargs="*", default=list(measuring.MODELS))
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    header = (
        "model",
        "multiply-accumulates",
        "evaluate, ms",
        "eager, ms",
        "reference model, ms",
        "against eager",
    )
    table = publishing.Table(
        header, [_row(name, arguments.repeats) for name in arguments.models]
    )
    publishing.report(
        arguments,
        "evaluating",
        ["torch", "numpy", "delegraph-tosa", "tosa-tools"],
        table,
    )


def _row(name: str, repeats: int) -> list[str]:
    module, inputs = measuring.model(name)
    file = (
        delegraph.lower(module, inputs, backends=["tosa"], require_full=True)
        .delegates[0]
        .processed_bytes
    )
    graph = read(file)
    arrays = [x.numpy() for x in inputs]
    steps: list[Callable[[], Any]] = [
        lambda: evaluate(graph, arrays),
        lambda: _eager(module, inputs),
    ]
    ((ours,), wanted), _ = [[step() for step in steps] for _ in range(2)]
    runs = [[measuring.cpu_seconds(step)[1] for step in steps] for _ in range(repeats)]
    _, reference = measuring.cpu_seconds(
        lambda: tosa_reference_model.run(file, arrays, tosa_level="EIGHTK")
    )
    seconds = [*(median(run[k] for run in runs) for k in range(2)), reference]
    error = np.abs(ours - wanted).max() / np.abs(wanted).max()
    products = f"{figures(graph).multiply_accumulates / 1e6:.0f} million"
    return [name, products, *(f"{1e3 * s:.0f}" for s in seconds), f"{error:.1e}"]


def _eager(module: torch.nn.Module, inputs: tuple[Any, ...]) -> Any:
    with torch.no_grad():
        return module(*inputs).numpy()


if __name__ == "__main__":
    main()

"""Compiling for engines: how much of it is the engine's, and how much is delegraph's
own share.

    python benchmarks/compiling.py [openvino|xnnpack|iree ...] [--model NAME ...]
        [--repeats 3]

CPU seconds of `delegraph.lower` from an exported program of examples/, compilers that
are processes of their own included, on one thread, in a process that has compiled
another model; medians of so many processes. "in the engine" is what is spent in
OpenVINO's, ExecuTorch's and IREE's own functions, whoever calls them: OpenVINO's
frontend is also asked what it takes, and to drop its compiled model takes its time. All
the rest is ours, "in the tracer" that part of it which torch's tracer of decompositions
and its table of them take. The share is ours of the whole, in the same process.
"""

from __future__ import annotations

import logging
import os
import statistics
import warnings
from collections.abc import Callable

import delegraph
import latency
import measuring
import publishing
import torch

ENGINES = ("openvino", "xnnpack", "iree")
MODELS = ("MobileNetV2", "BERT-base")
HEADER = (
    "model",
    "engine",
    "lower, s",
    "in the engine",
    "ours",
    "in the tracer",
    "our share",
    "load",
)


def main() -> None:
    """Print the table."""
    parser = publishing.parser(__doc__)
    parser.add_argument("engines", nargs="*", metavar="ENGINE")
    parser.add_argument("--model", action="append", choices=list(measuring.MODELS))
    parser.add_argument("--repeats", type=int, default=3)
    arguments = measuring.parse(parser, _run_of)
    rows = []
    for name in arguments.model or MODELS:
        for engine in arguments.engines or ENGINES:
            runs = [
                measuring.once(__file__, engine, name) for _ in range(arguments.repeats)
            ]
            found = {
                key: statistics.median(run[key] for run in runs) for key in runs[0]
            }
            seconds = [
                f"{found[key]:.2f}" for key in ("all", "engine", "ours", "tracer")
            ]
            load = f"{os.getloadavg()[0] / (os.cpu_count() or 1):.1f}"
            rows.append(
                publishing.told([name, engine, *seconds, f"{found['share']:.1%}", load])
            )
    packages = ["torch", "openvino", "executorch", "iree-base-compiler", "delegraph"]
    publishing.report(
        arguments, "compiling", packages, publishing.Table(HEADER, rows, keys=2)
    )


def _run_of(engine: str, name: str) -> Callable[[], dict[str, float]]:
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    delegraph.lower(*measuring.model("throw-away"), backends=[engine])
    with torch.no_grad():
        program = torch.export.export(*measuring.model(name))

    def run() -> dict[str, float]:
        spent = {"engine": 0.0, "tracer": 0.0}
        with latency.watched(spent, engine):
            _, total = measuring.cpu_seconds(
                lambda: delegraph.lower(program, backends=[engine])
            )
        ours = total - spent["engine"]
        return {"all": total, "ours": ours, "share": ours / total, **spent}

    return run


if __name__ == "__main__":
    main()

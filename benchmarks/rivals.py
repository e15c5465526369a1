"""Lowering to TOSA: delegraph against ExecuTorch, taking turns.

    python benchmarks/rivals.py --rival-python OTHER/bin/python [MobileNetV2] [--repeats
        5]

ExecuTorch pins other versions of its dependencies, so it needs an environment of its
own: a virtual environment with `pip install executorch==1.5.1 torchao==0.18.0
torch==2.13.0`, whose interpreter is given with --rival-python or in
DELEGRAPH_RIVAL_PYTHON. Measured there: `to_edge_transform_and_lower(program,
partitioner=[TOSAPartitioner(...)])`, and here: `delegraph.lower(program)`, alone and
with its blob joined to bytes, as ExecuTorch's is at once (delegraph streams it to the
file). Both for TOSA-1.0+FP, from an exported program, CPU seconds on one thread, after
imports and a throw-away model. Cold is the first lowering of a process, with its
imports but after the export. "left to the host" are the calls that ExecuTorch leaves
there, and those that delegraph does.
"""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Iterable
from statistics import median
from typing import Any

import measuring
import publishing

SPEC = "TOSA-1.0+FP"
PACKAGES = ("executorch", "torchao", "torch")


def main() -> None:
    """Measure the models that are named, or MobileNetV2, and print a table."""
    parser = publishing.parser(__doc__)
    parser.add_argument(
        "models",
        nargs="*",
        metavar="MODEL",
        default=["MobileNetV2"],
        help=", ".join(measuring.MODELS),
    )
    parser.add_argument(
        "--rival-python", default=os.environ.get("DELEGRAPH_RIVAL_PYTHON")
    )
    parser.add_argument("--repeats", type=int, default=5)
    arguments = measuring.parse(parser, lambda kind, name: WORKERS[kind](name))
    if not arguments.rival_python:
        parser.error(
            "--rival-python names the interpreter of an environment with executorch"
        )
    versions = (
        "import importlib.metadata as m, sys; print(*(f'{p} {m.version(p)}' for p in"
        " sys.argv[1:]), sep=', ')"
    )
    command = [arguments.rival_python, "-c", versions, *PACKAGES]
    rival = subprocess.run(
        command, check=True, capture_output=True, text=True
    ).stdout.strip()
    rows = [
        row
        for name in arguments.models
        for row in _rows(name, arguments.rival_python, arguments.repeats)
    ]
    packages = ["torch", "delegraph", "delegraph-tosa", f"the other side: {rival}"]
    publishing.report(arguments, "rivals", packages, publishing.Table(HEADER, rows))


HEADER = (
    *("model", "ExecuTorch, s", "of its export", "delegraph, s", "of export", "ratio"),
    *("with bytes joined, s", "ratio then"),
    "left to the host",
)


def _rows(name: str, rival_python: str, repeats: int) -> list[list[str]]:
    ours = measuring.Worker(__file__, "delegraph", name)
    theirs = measuring.Worker(__file__, "executorch", name, rival_python)
    pairs = [(theirs.run(), ours.run()) for _ in range(repeats)]
    ours.close()
    theirs.close()
    cold = (
        measuring.once(__file__, "executorch-cold", name, rival_python),
        measuring.once(__file__, "delegraph-cold", name),
    )
    return [_row(f"{name}, warm", pairs), _row(f"{name}, cold", [cold])]


def _row(
    label: str, pairs: list[tuple[dict[str, float], dict[str, float]]]
) -> list[str]:
    rivals, ours = zip(*pairs, strict=True)
    host = f"{_median(rivals, 'host'):.0f}, {_median(ours, 'host'):.0f}"
    rival = _median(rivals, "lower")
    rival_export = _median(rivals, "export")
    lower = _median(ours, "lower")
    joined = _median(ours, "joined")
    export = _median(ours, "export")
    return [
        label,
        *(f"{rival:.2f}", f"{rival / rival_export:.1f}"),
        *(f"{lower:.4f}", f"{lower / export:.3f}", f"{rival / lower:.0f}"),
        *(f"{joined:.4f}", f"{rival / joined:.0f}"),
        host,
    ]


def _median(runs: Iterable[dict[str, float]], phase: str) -> float:
    return median(run[phase] for run in runs)


def _delegraph(model: Any) -> dict[str, float]:
    import torch

    program, export = measuring.cpu_seconds(lambda: torch.export.export(*model))

    def lower() -> Any:
        import delegraph

        return delegraph.lower(
            program, backends=["tosa"], options={"tosa": {"spec": SPEC}}
        )

    lowered, seconds = measuring.cpu_seconds(lower)
    _, join = measuring.cpu_seconds(lambda: lowered.delegates[0].processed_bytes)
    return {
        "export": export,
        "lower": seconds,
        "joined": seconds + join,
        "host": lowered.host_operators,
    }


def _executorch(model: Any) -> dict[str, float]:
    import torch

    program, export = measuring.cpu_seconds(lambda: torch.export.export(*model))

    def lower() -> Any:
        from executorch.backends.arm.tosa.compile_spec import TosaCompileSpec  # type: ignore[import-not-found]
        from executorch.backends.arm.tosa.partitioner import TOSAPartitioner  # type: ignore[import-not-found]
        from executorch.exir import to_edge_transform_and_lower  # type: ignore[import-not-found]

        logging.disable(logging.WARNING)
        return to_edge_transform_and_lower(
            program, partitioner=[TOSAPartitioner(TosaCompileSpec(SPEC))]
        )

    manager, seconds = measuring.cpu_seconds(lower)
    return {
        "export": export,
        "lower": seconds,
        "host": _left(manager.exported_program()),
    }


def _left(program: Any) -> int:
    """How many calls the rival leaves to the host: one that takes less of a model has
    less to do.
    """
    calls = [
        n
        for n in program.graph.nodes
        if n.op == "call_function" and "getitem" not in n.name
    ]
    return sum(not n.name.startswith("executorch_call_delegate") for n in calls)


def _warm(measure: Any, name: str) -> measuring.Run:
    measure(measuring.model("throw-away"))
    model = measuring.model(name)
    return lambda: measure(model)  # type: ignore[no-any-return]


def _cold(measure: Any, name: str) -> measuring.Run:
    model = measuring.model(name)
    return lambda: measure(model)  # type: ignore[no-any-return]


WORKERS = {
    "delegraph": lambda name: _warm(_delegraph, name),
    "delegraph-cold": lambda name: _cold(_delegraph, name),
    "executorch": lambda name: _warm(_executorch, name),
    "executorch-cold": lambda name: _cold(_executorch, name),
}

if __name__ == "__main__":
    main()

"""Delegates of XNNPACK: how many delegraph makes of a model, and ExecuTorch; and how
long their files take in ExecuTorch's runtime.

    python benchmarks/delegates.py [MODEL ...] [--cells FILE]

The models are those of benchmarks/matrix.toml; real_models.py counts those of trained
networks. Both sides lower the same exported program: `delegraph.lower(program,
backends=["xnnpack"])`, and `to_edge_transform_and_lower` with `XnnpackPartitioner`.

A cell is one model on one side, or the times of both, in a process of its own that ends
after --seconds. Each is one line of --cells, and the command goes on with cells that the
file lacks. "time": the least time of a call of delegraph's file, divided by that of
ExecuTorch's. Both take turns in one process, on one thread.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import engines
import matrix_models
import publishing
import torch
from real_models import StockRuntime, time_ratio

HEADER = (
    "model",
    "delegates",
    "ExecuTorch's delegates",
    "on the host",
    "ExecuTorch's host",
    "time",
)


def main() -> None:
    """Run the cells that the file lacks, and print the table."""
    parser = publishing.parser(__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--cells", type=Path, default=Path("delegates.jsonl"))
    parser.add_argument("--seconds", type=float, default=60.0)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    models = matrix_models._all()
    known = engines._read(arguments.cells)
    engines._load("xnnpack")
    rows = []
    for name in arguments.models or models:
        for column, measure in MEASURES.items():
            if (name, column) not in known:
                cell = engines._in_own_process(
                    lambda n=name, m=measure: m(*_exported(models[n])),
                    arguments.seconds,
                )
                known[name, column] = cell
                with arguments.cells.open("a") as file:
                    file.write(json.dumps({"cell": [name, column], **cell}) + "\n")
                print(name, column, cell, file=sys.stderr, flush=True)
        rows.append(_row(name, *(known[name, column] for column in MEASURES)))
    table = publishing.Table(HEADER, rows, "delegates")
    packages = ["torch", "executorch", "delegraph-executorch"]
    publishing.report(arguments, "delegates", packages, table)


def _row(
    name: str, ours: dict[str, Any], theirs: dict[str, Any], times: dict[str, Any]
) -> list[str]:
    delegates = [str(side.get("delegates", "fails")) for side in (ours, theirs)]
    host = [str(side.get("host", "")) for side in (ours, theirs)]
    ratio = f"{times['ratio']:.2f}" if "ratio" in times else ""
    return [name, *delegates, *host, ratio]


def _exported(make: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the exported program of a model, and its inputs."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    module, args, kwargs = make()
    inputs = (*args, *kwargs.values())
    positional = engines._Positional(module.eval(), kwargs)
    with torch.no_grad():
        return torch.export.export(positional, inputs, strict=False), inputs


def _lower(program: Any) -> Any:
    import delegraph

    return delegraph.lower(program, backends=["xnnpack"])


def _lower_there(program: Any) -> Any:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
        XnnpackPartitioner,
    )
    from executorch.exir import to_edge_transform_and_lower

    return to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])


def _count(program: Any, inputs: tuple[Any, ...]) -> dict[str, Any]:
    """Return delegraph's numbers of delegates and of operators on the host."""
    lowered = _lower(program)
    return {"delegates": len(lowered.delegates), "host": lowered.report.host_operators}


def _count_there(program: Any, inputs: tuple[Any, ...]) -> dict[str, Any]:
    """Return ExecuTorch's numbers of delegates and of operators on the host."""
    nodes = _lower_there(program).exported_program().graph.nodes
    targets = [str(node.target) for node in nodes if node.op == "call_function"]
    delegates = sum("call_delegate" in target for target in targets)
    items = sum("getitem" in target for target in targets)
    return {"delegates": delegates, "host": len(targets) - delegates - items}


def _compare_times(program: Any, inputs: tuple[Any, ...]) -> dict[str, Any]:
    """Return the ratio of the times of both files."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.pte")
        _lower(program).save(path)
        ours = StockRuntime(path.read_bytes())
    theirs = StockRuntime(_lower_there(program).to_executorch().buffer)
    return {"ratio": time_ratio(ours, theirs, inputs)}


MEASURES = {"delegraph": _count, "executorch": _count_there, "time": _compare_times}

if __name__ == "__main__":
    main()

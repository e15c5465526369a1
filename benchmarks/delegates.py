"""Delegates of XNNPACK: how many delegraph makes of a model, and ExecuTorch.

    python benchmarks/delegates.py [MODEL ...] [--cells FILE]

The models are those of benchmarks/matrix.toml; real_models.py counts those of trained
networks. Both sides lower the same exported program: `delegraph.lower(program,
backends=["xnnpack"])`, and `to_edge_transform_and_lower` with `XnnpackPartitioner`.

A cell is one model on one side, in a process of its own that ends after --seconds. Each
is one line of --cells, and the command goes on with cells that the file lacks.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from pathlib import Path
from typing import Any

import engines
import matrix_models
import publishing
import torch

HEADER = (
    "model",
    "delegates",
    "ExecuTorch's delegates",
    "on the host",
    "ExecuTorch's host",
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
        for side in LOWERED:
            if (name, side) not in known:
                cell = engines._in_own_process(
                    lambda n=name, s=side: _measure(models[n], s), arguments.seconds
                )
                known[name, side] = cell
                with arguments.cells.open("a") as file:
                    file.write(json.dumps({"cell": [name, side], **cell}) + "\n")
                print(name, side, cell, file=sys.stderr, flush=True)
        rows.append(_row(name, *(known[name, side] for side in LOWERED)))
    table = publishing.Table(HEADER, rows, "delegates")
    packages = ["torch", "executorch", "delegraph-executorch"]
    publishing.report(arguments, "delegates", packages, table)


def _row(name: str, ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    delegates = [str(side.get("delegates", "fails")) for side in (ours, theirs)]
    host = [str(side.get("host", "")) for side in (ours, theirs)]
    return [name, *delegates, *host]


def _measure(make: Any, side: str) -> dict[str, Any]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    module, args, kwargs = make()
    positional = engines._Positional(module.eval(), kwargs)
    with torch.no_grad():
        program = torch.export.export(
            positional, (*args, *kwargs.values()), strict=False
        )
    delegates, host = LOWERED[side](program)
    return {"delegates": delegates, "host": host}


def _lower(program: Any) -> tuple[int, int]:
    """Return delegraph's numbers of delegates and of operators on the host."""
    import delegraph

    lowered = delegraph.lower(program, backends=["xnnpack"])
    return len(lowered.delegates), lowered.report.host_operators


def _lower_there(program: Any) -> tuple[int, int]:
    """Return ExecuTorch's numbers of delegates and of operators on the host."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
        XnnpackPartitioner,
    )
    from executorch.exir import to_edge_transform_and_lower

    edge = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
    nodes = edge.exported_program().graph.nodes
    targets = [str(node.target) for node in nodes if node.op == "call_function"]
    delegates = sum("call_delegate" in target for target in targets)
    items = sum("getitem" in target for target in targets)
    return delegates, len(targets) - delegates - items


LOWERED = {"delegraph": _lower, "executorch": _lower_there}

if __name__ == "__main__":
    main()

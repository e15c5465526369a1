"""Quantized networks for Ethos-U55-128 and U85-256, with float and with integer
borders: what Vela makes of them.

    nice -n 15 python benchmarks/ethosu_networks.py --journal FILE [NAME ...]

Each network is quantized with two random batches and lowered four times. The table says
how many operators are in delegates, how many partitions Vela refused after they were
made (none is wanted), and Vela's estimate of cycles. A run that was stopped goes on
where it was, by what is in FILE (JSON, a line for each lowering); ``--table`` only
prints that.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import delegraph
import publishing
import torch
import torch.nn.functional as F
from delegraph_tosa.borders import integer_borders
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))
from quantized import NETWORKS as LARGE

from plugins.tosa_backend.tests.support.quantized_networks import NETWORKS as MANY
from plugins.tosa_backend.tests.support.quantized_networks import network

ACCELERATORS = ("ethos-u55-128", "ethos-u85-256")


class _Of(nn.Module):
    """A function behind a convolution, and a convolution behind it."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.last = nn.Conv2d(8, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.function(self.first(x)))


FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "softmax": lambda x: torch.softmax(x, 1),
    "log softmax": lambda x: torch.log_softmax(x, 1),
    "GELU": F.gelu,
    "SiLU": F.silu,
    "hard swish": F.hardswish,
    "leaky ReLU": F.leaky_relu,
    "tanh gate": lambda x: torch.tanh(x) * torch.sigmoid(x),
    "maximum pool 3": lambda x: F.max_pool2d(x, 3, 2, 1),
    "maximum pool 4": lambda x: F.max_pool2d(x, 4),
    "average pool, padded": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "average pool, padding left out": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "global average": lambda x: x * x.mean((2, 3), keepdim=True),
    "global maximum": lambda x: x + x.amax((2, 3), keepdim=True),
    "nearest x2": lambda x: F.interpolate(x, scale_factor=2.0),
    "nearest x3": lambda x: F.interpolate(x, scale_factor=3.0),
    "bilinear x2": lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"),
    "pixel shuffle": lambda x: F.pixel_unshuffle(F.pixel_shuffle(torch.cat([x, x], 1), 2), 2)[:, :8],
    "flip": lambda x: x.flip(3) + x.flip(1),
    "where": lambda x: torch.where(x > 0, x, x * 0.1),
    "reflection": lambda x: F.pad(x, (1, 1, 1, 1), "reflect"),
    "attention": lambda x: F.scaled_dot_product_attention(*[x.flatten(2)] * 3).unflatten(2, (32, 32)),
    "layer norm": lambda x: F.layer_norm(x, (32, 32)),
}  # fmt: skip


def _built(name: str) -> tuple[nn.Module, list[Any]]:
    """A network and batches to calibrate it with."""
    if name in MANY:
        return network(name, 2)
    torch.manual_seed(0)
    if name in FUNCTIONS:
        return _Of(FUNCTIONS[name]).eval(), [
            (torch.randn(1, 3, 32, 32),) for _ in range(2)
        ]
    module, inputs = LARGE[name]()
    return module, [tuple(map(torch.randn_like, inputs)) for _ in range(2)]


def _row(program: Any, accelerator: str, integers: bool) -> dict[str, Any]:
    """What became of a program."""
    options = {"ethosu": {"accelerator": accelerator, "seconds": 300}}
    report = delegraph.lower(
        program,
        backends=["ethosu"],
        options=options,
        transforms=[integer_borders] if integers else [],
    ).report
    cycles = sum(
        int(delegate.figures.get("estimated cycles", 0))
        for delegate in report.delegates
    )
    return {
        "delegates": len(report.delegates),
        "delegated": report.delegated_operators,
        "host": report.host_operators,
        "refused": [row.reason for row in report.given_back],
        "kcycles": round(cycles / 1000, 1),
    }


def main() -> None:
    """Lower what the journal does not have, and print the table."""
    warnings.simplefilter("ignore")
    parser = publishing.parser(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--journal", type=Path, required=True, metavar="FILE")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    known = (
        [json.loads(line) for line in options.journal.read_text().splitlines()]
        if options.journal.exists()
        else []
    )
    done = {(row["name"], row["accelerator"], row["integers"]): row for row in known}
    for name in () if options.table else options.names or [*FUNCTIONS, *MANY, *LARGE]:
        wanted = [
            (name, a, i)
            for a in ACCELERATORS
            for i in (False, True)
            if (name, a, i) not in done
        ]
        program = None
        for key in wanted:
            row = dict(zip(("name", "accelerator", "integers"), key, strict=True))
            try:
                program = program or delegraph.quantize(*_built(name), backend="ethosu")
                row |= _row(program, *key[1:])
            except Exception as error:
                row["error"] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            done[key] = row
            with options.journal.open("a") as journal:
                journal.write(json.dumps(row) + "\n")
            print(json.dumps(row), file=sys.stderr, flush=True)
    _report(options, done)


def _report(
    options: argparse.Namespace, done: dict[tuple[str, str, bool], dict[str, Any]]
) -> None:
    heads = ("operators on the NPU", "refused by Vela", "kcycles")
    columns = (
        "network",
        "borders",
        *(f"{name}: {head}" for name in ("U55-128", "U85-256") for head in heads),
    )
    rows = []
    for name, integers in dict.fromkeys((key[0], key[2]) for key in done):
        row = [name, "integers" if integers else "floats"]
        for accelerator in ACCELERATORS:
            found = done.get((name, accelerator, integers))
            row += _cells(found) if found else ["", "", ""]
        rows.append(row)
    packages = ["torch", "torchao", "ethos-u-vela", "delegraph-ethosu"]
    publishing.report(
        options, "ethosu_networks", packages, publishing.Table(columns, rows, keys=2)
    )


def _cells(row: dict[str, Any]) -> list[str]:
    if "error" in row:
        return [row["error"][:60], "", ""]
    total = row["delegated"] + row["host"]
    return [
        f"{row['delegated']} of {total}",
        str(len(row["refused"])),
        str(row["kcycles"]),
    ]


if __name__ == "__main__":
    main()

"""One program file for several sizes of an image: what weights cost in it, and what
sharing them costs at lowering.

    python benchmarks/buckets.py [--sizes 96,160,224]

MobileNetV2 is lowered by `delegraph.lower_buckets`, for TOSA with the option
`named_constants` off and on, and for the host alone, and saved as a .pte file. "export"
and "compile" are the steps of the lowering, in seconds of one run.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import delegraph
import publishing
import torch

sys.path.append(str(Path(__file__).parents[1] / "examples"))
from mobilenet_v2 import mobilenet_v2

CASES = {
    "TOSA": {"backends": ["tosa"]},
    "TOSA, `named_constants`": {
        "backends": ["tosa"],
        "options": {"tosa": {"named_constants": True}},
    },
    "host": {"backends": []},
}


def main() -> None:
    """Print the table."""
    parser = publishing.parser(__doc__)
    parser.add_argument("--sizes", default="96,160,224")
    given = parser.parse_args()
    model, _ = mobilenet_v2()
    images = [
        torch.randn(1, 3, int(size), int(size)) for size in given.sizes.split(",")
    ]
    weights = sum(parameter.nbytes for parameter in model.parameters())
    rows = []
    for name, case in CASES.items():
        program = delegraph.lower_buckets(model, images, **case)
        seconds = program.report.seconds
        with tempfile.TemporaryDirectory() as folder:
            program.save(Path(folder, "sizes.pte"))
            size = Path(folder, "sizes.pte").stat().st_size
        rows.append(
            [
                name,
                f"{size:,}",
                f"{size / weights:.2f}",
                f"{seconds['export']:.2f}",
                f"{seconds['compile']:.2f}",
            ]
        )
    table = publishing.Table(
        ["for", "bytes", "of the weights", "export, s", "compile, s"], rows
    )
    publishing.report(given, "buckets", ["torch", "delegraph-tosa"], table)


if __name__ == "__main__":
    main()

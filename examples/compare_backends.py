"""Lower one model for every installed backend and show what each takes.

    python examples/compare_backends.py [examples/mobilenet_v2.py:mobilenet_v2]

The model is a path with a function that returns (module, example inputs); the file's code runs.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import delegraph
import torch
from delegraph.report.model import Report

DEFAULT = f"{Path(__file__).parent / 'mobilenet_v2.py'}:mobilenet_v2"


def main() -> None:
    """Print one row a backend: operators it takes, delegates, their size, why it left the others."""
    path, function = (sys.argv[1] if len(sys.argv) > 1 else DEFAULT).rsplit(":", 1)
    program = torch.export.export(*runpy.run_path(path)[function]())
    print(
        f"{'backend':10} {'taken':>6} {'left':>5} {'delegates':>9} {'bytes':>11}  most frequent reason for leaving one"
    )
    for backend in delegraph.backends():
        if backend.usable:
            print(row(backend.name, delegraph.lower(program, backends=[backend.name]).report))


def row(name: str, report: Report) -> str:
    """One line of the table."""
    size = sum(delegate.bytes for delegate in report.delegates)
    left = max(report.refusals, key=lambda refusal: refusal.count, default=None)
    reason = f"{left.count} x {left.operator}: {left.reason}" if left else ""
    figures = f"{report.delegated_operators:6} {report.host_operators:5} {len(report.delegates):9} {size:11,}"
    return f"{name:10} {figures}  {reason}".rstrip()


if __name__ == "__main__":
    main()

"""A comparison for a paper: a table of models and targets, and the speed of each target
relative to eager PyTorch.

    python examples/matrix_comparison.py STORE MATRIX.toml [--executor process:2 ...]
    python examples/matrix_comparison.py STORE models/*.py --backends tosa openvino
        --quantize float int8

All arguments after STORE are arguments of `delegraph matrix`. The tables are
STORE/table.md and STORE/table.csv. STORE/rows.jsonl has one line of JSON for each cell.
From these lines, this script computes one number for each target: the time of a call
in eager PyTorch divided by the time of a call of the lowered program. The number is the
geometric mean of all models that every target runs with values that agree.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def main(store: Path, *words: str) -> int:
    """Make the table, print the means, and return the exit code of the command."""
    store.mkdir(parents=True, exist_ok=True)
    reports = [
        word
        for name in ("table.md", "table.csv")
        for word in ("--report", str(store / name))
    ]
    command = [
        sys.executable,
        "-m",
        "delegraph",
        "matrix",
        *words,
        "--store",
        str(store),
        "--exit-zero",
        *reports,
    ]
    code = subprocess.run(command).returncode
    if code == 0:
        rows = [
            json.loads(line)
            for line in (store / "rows.jsonl").read_text().splitlines()
            if line
        ]
        for line in speeds(rows):
            print(line)
    return code


def speeds(rows: Iterable[dict[str, Any]]) -> Iterable[str]:
    """Yield a line for each target and type."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        timed = row["measured"].get("latency")
        target = found.setdefault((row["target"], row["quantize"]), {})
        if (
            timed
            and row["error"] is None
            and all(figures["agrees"] for figures in row["methods"].values())
        ):
            eager = row["measured"]["eager"]["seconds"]
            target[row["name"]] = statistics.median(eager) / statistics.median(
                timed["seconds"]
            )
    for kind in dict.fromkeys(kind for _, kind in found):
        own = {target: models for (target, of), models in found.items() if of == kind}
        common = set.intersection(*map(set, own.values()))
        for target, models in own.items() if common else ():
            mean = math.exp(statistics.fmean(math.log(models[name]) for name in common))
            yield (
                f"{target}, {kind}: {mean:.2f} times as fast as eager, geometric mean"
                f" of {len(common)} models"
            )


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))

"""What of `transformers`' models TOSA takes: small configurations with random weights, int64 tokens and masks.

    pip install transformers
    python benchmarks/whole_models.py [NAME ...]

The models are those of plugins/tosa_backend/tests/models/test_transformers.py, which also asks the reference tools.
Calls are operators of the exported program; "on the host" are those that no delegate has, "operators" and "TRANSPOSE"
those of the TOSA files; the error is that of the lowered program, relative to the largest output.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import delegraph
import measuring
import torch
from delegraph_tosa.serialize import read

sys.path.insert(0, str(Path(__file__).parents[1] / "plugins" / "tosa_backend"))
warnings.simplefilter("ignore")
COLUMNS = ("model", "calls", "target", "delegates", "on the host", "operators", "TRANSPOSE", "error")


def main() -> None:
    """Print the table."""
    import transformers
    from tests.models.test_transformers import MODELS, exported

    transformers.logging.set_verbosity_error()
    table = []
    for name in sys.argv[1:] or MODELS:
        program, inputs = exported(name, transformers)
        table += [[name, *row] for row in _rows(program, inputs)]
    command = " ".join(["python benchmarks/whole_models.py", *sys.argv[1:]])
    print(measuring.heading(command, ["torch", "transformers", "delegraph-tosa"]))
    print(measuring.table(COLUMNS, table))


def _rows(program: Any, inputs: dict[str, torch.Tensor]) -> Iterator[list[str]]:
    calls = sum(node.op == "call_function" for node in program.graph.nodes)
    for target in ("TOSA-1.0+FP+INT", "TOSA-1.0+FP"):
        lowered = delegraph.lower(program, backends=["tosa"], options={"tosa": {"spec": target}})
        names = Counter(op.name for d in lowered.delegates for op in read(d.processed_bytes).operators)
        left = Counter(r.operator.removeprefix("aten.") for r in lowered.report.refusals)
        host = ", ".join(f"{count} {name}" for name, count in left.most_common(3)) + (", .." if len(left) > 3 else "")
        error = lowered.verify(**inputs).relative_error
        counts = (len(lowered.delegates), host, sum(names.values()), names["TRANSPOSE"])
        yield [str(entry) for entry in (calls, target.removeprefix("TOSA-1.0+"), *counts, f"{error:.0e}")]


if __name__ == "__main__":
    main()

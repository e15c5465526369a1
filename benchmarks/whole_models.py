"""What TOSA takes of whole models, small and with random weights, for FP+INT and for FP
alone.

    pip install transformers
    python benchmarks/whole_models.py [NAME ...]

The models are those of plugins/tosa_backend/tests/models, whose tests also ask the
reference tools: `transformers` with int64 tokens and masks, and networks on images and
sequences. Calls are operators of the exported program; "on the host" are those that no
delegate has, "operators" and "TRANSPOSE" those of the TOSA files; the error is that of
the lowered program, relative to the largest output.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import delegraph
import publishing
import torch
from delegraph_tosa.serialize import read

sys.path.insert(0, str(Path(__file__).parents[1] / "plugins" / "tosa_backend"))
warnings.simplefilter("ignore")
COLUMNS = (
    "model",
    "target",
    "calls",
    "delegates",
    "on the host",
    "operators",
    "TRANSPOSE",
    "error",
)


def main() -> None:
    """Print the table."""
    import transformers
    from tests.models import sequences, test_transformers, vision

    transformers.logging.set_verbosity_error()
    parser = publishing.parser(__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL")
    given = parser.parse_args()
    table = []
    for name in given.models or [
        *test_transformers.MODELS,
        *vision.MODELS,
        *sequences.MODELS,
    ]:
        if name in test_transformers.MODELS:
            program, inputs = test_transformers.exported(name, transformers)
            table += [[name, *row] for row in _rows(program, (), inputs)]
        else:
            model, args = (vision if name in vision.MODELS else sequences).built(name)
            table += [
                [name, *row]
                for row in _rows(torch.export.export(model, args), args, {})
            ]
    packages = ["torch", "transformers", "delegraph-tosa"]
    publishing.report(
        given, "whole_models", packages, publishing.Table(COLUMNS, table, keys=2)
    )


def _rows(
    program: Any, args: tuple[torch.Tensor, ...], kwargs: dict[str, torch.Tensor]
) -> Iterator[list[str]]:
    calls = sum(node.op == "call_function" for node in program.graph.nodes)
    for target in ("TOSA-1.0+FP+INT", "TOSA-1.0+FP"):
        lowered = delegraph.lower(
            program, backends=["tosa"], options={"tosa": {"spec": target}}
        )
        names = Counter(
            op.name
            for d in lowered.delegates
            for op in read(d.processed_bytes).operators
        )
        left = Counter(
            r.operator.removeprefix("aten.") for r in lowered.report.refusals
        )
        host = ", ".join(f"{count} {name}" for name, count in left.most_common(3)) + (
            ", .." if len(left) > 3 else ""
        )
        error = lowered.verify(*args, **kwargs).relative_error
        counts = (len(lowered.delegates), host, sum(names.values()), names["TRANSPOSE"])
        yield [
            str(entry)
            for entry in (
                target.removeprefix("TOSA-1.0+"),
                calls,
                *counts,
                f"{error:.0e}",
            )
        ]


if __name__ == "__main__":
    main()

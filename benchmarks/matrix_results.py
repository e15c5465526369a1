"""The rows of a matrix that are done, as the tables of RESULTS.md: by model, and what
stays on the host.

    python benchmarks/matrix_results.py STORE [--all] [--some] [--add] [--publish]

STORE is that of `delegraph matrix benchmarks/matrix.toml --store STORE`. Times are left
out, since cells run beside each other. A model of which a cell is missing has no row,
unless --all is given. With --some, models are added to those that are published; what
stays on the host is of all models together, so that a part of them has no table of it.
With --add, a store of other backends adds its columns to the rows that are published;
a store of backends that are published replaces the cells that it has.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import publishing
from delegraph_analysis.matrix import refusals, tables
from delegraph_analysis.matrix.store import Store

ENGINES = (
    "openvino",
    "iree-base-compiler",
    "executorch",
    "coreai-core",
    "onnxruntime",
)
KEYS = 2
"""Columns that name a row: the model and the type."""
MOST = 12
"""Lines of what stays on the host."""


def main() -> None:
    """Read the store and print the tables."""
    parser = publishing.parser(__doc__)
    parser.add_argument("store", type=Path, metavar="STORE")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--some", action="store_true")
    parser.add_argument("--add", action="store_true")
    given = parser.parse_args()
    rows = list(Store(given.store).rows())
    heads, body = tables.by_model(rows, times=False)
    found = Counter(row["name"] for row in rows)
    whole = max(found.values(), default=0)
    body = [line for line in body if given.all or found[line[0]] == whole]
    kept = [row for row in rows if given.all or found[row["name"]] == whole]
    left = [
        [
            refusal.backend,
            refusal.operator,
            refusal.reason,
            str(refusal.count),
            refusal.some_models(),
        ]
        for refusal in refusals.refusals_of(kept)[:MOST]
    ]
    given.remark = (
        given.remark or f"{len(rows)} cells done, of which {len(kept)} are here"
    )
    columns = ("backend", "operator", "reason", "count", "models")
    if given.add:
        heads, body = _join_published(heads, body)
    by_model = publishing.Table(heads, body, "models", keys=2)
    refused = publishing.Table(columns, left, "left on the host", keys=3)
    listed = [by_model] if given.some or given.add else [by_model, refused]
    publishing.report(given, "matrix", ["torch", "delegraph-tosa", *ENGINES], *listed)


def _join_published(
    heads: Sequence[str], body: Sequence[Sequence[str]]
) -> tuple[list[str], list[list[str]]]:
    """Return the columns and rows that are published, with those of a store added."""
    published = json.loads((publishing.RESULTS / "matrix.json").read_text("utf-8"))
    table = published["tables"][0]
    added = {tuple(line[:KEYS]): list(line[KEYS:]) for line in body}
    new = list(heads[KEYS:])
    kept = [k for k, head in enumerate(table["columns"]) if head not in new]
    rows = []
    for _, *row in table["rows"]:
        before = dict(zip(table["columns"], row, strict=True))
        cells = added.get(tuple(row[:KEYS]), [before.get(head, "") for head in new])
        rows.append([*(row[k] for k in kept), *cells])
    return [*(table["columns"][k] for k in kept), *new], rows


if __name__ == "__main__":
    main()

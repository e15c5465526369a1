"""The rows of a matrix that are done, as the tables of RESULTS.md: by model, and what
stays on the host.

    python benchmarks/matrix_results.py STORE [--all] [--some] [--publish]

STORE is that of `delegraph matrix benchmarks/matrix.toml --store STORE`. Times are left
out, since cells run beside each other. A model of which a cell is missing has no row,
unless --all is given. With --some, models are added to those that are published; what
stays on the host is of all models together, so that a part of them has no table of it.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import publishing
from delegraph_analysis.matrix import refusals, tables
from delegraph_analysis.matrix.store import Store

ENGINES = ("openvino", "iree-base-compiler", "executorch", "coreai-core")
MOST = 12
"""Lines of what stays on the host."""


def main() -> None:
    """Read the store and print the tables."""
    parser = publishing.parser(__doc__)
    parser.add_argument("store", type=Path, metavar="STORE")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--some", action="store_true")
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
    by_model = publishing.Table(heads, body, "models", keys=2)
    refused = publishing.Table(columns, left, "left on the host", keys=3)
    listed = [by_model] if given.some else [by_model, refused]
    publishing.report(given, "matrix", ["torch", "delegraph-tosa", *ENGINES], *listed)


if __name__ == "__main__":
    main()

"""What a report's page weighs and how long it takes to open, in headless Chromium.

    DELEGRAPH_CHROMIUM=/path/to/chromium python benchmarks/pages.py

Programs for TOSA: one that it takes but for 700 operators in two stretches, one of
which it takes nine operators in ten, and the same in two branches side by side.
``page`` is `Report.to_html` after its rows were built, in CPU seconds; ``loaded`` is
the time until the browser's load event, and ``moved`` that of scaling the picture once,
each of wall time with whatever else the machine does.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import delegraph
import publishing
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "plugins" / "analysis"))
from tests.support.browser import MISSING, browser, executable

Rule = Callable[[int], bool]


class Chain(torch.nn.Module):
    """``size`` operators; the host computes those of which ``left`` says so."""

    def __init__(self, size: int, left: Rule, branches: int = 1) -> None:
        super().__init__()
        self.size = size
        self.left = left
        self.branches = branches

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ways = [x * k for k in range(self.branches)]
        for k in range(self.size // self.branches):
            ways = [
                torch.special.bessel_j0(way) if self.left(k) else torch.relu(way)
                for way in ways
            ]
        return sum(ways)


PROGRAMS = {
    "two stretches of the host": Chain(1600, lambda k: k < 500 or 900 <= k < 1100),
    "every tenth": Chain(1600, lambda k: k % 10 == 9),
    "every tenth, larger": Chain(20_000, lambda k: k % 10 == 9),
    "every tenth, in two branches": Chain(20_000, lambda k: k % 10 == 9, 2),
}


def main() -> None:
    """Print the table."""
    given = publishing.parser(__doc__).parse_args()
    path = executable()
    if path is None:
        sys.exit(MISSING)
    rows = []
    with tempfile.TemporaryDirectory() as folder, browser(path, Path(folder)) as tab:
        for name, module in PROGRAMS.items():
            program = torch.export.export(module, (torch.randn(4, 4),))
            report = delegraph.lower(program, backends=["tosa"]).report
            delegates = len(report.delegates)
            start = time.process_time()
            page = report.to_html()
            drawn = time.process_time() - start
            file = Path(folder) / "page.html"
            file.write_text(page, encoding="utf-8")
            start = time.perf_counter()
            tab.open(file)
            loaded = time.perf_counter() - start
            start = time.perf_counter()
            tab.evaluate("document.querySelector('.tools button').click()")
            tab.picture()
            moved = time.perf_counter() - start
            nodes = sum(n.op == "call_function" for n in program.graph.nodes)
            figures = [
                f"{drawn:.2f}",
                f"{len(page.encode()) / 1000:,.0f}",
                f"{loaded:.2f}",
                f"{moved:.2f}",
            ]
            rows.append(
                publishing.told([name, f"{nodes:,}", f"{delegates:,}", *figures])
            )
    table = publishing.Table(
        ("program", "nodes", "delegates", "page s", "kB", "loaded s", "moved s"), rows
    )
    publishing.report(given, "pages", ["torch"], table)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()

"""Compare two reports: ``delegraph diff``. Times vary between runs and are left out."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from delegraph.command import Outcome, expect_file
from delegraph.errors import FormatError

SCREENFUL = 20
"""The most printed lines: they fit a terminal of 24 lines."""


class Diff:
    """``delegraph diff``."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "before",
            type=Path,
            metavar="A.json",
            help="a file of --report, or the output of --json",
        )
        parser.add_argument("after", type=Path, metavar="B.json")
        parser.add_argument(
            "--all",
            action="store_true",
            help=f"print all changes, not only the first {SCREENFUL}",
        )

    @staticmethod
    def run(args: argparse.Namespace) -> Outcome:
        changes = sorted(
            compare(_read(args.before), _read(args.after)),
            key=Change.weight,
            reverse=True,
        )
        content = {
            "same": not changes,
            "changes": [change._asdict() for change in changes],
        }
        shown = changes
        if len(changes) > SCREENFUL and not args.all:
            shown = changes[: SCREENFUL - 1]
        lines = [str(change) for change in shown]
        if len(shown) < len(changes):
            lines.append(
                f"and {len(changes) - len(shown)} smaller changes: --all prints them,"
                " --json contains all"
            )
        return Outcome("delegraph.diff/1", content, "\n".join(lines) or "no changes")


_BY_WEIGHT = (
    "delegated operators",
    "host operators",
    "on the host",
    "kept from",
    "delegates of",
    "bytes of",
    "in ",
)
"""Beginnings of ``Change.what``, the most important first.

Changes in delegates come late, since they follow from changes of the host.
"""


class Change(NamedTuple):
    """A change of a figure, such as ``host operators`` or ``in tosa`` (``what``).

    ``name``: the operator, backend or reason that is counted; "" for a total. ``before``
    and ``after`` are None if the report lacks the figure.
    """

    method: str
    what: str
    name: str
    before: Any
    after: Any

    def weight(self) -> tuple[int, float]:
        """Return a key by which more important changes compare as greater.

        It has the rank of the figure, then the amount of the change.
        """
        rank = 0
        while not self.what.startswith(_BY_WEIGHT[rank]):
            rank += 1
        before = self.before or 0
        after = self.after or 0
        amount = abs(after - before)
        if self.what.startswith("bytes"):
            amount /= max(before, after)
        return -rank, amount

    def __str__(self) -> str:
        words = [f"{self.method}:", self.what, self.name]
        before = "-" if self.before is None else self.before
        after = "-" if self.after is None else self.after
        return f"{' '.join(filter(None, words))}  {before} -> {after}"


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Change]:
    """Yield the changes between two reports in the form of ``Report.to_json``."""
    for total in ("delegated_operators", "host_operators"):
        if before[total] != after[total]:
            yield Change(
                "all", total.replace("_", " "), "", before[total], after[total]
            )
    for method in dict.fromkeys([*before["host"], *after["host"]]):
        old = _facts(before, method)
        new = _facts(after, method)
        for key in dict.fromkeys([*old, *new]):
            if old.get(key) != new.get(key):
                yield Change(method, *key, old.get(key), new.get(key))


def _facts(report: Mapping[str, Any], method: str) -> dict[tuple[str, str], Any]:
    """Return (what, name) -> figure of a method: see ``Change``.

    Figures are sums over all delegates of a backend, since delegates of two reports
    have no common names.
    """
    facts: dict[tuple[str, str], Any] = {}
    delegates = [row for row in report["delegates"] if row["method"] == method]
    for backend, rows in _by_backend(delegates).items():
        operators: Counter[str] = Counter()
        for row in rows:
            operators.update(row["operators"])
        facts["delegates of", backend] = len(rows)
        facts["bytes of", backend] = sum(row["bytes"] for row in rows)
        for operator, count in operators.items():
            facts[f"in {backend}", operator] = count
    for operator, count in report["host"].get(method, {}).items():
        facts["on the host", operator] = count
    for cause in report["causes"]:
        if cause["method"] == method:
            key = (f"kept from {cause['backend']} because", cause["reason"])
            facts[key] = facts.get(key, 0) + cause["count"]
    return facts


def _by_backend(delegates: list[Any]) -> dict[str, list[Any]]:
    groups: dict[str, list[Any]] = {}
    for row in delegates:
        groups.setdefault(row["backend"], []).append(row)
    return groups


def _read(path: Path) -> Mapping[str, Any]:
    """Read a report, alone or in the output of ``delegraph lower --json``.

    Raises UsageError or FormatError.
    """
    expect_file(path)
    try:
        report: Mapping[str, Any] = json.loads(path.read_bytes())
        if report["schema"] != "delegraph.report/1":
            report = report["report"]
        if report["schema"] != "delegraph.report/1":
            raise ValueError(
                f"its schema is {report['schema']}, not delegraph.report/1"
            )
    except (ValueError, KeyError, TypeError) as e:
        raise FormatError(
            "format-invalid",
            f"{path} is no report: {type(e).__name__}: {e}",
            hint="write a report with delegraph lower --report FILE.json",
        ) from e
    return report

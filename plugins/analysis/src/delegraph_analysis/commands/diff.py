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
"""Lines of text, on a terminal of 24."""


class Diff:
    """``delegraph diff``."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "before",
            type=Path,
            metavar="A.json",
            help="what --report, or --json, wrote",
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
        shown = (
            changes
            if args.all or len(changes) <= SCREENFUL
            else changes[: SCREENFUL - 1]
        )
        lines = [str(change) for change in shown]
        if len(shown) < len(changes):
            lines.append(
                f"and {len(changes) - len(shown)} more of less weight: --all prints"
                " them, --json has all"
            )
        return Outcome("delegraph.diff/1", content, "\n".join(lines) or "nothing moved")


_BY_WEIGHT = (
    "delegated operators",
    "host operators",
    "on the host",
    "kept from",
    "delegates of",
    "bytes of",
    "in ",
)
"""Beginnings of changes, the most important first.

Changes in delegates come late, since they mirror changes of the host.
"""


class Change(NamedTuple):
    """A change of ``what``, such as "host", of ``name``, such as an operator.

    A value is None if its report lacks it.
    """

    method: str
    what: str
    name: str
    before: Any
    after: Any

    def weight(self) -> tuple[int, float]:
        """Return the importance: totals, host operators and reasons, delegates; then
        the amount.
        """
        kind = next(
            k for k, begins in enumerate(_BY_WEIGHT) if self.what.startswith(begins)
        )
        was, now = (value or 0 for value in (self.before, self.after))
        return -kind, abs(now - was) / (
            max(was, now) if self.what.startswith("bytes") else 1
        )

    def __str__(self) -> str:
        shown = [
            "-" if value is None else str(value) for value in (self.before, self.after)
        ]
        return (
            " ".join(filter(None, [f"{self.method}:", self.what, self.name]))
            + f"  {shown[0]} -> {shown[1]}"
        )


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Change]:
    """Yield the changes in the second of two reports, as ``Report.to_json`` returns
    them.
    """
    for total in ("delegated_operators", "host_operators"):
        if before[total] != after[total]:
            yield Change(
                "all", total.replace("_", " "), "", before[total], after[total]
            )
    for method in dict.fromkeys([*before["host"], *after["host"]]):
        sides = [_facts(report, method) for report in (before, after)]
        for key in dict.fromkeys(key for side in sides for key in side):
            was, now = (side.get(key) for side in sides)
            if was != now:
                yield Change(method, *key, was, now)


def _facts(report: Mapping[str, Any], method: str) -> dict[tuple[str, str], Any]:
    """Return the values of a method.

    Delegates are compared by operators, not by number.
    """
    facts: dict[tuple[str, str], Any] = {}
    delegates = [row for row in report["delegates"] if row["method"] == method]
    for backend, rows in _by_backend(delegates).items():
        operators: Counter[str] = Counter()
        for row in rows:
            operators.update(row["operators"])
        facts["delegates of", backend] = len(rows)
        facts["bytes of", backend] = sum(row["bytes"] for row in rows)
        facts.update({(f"in {backend}", op): n for op, n in operators.items()})
    facts.update(
        {("on the host", op): n for op, n in report["host"].get(method, {}).items()}
    )
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
        found = json.loads(path.read_bytes())
        report: Mapping[str, Any] = (
            found if found["schema"] == "delegraph.report/1" else found["report"]
        )
        if report["schema"] != "delegraph.report/1":
            raise ValueError(f"its schema is {report['schema']}")
    except (ValueError, KeyError, TypeError) as e:
        text = f"{path} is no report: {type(e).__name__}: {e}"
        raise FormatError(
            "format-invalid", text, hint="delegraph lower --report FILE.json writes one"
        ) from e
    return report

"""What a command hands back to ``main``, and what it shows meanwhile."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import DelegraphError


class UsageError(DelegraphError):
    """The command line asks for something that is not there or does not fit together."""


@dataclass(frozen=True)
class Outcome:
    """The result of a command: as JSON (``schema`` and ``content``), as text, and its exit code."""

    schema: str
    content: dict[str, Any]
    text: str
    code: int = 0


def as_json(outcome: Outcome) -> str:
    """One object whose first field is the schema. Infinity and NaN, which JSON lacks, are null."""
    content = {"schema": outcome.schema, **outcome.content}
    return json.dumps(_plain(content), indent=2, default=str, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value.__name__ if isinstance(value, type) else value


@contextlib.contextmanager
def progress(text: str) -> Iterator[None]:
    """Show what is going on, on a terminal only, and take it away again."""
    terminal = sys.stderr.isatty()
    if terminal:
        print(f"{text} ...", end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Left-aligned columns, two spaces apart."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))] if rows else []
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)

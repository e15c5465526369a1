"""Which methods of a program file are one model for several sizes: what the file holds
for it. Imports no torch.

The table is named data of the program under ``KEY``, as JSON: other readers of such
files do not see it.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

from delegraph.errors import FormatError
from delegraph.io.escape import printable

KEY = "delegraph.buckets"
SCHEMA = "delegraph.buckets/1"
LONGEST = 1 << 22
"""Bytes of JSON that are read."""
LEAF = "*"
_NO_NUMBERS = ("inf", "-inf", "nan")
"""What JSON has no numbers for."""


@dataclass(frozen=True)
class Row:
    """A method: its flat inputs (``{"dtype", "shape"}``, or ``{"value"}`` of what is no
    tensor), shapes of results.
    """

    method: str
    inputs: list[dict[str, Any]]
    results: list[list[int]]


@dataclass(frozen=True)
class BucketTable:
    """The methods, smallest first, what fills up smaller inputs (None: nothing), and
    the structure of the arguments.

    A structure is ``"*"`` for a leaf, ``{"tuple": [...]}``, ``{"list": [...]}`` or
    ``{"dict": [[key, ...], ...]}``.
    """

    padding: float | None
    structure: Any
    rows: list[Row]

    def __str__(self) -> str:
        padded = "" if self.padding is None else f", padded with {self.padding:g}"
        rule = (
            f"the smallest that holds its inputs{padded}"
            if padded
            else "the one of exactly its sizes"
        )
        return (
            f"sizes of one model: {', '.join(row.method for row in self.rows)}; a call"
            f" takes {rule}"
        )

    def to_json(self) -> dict[str, Any]:
        """For ``delegraph inspect --json``."""
        shapes = {
            row.method: [leaf.get("shape") for leaf in row.inputs] for row in self.rows
        }
        return {"padding": self._padding, "inputs": shapes}

    def to_bytes(self) -> bytes:
        """As the file holds it."""
        content = {"schema": SCHEMA, **asdict(self), "padding": self._padding}
        return json.dumps(content, separators=(",", ":"), allow_nan=False).encode()

    @property
    def _padding(self) -> float | str | None:
        return (
            self.padding
            if self.padding is None or math.isfinite(self.padding)
            else str(float(self.padding))
        )

    @classmethod
    def of_bytes(cls, content: bytes) -> BucketTable | None:
        """Read it; None if a later version wrote it. Raises FormatError for what this
        version did not write.
        """
        try:
            held: Any = json.loads(content) if len(content) <= LONGEST else None
            if held["schema"] != SCHEMA:
                return None
            padding = (
                float(held["padding"])
                if held["padding"] in _NO_NUMBERS
                else held["padding"]
            )
            table = cls(
                padding, held["structure"], [Row(**row) for row in held["rows"]]
            )
            table._check()
        except (
            ValueError,
            TypeError,
            KeyError,
            OverflowError,
            RecursionError,
        ) as error:
            raise damaged(type(error).__name__) from error
        return table

    def _check(self) -> None:
        if self.padding is not None and not isinstance(self.padding, (int, float)):
            raise damaged("the padding is no number")
        float(self.padding or 0)  # an integer may be too large for that
        if not self.rows or len({str(row.method) for row in self.rows}) < len(
            self.rows
        ):
            raise damaged("it has no methods, or one twice")
        for row in self.rows:
            shapes = [
                leaf["shape"]
                for leaf in row.inputs
                if isinstance(leaf, dict) and "shape" in leaf
            ]
            sizes = [
                size
                for shape in (*shapes, *row.results)
                for size in (shape if isinstance(shape, list) else [-1])
            ]
            if not isinstance(row.method, str) or not all(
                isinstance(leaf, dict) for leaf in row.inputs
            ):
                raise damaged("a method or an input is not described")
            if not all(type(size) is int and 0 <= size < 1 << 40 for size in sizes):
                raise damaged("a shape has no sizes")


def damaged(why: str) -> FormatError:
    """The error for a table that nobody wrote like this."""
    return FormatError(
        "format-invalid",
        f"damaged file: its table of sizes, {KEY}, cannot be read: {printable(why)}",
    )

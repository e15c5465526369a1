"""Store which methods of a program file are one model for several sizes.

The table is JSON in the program's named data under ``KEY``. Other readers ignore it.
Imports no torch.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

from delegraph.errors import FormatError
from delegraph.io.escape_for_terminal import printable

KEY = "delegraph.buckets"
SCHEMA = "delegraph.buckets/1"
LONGEST = 1 << 22
"""The most bytes of JSON that are read."""
LEAF = "*"
"""The structure of a single value."""
_NO_NUMBERS = ("inf", "-inf", "nan")
"""Numbers that JSON does not have."""


@dataclass(frozen=True)
class Row:
    """A method with its flat inputs and the shapes of its results.

    An input is ``{"dtype", "shape"}``, or ``{"value"}`` if it is no tensor.
    """

    method: str
    inputs: list[dict[str, Any]]
    results: list[list[int]]


@dataclass(frozen=True)
class BucketTable:
    """The methods, smallest first, with the padding and the structure of the arguments.

    ``padding`` fills up smaller inputs; None if they are refused. ``structure`` is
    nested: ``{"tuple": [...]}``, ``{"list": [...]}``, ``{"dict": [[key, ...], ...]}``,
    and ``"*"`` for a single value.
    """

    padding: float | None
    structure: Any
    rows: list[Row]

    def __str__(self) -> str:
        methods = ", ".join(row.method for row in self.rows)
        if self.padding is None:
            rule = "the one of exactly its sizes"
        else:
            rule = f"the smallest that holds its inputs, padded with {self.padding:g}"
        return f"sizes of one model: {methods}; a call takes {rule}"

    def to_json(self) -> dict[str, Any]:
        """Return the form for ``delegraph inspect --json``."""
        shapes = {
            row.method: [leaf.get("shape") for leaf in row.inputs] for row in self.rows
        }
        return {"padding": self._padding, "inputs": shapes}

    def to_bytes(self) -> bytes:
        """Return the form for the file."""
        content = {"schema": SCHEMA, **asdict(self)}
        # JSON has no infinity and no NaN
        content["padding"] = self._padding
        return json.dumps(content, separators=(",", ":"), allow_nan=False).encode()

    @property
    def _padding(self) -> float | str | None:
        """Return the padding, as text if it is infinite or NaN."""
        if self.padding is None or math.isfinite(self.padding):
            return self.padding
        return str(float(self.padding))

    @classmethod
    def of_bytes(cls, content: bytes) -> BucketTable | None:
        """Read a table. Return None if it has another schema.

        Raises FormatError if the table is damaged.
        """
        if len(content) > LONGEST:
            raise damaged(f"it has {len(content)} bytes; at most {LONGEST} are read")
        try:
            read: Any = json.loads(content)
            if read["schema"] != SCHEMA:
                return None
            padding = read["padding"]
            if padding in _NO_NUMBERS:
                padding = float(padding)
            rows = [Row(**row) for row in read["rows"]]
            table = cls(padding, read["structure"], rows)
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
        """Raise FormatError unless all entries have the right types."""
        if self.padding is not None and not isinstance(self.padding, (int, float)):
            raise damaged("the padding is no number")
        if self.padding is not None:
            # raises OverflowError for an integer that is too large for a float
            float(self.padding)
        if not self.rows:
            raise damaged("it has no methods")
        if len({str(row.method) for row in self.rows}) < len(self.rows):
            raise damaged("it has a method twice")
        for row in self.rows:
            is_described = all(isinstance(leaf, dict) for leaf in row.inputs)
            if not isinstance(row.method, str) or not is_described:
                raise damaged("a method or an input is not described")
            shapes = [leaf["shape"] for leaf in row.inputs if "shape" in leaf]
            for shape in (*shapes, *row.results):
                if not isinstance(shape, list) or not all(map(_is_size, shape)):
                    raise damaged(f"{shape!r:.80} is no shape")


def _is_size(size: Any) -> bool:
    return type(size) is int and 0 <= size < 1 << 40


def damaged(why: str) -> FormatError:
    """Return the error for a damaged table of sizes."""
    return FormatError(
        "format-invalid",
        f"damaged file: its table of sizes, {KEY}, cannot be read: {printable(why)}",
    )

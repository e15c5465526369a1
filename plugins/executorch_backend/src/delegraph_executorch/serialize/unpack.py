"""Read the records of ``program`` from a flatbuffer of unknown origin.

Every offset, count and enumerated value is checked.
"""

from __future__ import annotations

import struct
from typing import Any

from delegraph.errors import FormatError
from delegraph_engines.flatbuffer import Table

from ..program.schema import (
    Either,
    Field,
    Kind,
    Numbers,
    Scalar,
    Sub,
    Tables,
    Text,
    fields_of,
)

_NUMPY_TYPES = {
    "b": "i1",
    "B": "u1",
    "?": "u1",
    "i": "<i4",
    "I": "<u4",
    "q": "<i8",
    "Q": "<u8",
    "d": "<f8",
}
"""``struct`` letter of a number -> its type in numpy, little-endian."""


class Unpacker:
    """Reads tables.

    A file may refer to a table several times. It is read once for each class, so a small
    hostile file cannot take much memory.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[type[Any], int], Any] = {}

    def table(self, cls: type[Any], table: Table) -> Any:
        """Return the table as an instance of its class.

        Raises FormatError for everything that the schema does not allow.
        """
        key = cls, table.position
        if key not in self._known:
            fields = [self._field(field, table) for field in fields_of(cls)]  # type: ignore[arg-type]
            self._known[key] = cls(*fields)
        return self._known[key]

    def _field(self, field: Field, table: Table) -> Any:
        """Return the value of a field."""
        kind = field.kind
        if isinstance(kind, Scalar):
            return _scalar(field, kind, table)
        if isinstance(kind, Either):
            return self._union(field, kind, table)
        return self._referred(field, kind, table)

    def _referred(self, field: Field, kind: Kind, table: Table) -> Any:
        """Return a value that the table refers to: a string, table or vector."""
        if isinstance(kind, Text):
            return table.string(field.id, field.name)
        if isinstance(kind, Sub):
            inner = table.table(field.id, field.name)
            return None if inner is None else self.table(kind.cls, inner)
        assert isinstance(kind, (Numbers, Tables))
        # Runtimes read a required vector without checking that it is present. A vector
        # that is absent has the offset 0.
        if not kind.optional and not table.scalar(field.id, "I"):
            raise table.damaged(f"{field.name} is missing")
        if isinstance(kind, Numbers):
            return _numbers(field, kind, table)
        return tuple(
            self.table(kind.cls, inner)
            for inner in table.each_table(field.id, field.name)
        )

    def _union(self, field: Field, kind: Either, table: Table) -> Any:
        """Return the table of a union; None if it is absent."""
        # The first field is the number of the member, counted from 1. The next field
        # refers to the table.
        number = table.scalar(field.id, "B")
        if number > len(kind.members):
            raise table.damaged(
                f"{field.name} is of kind {number}, which is not in the schema"
            )
        inner = table.table(field.id + 1, field.name)
        if number == 0 or inner is None:
            return None
        return self.table(kind.members[number - 1], inner)


def _scalar(field: Field, kind: Scalar, table: Table) -> Any:
    """Return a number; FormatError if it is none of an enumeration's values."""
    if kind.form == "d":
        # ``Table.scalar`` reads integers only: read the bits of the float as an integer
        default = struct.unpack("<q", struct.pack("<d", kind.default))[0]
        bits = table.scalar(field.id, "q", default)
        return struct.unpack("<d", struct.pack("<q", bits))[0]
    if kind.form == "?":
        return table.flag(field.id, kind.default)
    value = table.scalar(field.id, kind.form, kind.default)
    if kind.enum is not None and value not in kind.enum:
        raise table.damaged(f"{field.name} is {value}, which is not in the schema")
    return value


def _numbers(field: Field, kind: Numbers, table: Table) -> Any:
    """Return a vector of numbers as a tuple, or as bytes if it is ``raw``."""
    if kind.raw:
        return table.copied(field.id, field.name)
    listed = table.numbers(field.id, _NUMPY_TYPES[kind.form], field.name)
    if kind.form == "?":
        if any(v > 1 for v in listed):
            raise table.damaged(f"{field.name} has a bool other than 0 and 1")
        return tuple(map(bool, listed))
    return tuple(listed)


def damaged(file_kind: str, why: str) -> FormatError:
    """Return the error for a damaged file."""
    return FormatError("format-invalid", f"damaged {file_kind}: {why}")

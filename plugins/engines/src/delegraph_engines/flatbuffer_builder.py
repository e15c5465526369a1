"""Writes flatbuffers with the ``flatbuffers`` package.

Equal strings, vectors and tables are written once. Large constants do not belong into a
builder, which copies its buffer when that grows. Write them after the finished buffer:
give ``table_with_places`` a placeholder for their field, and overwrite it with their
offset later.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import flatbuffers
from flatbuffers import number_types

__all__ = ["Builder", "Field"]

_FLAGS = {
    "bool": number_types.BoolFlags,
    "int8": number_types.Int8Flags,
    "uint8": number_types.Uint8Flags,
    "int16": number_types.Int16Flags,
    "int32": number_types.Int32Flags,
    "uint32": number_types.Uint32Flags,
    "int64": number_types.Int64Flags,
    "uint64": number_types.Uint64Flags,
    "float64": number_types.Float64Flags,
}


class Field(NamedTuple):
    """One field of a table: its id in the schema, its kind and its value.

    ``kind`` is "offset" for the position of a string, vector or table, otherwise the
    type of a number: "bool", "int8", "uint8", "int16", "int32", "uint32", "int64",
    "uint64" or "float64".
    """

    id: int
    kind: str
    value: Any


class PlacedTable(NamedTuple):
    """The position of a table, and those of its fields by id."""

    position: int
    places: dict[int, int]


class Builder:
    """Builds a flatbuffer from its end.

    A table is added after everything that it refers to. Strings, vectors and tables are added once and have one position, a distance from
    the end of the buffer. Numbers that do not fit their type raise OverflowError.
    """

    def __init__(self) -> None:
        self._builder = flatbuffers.Builder()
        self._positions: dict[Hashable, int] = {}

    def finish(self, root: int, identifier: str) -> bytearray:
        """Return the buffer whose root table is at ``root``.

        ``identifier``: four characters that identify the kind of file.
        """
        self._builder.Finish(root, identifier.encode())
        return bytearray(self._builder.Output())

    def table(self, count: int, fields: Sequence[Field]) -> int:
        """Add a table; its schema has ``count`` fields.

        Leave out fields that have their default.
        """
        key = (
            "table",
            count,
            *[(field.id, field.kind, _exact(field.value)) for field in fields],
        )
        return self._share(key, lambda: self.table_with_places(count, fields).position)

    def table_with_places(self, count: int, fields: Sequence[Field]) -> PlacedTable:
        """Add a table whose fields may be overwritten in the finished buffer.

        It is not shared with equal tables.
        """
        places: dict[int, int] = {}
        self._builder.StartObject(count)
        for field in fields:
            self._write_value(field.kind, field.value)
            self._builder.Slot(field.id)
            places[field.id] = int(self._builder.Offset())
        return PlacedTable(int(self._builder.EndObject()), places)

    def string(self, text: str) -> int:
        """Add a string.

        A lone surrogate, which names of files may have, is written as its escape.
        """
        encoded = text.encode("utf-8", "backslashreplace")
        return self._share(
            ("string", encoded), lambda: int(self._builder.CreateString(encoded))
        )

    def strings(self, texts: Sequence[str]) -> int:
        """Add a vector of strings."""
        return self.vector("offset", [self.string(text) for text in texts])

    def vector(self, kind: str, items: Sequence[Any]) -> int:
        """Add a vector of numbers, or of references; ``kind`` is that of ``Field``.

        References are the positions of strings, vectors or tables in the buffer.
        """
        return self._share(
            ("vector", kind, *map(_exact, items)),
            lambda: self._write_vector(kind, items),
        )

    def byte_vector(self, data: bytes, alignment: int = 4) -> int:
        """Add a vector of bytes whose first one is aligned to ``alignment`` bytes."""
        return self._share(
            ("bytes", alignment, data), lambda: self._write_bytes(data, alignment)
        )

    def _write_vector(self, kind: str, items: Sequence[Any]) -> int:
        """Write a vector, and return its position. The buffer is written from its end."""
        width = 4 if kind == "offset" else _FLAGS[kind].bytewidth
        self._builder.StartVector(width, len(items), width)
        for item in reversed(items):
            self._write_value(kind, item)
        return int(self._builder.EndVector())

    def _write_bytes(self, data: bytes, alignment: int) -> int:
        """Write a vector of bytes, and return its position."""
        # CreateByteVector itself aligns to four bytes
        self._builder.Prep(alignment, len(data))
        return int(self._builder.CreateByteVector(data))

    def _write_value(self, kind: str, value: Any) -> None:
        """Write a number, or a reference to a position."""
        if kind == "offset":
            self._builder.PrependUOffsetTRelative(value)
            return
        try:
            self._builder.Prepend(_FLAGS[kind], value)
        except TypeError as e:  # of a number that does not fit
            raise OverflowError(
                f"{value!r} does not fit the FlatBuffers type {kind}"
            ) from e

    def _share(self, key: Hashable, add: Callable[[], int]) -> int:
        """Return the position of the object with this key; ``add`` writes a new one."""
        position = self._positions.get(key)
        if position is None:
            position = self._positions[key] = add()
        return position


def _exact(item: Any) -> Any:
    """Return an item as a part of a key.

    Floats become text: -0.0 differs from 0.0, and NaN equals itself.
    """
    return item.hex() if isinstance(item, float) else item

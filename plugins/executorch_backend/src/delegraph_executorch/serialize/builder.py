"""Build a flatbuffer from the records of ``program``, with ExecuTorch's header.

The bytes: offset of the root table, identifier, header, tables.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from delegraph_engines import flatbuffer_builder

from ..program.schema import (
    SCALARS,
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

ALIGNMENT = 16
"""The header is padded to a multiple of these bytes, the largest alignment in use."""
_IDENTIFIER_END = 8
_KINDS = {
    "b": "int8",
    "B": "uint8",
    "?": "bool",
    "i": "int32",
    "I": "uint32",
    "q": "int64",
    "Q": "uint64",
    "d": "float64",
}
"""``struct`` letter of a number -> its kind in ``flatbuffer_builder``."""
_WIDTHS = {"offset": 4} | {kind: SCALARS[letter] for letter, kind in _KINDS.items()}


class Builder:
    """Builds one buffer: ``add`` the root table, then ``finish``."""

    def __init__(self) -> None:
        self._builder = flatbuffer_builder.Builder()

    def finish(
        self, root: int, identifier: str, header: Callable[[int], bytes]
    ) -> bytes:
        """Return the buffer, with a header after the identifier.

        ``header`` returns the header for the size of the whole buffer. All of its
        results must have the same length.
        """
        buffer = self._builder.finish(root, identifier)
        header_size = len(header(0))
        header_size += -header_size % ALIGNMENT
        # The header moves the root table. Only the offset of this table counts from the
        # start of the buffer, so only this one changes.
        (root_offset,) = struct.unpack_from("<I", buffer)
        struct.pack_into("<I", buffer, 0, root_offset + header_size)
        size = len(buffer) + header_size
        padding = -size % ALIGNMENT
        padded_header = header(size + padding).ljust(header_size, b"\0")
        buffer[_IDENTIFIER_END:_IDENTIFIER_END] = padded_header
        return bytes(buffer) + bytes(padding)

    def add(self, table: Any) -> int:
        """Add a table and all its children; return its position."""
        stored: list[flatbuffer_builder.Field] = []
        field_count = 0
        for field in fields_of(type(table)):  # type: ignore[arg-type]
            # A union also uses the next id. For other fields, the builder accepts a
            # count that is too large by one.
            field_count = max(field_count, field.id + 2)
            stored += self._store(field, getattr(table, field.name))
        # the widest first, so that no field needs padding
        stored.sort(key=lambda field: _WIDTHS[field.kind], reverse=True)
        return self._builder.table(field_count, stored)

    def _store(self, field: Field, value: Any) -> list[flatbuffer_builder.Field]:
        """Add a value and return its fields in the table.

        There are none for a default value, and two for a union.
        """
        kind = field.kind
        if isinstance(kind, Scalar):
            form = "<" + kind.form
            # Compare bytes: -0.0 equals 0.0 in Python.
            if struct.pack(form, value) == struct.pack(form, kind.default):
                return []
            return [flatbuffer_builder.Field(field.id, _KINDS[kind.form], value)]
        if isinstance(kind, Either):
            if value is None:
                return []
            # 0 means that the union is absent
            number = kind.members.index(type(value)) + 1
            return [
                flatbuffer_builder.Field(field.id, "uint8", number),
                flatbuffer_builder.Field(field.id + 1, "offset", self.add(value)),
            ]
        position = self._add_referred(kind, value)
        if position is None:
            return []
        return [flatbuffer_builder.Field(field.id, "offset", position)]

    def _add_referred(self, kind: Kind, value: Any) -> int | None:
        """Add a value that a table refers to; return its position, or None if absent."""
        if isinstance(kind, Text):
            return self._builder.string(value) if value else None
        if isinstance(kind, Numbers):
            if kind.form == "B":
                return self._builder.byte_vector(bytes(value))
            return self._builder.vector(_KINDS[kind.form], value)
        if isinstance(kind, Sub):
            return None if value is None else self.add(value)
        assert isinstance(kind, Tables)
        if kind.optional and not value:
            return None
        return self._builder.vector("offset", [self.add(item) for item in value])

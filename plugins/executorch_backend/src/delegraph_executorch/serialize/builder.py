"""A flatbuffer from tables of ``program``, built from its end: what a table refers to is written before it.

A position is a distance from the buffer's end, which stays the same while the buffer grows at its front. Strings,
vectors and tables of equal content are written once, which is legal and keeps programs small.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from ..program.schema import SCALARS, Either, Field, Kind, Numbers, Scalar, Sub, Tables, Text, fields_of

ALIGNMENT = 16
"""The whole buffer is a multiple of this; nothing in it needs more."""
_ROOT_AND_IDENTIFIER = 8


class _Stored(NamedTuple):
    """The inline part of a field: its id in the schema, and bytes of a number or the position of what it refers to."""

    id: int
    width: int
    content: bytes | int


class Builder:
    """Builds one buffer: ``add`` the root table, then ``finish``."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self._shared: dict[object, int] = {}
        self._vtables: dict[bytes, int] = {}

    def finish(self, root: int, identifier: str, header: Callable[[int], bytes]) -> bytes:
        """The buffer, with ``header(its size)`` after the identifier; the length of the header may not depend on it."""
        front = _ROOT_AND_IDENTIFIER + len(header(0))
        total = self._size + front + -(self._size + front) % ALIGNMENT
        start = struct.pack("<I", total - root) + identifier.encode() + header(total)
        return start + bytes(total - self._size - front) + b"".join(reversed(self._parts))

    def add(self, table: Any) -> int:
        """Write a table with all that it refers to; its position."""
        stored: list[_Stored] = []
        for field in fields_of(type(table)):  # type: ignore[arg-type]
            stored += self._store(field, getattr(table, field.name))
        return self._share(("table", *stored), lambda: self._put_table(stored))

    def _store(self, field: Field, value: Any) -> list[_Stored]:
        """Nothing for a value that is the default: readers know it."""
        kind = field.kind
        if isinstance(kind, Scalar):
            packed = struct.pack("<" + kind.form, value)
            plain = packed == struct.pack("<" + kind.form, kind.default)  # tells -0.0 from 0.0
            return [] if plain else [_Stored(field.id, SCALARS[kind.form], packed)]
        if isinstance(kind, Either):
            if value is None:
                return []
            number = kind.members.index(type(value)) + 1
            return [_Stored(field.id, 1, bytes([number])), _Stored(field.id + 1, 4, self.add(value))]
        position = self._add_referred(kind, value)
        return [] if position is None else [_Stored(field.id, 4, position)]

    def _add_referred(self, kind: Kind, value: Any) -> int | None:
        if isinstance(kind, Text):
            return self._string(value) if value else None
        if isinstance(kind, Numbers):
            return self._numbers(kind.form, value)
        if isinstance(kind, Sub):
            return None if value is None else self.add(value)
        assert isinstance(kind, Tables)
        return None if kind.optional and not value else self._references([self.add(item) for item in value])

    def _string(self, text: str) -> int:
        data = text.encode(errors="backslashreplace")  # half a surrogate pair, as names of files may have
        return self._share(("string", data), lambda: self._prepend(struct.pack("<I", len(data)) + data + b"\0", 4))

    def _numbers(self, form: str, items: Any) -> int:
        packed = bytes(items) if form == "B" else struct.pack(f"<{len(items)}{form}", *items)
        width = SCALARS[form]

        def put() -> int:
            self._prepend(packed, max(width, 4))
            return self._prepend(struct.pack("<I", len(items)), 4)

        return self._share((width, packed), put)

    def _references(self, positions: list[int]) -> int:
        def put() -> int:
            start = self._size + 4 * len(positions) + -self._size % 4
            offsets = [start - 4 * k - position for k, position in enumerate(positions)]
            self._prepend(struct.pack(f"<{len(offsets)}I", *offsets), 4)
            return self._prepend(struct.pack("<I", len(offsets)), 4)

        return self._share(("references", *positions), put)

    def _put_table(self, stored: list[_Stored]) -> int:
        """Widest fields first, so that none needs padding; the vtable before the table, or where an equal one is."""
        placed, size = {}, 4
        if any(s.width == 8 for s in stored):
            size = 8  # four bytes of padding after the offset of the vtable
        for field in sorted(stored, key=lambda s: -s.width):
            placed[field.id] = size
            size += field.width
        count = max(placed, default=-1) + 1
        vtable = struct.pack(f"<{count + 2}H", 4 + 2 * count, size, *(placed.get(k, 0) for k in range(count)))
        alignment = max(4, *(s.width for s in stored)) if stored else 4
        position = self._size + size + -(self._size + size) % alignment
        known = self._vtables.get(vtable)
        table = bytearray(size)
        struct.pack_into("<i", table, 0, (position + len(vtable) if known is None else known) - position)
        for field in stored:
            start = placed[field.id]
            content = field.content
            inline = struct.pack("<I", position - start - content) if isinstance(content, int) else content
            table[start : start + field.width] = inline
        self._prepend(bytes(table), alignment)
        if known is None:
            self._vtables[vtable] = self._prepend(vtable, 2)
        return position

    def _prepend(self, data: bytes, alignment: int) -> int:
        """Put ``data`` at the front, its start aligned once the buffer is finished; its position."""
        padding = -(self._size + len(data)) % alignment
        self._parts += (bytes(padding), data) if padding else (data,)
        self._size += padding + len(data)
        return self._size

    def _share(self, key: object, put: Callable[[], int]) -> int:
        position = self._shared.get(key)
        if position is None:
            position = self._shared[key] = put()
        return position

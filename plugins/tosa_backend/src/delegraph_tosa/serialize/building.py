"""Writing flatbuffers: each string, list and table of equal content is written once.

The format is described at https://flatbuffers.dev/internals. A buffer grows at its front, so that what a table refers
to is there before it; a position is a distance from the end, which stays the same meanwhile. The bytes are those that
the ``Builder`` of the ``flatbuffers`` package makes, which needs two and a half times as long for them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple


class Field(NamedTuple):
    """One field of a table: its id, its kind and its value; a value equal to ``default`` is left out."""

    id: int
    kind: str
    """``offset`` (a finished string, vector or table) or a scalar: uint8, bool, int32, uint32, uint64."""
    value: int
    default: int = 0


_SCALARS = {"uint8": "B", "bool": "?", "int32": "i", "uint32": "I", "offset": "I", "uint64": "Q"}
_UINT32 = struct.Struct("<I")


class _Layout(NamedTuple):
    """How the fields of a table lie in its bytes: those of a file's tables lie in a few dozen ways.

    ``packer`` takes the distance to the vtable and the fields, last one first. ``ends``: how far in front of what was
    there before each field begins.
    """

    packer: struct.Struct
    ends: tuple[int, ...]
    is_offset: tuple[bool, ...]
    size: int
    alignment: int
    entries: tuple[int, ...]
    """Of the vtable: distance of each field from the start of the table, 0 of those that are not there."""

    @staticmethod
    def of(count: int, before: int, fields: Sequence[Field]) -> _Layout:
        """For ``before`` bytes that are there already, modulo 8."""
        size, codes, places, alignment = before, "", [0] * count, 4
        for number, kind, _, _ in fields:
            code = _SCALARS[kind]
            width = struct.calcsize(f"<{code}")
            padding = -size % width
            size += padding + width
            codes = f"{code}{padding}x{codes}"
            places[number] = size
            alignment = max(alignment, width)
        padding = -size % 4
        size += padding + 4
        while places and not places[-1]:
            places.pop()
        ends = tuple([places[field.id] - before for field in fields])
        entries = tuple([size - place if place else 0 for place in places])
        packer = struct.Struct(f"<i{padding}x{codes}")
        return _Layout(packer, ends, tuple([f.kind == "offset" for f in fields]), size - before, alignment, entries)


class SharingBuilder:
    """Builds tables bottom up. What is returned are positions for ``Field``; equal content gives the same position."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        """From the end of the buffer to its front."""
        self._size = 0
        self._alignment = 4
        self._shared: dict[object, int] = {}
        self._vtables: dict[tuple[int, ...], int] = {}
        self._layouts: dict[tuple[object, ...], _Layout] = {}

    def finish(self, root: int, identifier: str) -> bytearray:
        """The finished buffer; addresses of slots are its length minus what ``slot`` returned."""
        self._align(self._alignment, 8)
        self._prepend(identifier.encode())
        self._prepend(_UINT32.pack(self._size + 4 - root))
        return bytearray(b"".join(reversed(self._parts)))

    def table(self, count: int, fields: Sequence[Field]) -> int:
        """A table of ``count`` fields in the schema."""
        return self._table(count, [field for field in fields if field.value != field.default])[0]

    def shared_table(self, count: int, fields: Sequence[Field]) -> int:
        """A table that equal ones share."""
        key = ("table", count, *fields)
        found = self._shared.get(key)
        if found is None:
            found = self._shared[key] = self.table(count, fields)
        return found

    def table_with_slots(
        self, count: int, fields: Sequence[Field], slots: Sequence[int], wide: bool
    ) -> tuple[int, list[int]]:
        """(table, distances from the buffer's end) with fields that are filled in later: 4 bytes, or 8 if ``wide``."""
        empty = [Field(slot, "uint64" if wide else "uint32", 1) for slot in slots]
        table, ends = self._table(count, [*empty, *(field for field in fields if field.value != field.default)])
        return table, ends[: len(slots)]

    def _table(self, count: int, fields: Sequence[Field]) -> tuple[int, list[int]]:
        """(position, the positions of its fields): the fields, before them the distance to the vtable, and that."""
        start = self._size
        key = (count, start & 7, *[field[:2] for field in fields])
        layout = self._layouts.get(key)
        if layout is None:
            layout = self._layouts[key] = _Layout.of(count, start & 7, fields)
            self._alignment = max(self._alignment, layout.alignment)
        ends = [start + end for end in layout.ends]
        values = [
            end - field[2] if is_offset else field[2]
            for end, field, is_offset in zip(ends, fields, layout.is_offset, strict=True)
        ]
        size = self._size = start + layout.size
        entries = layout.entries
        vtable = self._vtables.get(entries)
        to_vtable = 4 + 2 * len(entries) if vtable is None else vtable - size
        self._parts.append(layout.packer.pack(to_vtable, *reversed(values)))
        if vtable is None:
            self._prepend(struct.pack(f"<{2 + len(entries)}H", 4 + 2 * len(entries), layout.size, *entries))
            self._vtables[entries] = self._size
        return size, ends

    def string(self, text: str) -> int:
        """Half a surrogate pair, which the name of a file may have and UTF-8 has not, is written as its escape."""
        found = self._shared.get(text)
        if found is None:
            encoded = text.encode("utf-8", "backslashreplace")
            self._align(4, len(encoded) + 1)
            found = self._shared[text] = self._prepend(_UINT32.pack(len(encoded)) + encoded + b"\0")
        return found

    def strings(self, texts: Sequence[str]) -> int:
        return self.offsets([self.string(text) for text in texts])

    def offsets(self, offsets: Sequence[int]) -> int:
        """A vector of finished tables or strings."""
        key = ("offsets", *offsets)
        found = self._shared.get(key)
        if found is None:
            self._align(4, 0)
            last = self._size + 4 * len(offsets)
            distances = [place - offset for place, offset in zip(range(last, self._size, -4), offsets, strict=True)]
            found = self._shared[key] = self._prepend(struct.pack(f"<I{len(offsets)}I", len(offsets), *distances))
        return found

    def int32s(self, numbers: Sequence[int]) -> int:
        key = ("int32s", *numbers)
        found = self._shared.get(key)
        if found is None:
            self._align(4, 0)
            found = self._shared[key] = self._prepend(struct.pack(f"<I{len(numbers)}i", len(numbers), *numbers))
        return found

    def raw(self, data: bytes) -> int:
        """A vector of bytes, 8-aligned as the schema asks."""
        found = self._shared.get(data)
        if found is None:
            self._align(4, len(data))
            self._align(8, len(data))
            found = self._shared[data] = self._prepend(_UINT32.pack(len(data)) + data)
        return found

    def _align(self, alignment: int, following: int) -> None:
        """Pad so that after ``following`` bytes more the size is a multiple of ``alignment``."""
        if alignment > self._alignment:
            self._alignment = alignment
        padding = -(self._size + following) % alignment
        if padding:
            self._prepend(bytes(padding))

    def _prepend(self, part: bytes) -> int:
        self._parts.append(part)
        self._size += len(part)
        return self._size

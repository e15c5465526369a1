"""Writing flatbuffers: each string, list and table of equal content is written once.

The format is described at https://flatbuffers.dev/internals. A buffer grows at its front, so that what a table refers
to is there before it; a position is a distance from the end, which stays the same meanwhile. The bytes are those that
the ``Builder`` of the ``flatbuffers`` package makes, which needs two and a half times as long for them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple


class Field(NamedTuple):
    """One field of a table: its id, its kind and its value; a value equal to ``default`` is left out."""

    id: int
    kind: str
    """``offset`` (a finished string, vector or table) or a scalar: uint8, bool, int32, uint32, uint64."""
    value: int
    default: int = 0


_SCALARS = {
    name: struct.Struct(form) for name, form in (("uint8", "<B"), ("bool", "<?"), ("int32", "<i"), ("uint64", "<Q"))
}
_UINT32 = struct.Struct("<I")
_SCALARS |= {"uint32": _UINT32, "offset": _UINT32}


class SharingBuilder:
    """Builds tables bottom up. What is returned are positions for ``Field``; equal content gives the same position."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        """From the end of the buffer to its front."""
        self._size = 0
        self._alignment = 4
        self._shared: dict[object, int] = {}
        self._vtables: dict[tuple[int, ...], int] = {}

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
        return self._share(("table", count, tuple(fields)), lambda: self.table(count, fields))

    def table_with_slots(
        self, count: int, fields: Sequence[Field], slots: Sequence[int], wide: bool
    ) -> tuple[int, list[int]]:
        """(table, distances from the buffer's end) with fields that are filled in later: 4 bytes, or 8 if ``wide``."""
        empty = [Field(slot, "uint64" if wide else "uint32", 1) for slot in slots]
        table, ends = self._table(count, [*empty, *(field for field in fields if field.value != field.default)])
        return table, ends[: len(slots)]

    def _table(self, count: int, fields: Sequence[Field]) -> tuple[int, list[int]]:
        """(position, the positions of its fields): the fields, before them the distance to the vtable, and that."""
        size = end = self._size
        parts, ends = self._parts, []
        places = [0] * count
        for number, kind, value, _ in fields:
            scalar = _SCALARS[kind]
            padding = -size % scalar.size
            size += padding + scalar.size
            parts.append(scalar.pack(size - value if kind == "offset" else value) + bytes(padding))
            places[number] = size
            ends.append(size)
            if scalar.size > self._alignment:
                self._alignment = scalar.size
        padding = -size % 4
        size += padding + 4
        while places and not places[-1]:
            places.pop()
        entries = tuple([size - place if place else 0 for place in places])
        vtable = self._vtables.get(entries)
        to_vtable = (size + 4 + 2 * len(entries) if vtable is None else vtable) - size
        parts.append(struct.pack("<i", to_vtable) + bytes(padding))
        self._size = size
        if vtable is None:
            self._prepend(struct.pack(f"<{2 + len(entries)}H", 4 + 2 * len(entries), size - end, *entries))
            self._vtables[entries] = self._size
        return size, ends

    def string(self, text: str) -> int:
        """Half a surrogate pair, which the name of a file may have and UTF-8 has not, is written as its escape."""
        return self._share(("string", text), lambda: self._string(text.encode("utf-8", "backslashreplace")))

    def _string(self, encoded: bytes) -> int:
        self._align(4, len(encoded) + 1)
        return self._prepend(_UINT32.pack(len(encoded)) + encoded + b"\0")

    def strings(self, texts: Sequence[str]) -> int:
        return self.offsets([self.string(text) for text in texts])

    def offsets(self, offsets: Sequence[int]) -> int:
        """A vector of finished tables or strings."""
        return self._share(("offsets", *offsets), lambda: self._offsets(offsets))

    def _offsets(self, offsets: Sequence[int]) -> int:
        self._align(4, 0)
        last = self._size + 4 * len(offsets)
        distances = [last - 4 * k - offset for k, offset in enumerate(offsets)]
        return self._prepend(struct.pack(f"<I{len(offsets)}I", len(offsets), *distances))

    def int32s(self, numbers: Sequence[int]) -> int:
        return self._share(("int32s", *numbers), lambda: self._int32s(numbers))

    def _int32s(self, numbers: Sequence[int]) -> int:
        self._align(4, 0)
        return self._prepend(struct.pack(f"<I{len(numbers)}i", len(numbers), *numbers))

    def raw(self, data: bytes) -> int:
        """A vector of bytes, 8-aligned as the schema asks."""
        return self._share(("bytes", data), lambda: self._raw(data))

    def _raw(self, data: bytes) -> int:
        self._align(4, len(data))
        self._align(8, len(data))
        return self._prepend(_UINT32.pack(len(data)) + data)

    def _align(self, alignment: int, following: int) -> None:
        """Pad so that after ``following`` bytes more the size is a multiple of ``alignment``."""
        self._alignment = max(self._alignment, alignment)
        padding = -(self._size + following) % alignment
        if padding:
            self._prepend(bytes(padding))

    def _prepend(self, part: bytes) -> int:
        self._parts.append(part)
        self._size += len(part)
        return self._size

    def _share(self, key: object, make: Callable[[], int]) -> int:
        offset = self._shared.get(key)
        if offset is None:
            offset = self._shared[key] = make()
        return offset

"""Writing flatbuffers: each string, list and table of equal content is written once.

The format is described at https://flatbuffers.dev/internals. A buffer grows at its front, so that what a table refers
to is there before it; a position is a distance from the end, which stays the same meanwhile. The bytes are those that
the ``Builder`` of the ``flatbuffers`` package makes, which needs two and a half times as long for them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from operator import sub
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


@cache
def _uint32s(count: int) -> struct.Struct:
    return struct.Struct(f"<{count}I")


class _Layout(NamedTuple):
    """How the fields of a table lie in its bytes.

    ``packer`` takes the distance to the vtable and the fields, last one first.
    """

    packer: struct.Struct
    places: tuple[tuple[int, bool], ...]
    """How far in front of what was there before each field begins, and whether it is an offset."""
    size: int
    alignment: int
    entries: tuple[int, ...]
    """Of the vtable: distance of each field from the start of the table, 0 of those that are not there."""

    @staticmethod
    def of(count: int, before: int, fields: Sequence[tuple[int, str]]) -> _Layout:
        """For ``before`` bytes that are there already, modulo 8."""
        size, codes, places, alignment = before, "", [0] * count, 4
        for number, kind in fields:
            code = _SCALARS[kind]
            width = struct.calcsize(f"<{code}")
            padding = -size % width
            size += padding + width
            codes = f"{code}{padding}x{codes}"
            places[number] = size
            alignment = max(alignment, width)
        padding = -size % 4
        size += padding + 4
        ends = tuple([(places[number] - before, kind == "offset") for number, kind in fields])
        while places and not places[-1]:
            places.pop()
        entries = tuple([size - place if place else 0 for place in places])
        packer = struct.Struct(f"<i{padding}x{codes}")
        return _Layout(packer, ends, size - before, alignment, entries)


class Form:
    """A kind of table: how many fields its schema has, and id and kind of those that are there, as they are written.

    The tables of a file have a few dozen forms: what follows from one is worked out once.
    """

    def __init__(self, count: int, fields: tuple[tuple[int, str], ...]) -> None:
        self.count, self.fields = count, fields
        self._layouts: dict[int, _Layout] = {}

    def layout(self, before: int) -> _Layout:
        """For ``before`` bytes that are there already, modulo 8."""
        found = self._layouts.get(before)
        if found is None:
            found = self._layouts[before] = _Layout.of(self.count, before, self.fields)
        return found


@cache
def form(count: int, *fields: tuple[int, str]) -> Form:
    """The form of tables that have these of ``count`` fields: (id, kind) of each."""
    return Form(count, fields)


class SharingBuilder:
    """Builds tables bottom up. What is returned are positions for ``Field``; equal content gives the same position."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        """From the end of the buffer to its front."""
        self._size = 0
        self._alignment = 4
        self._shared: dict[object, int] = {}
        self._vectors: dict[tuple[int, ...], int] = {}
        self._vtables: dict[tuple[int, ...], int] = {}

    def finish(self, root: int, identifier: str) -> bytearray:
        """The finished buffer; addresses of slots are its length minus what ``slot`` returned."""
        self._align(self._alignment, 8)
        self._prepend(identifier.encode())
        self._prepend(_UINT32.pack(self._size + 4 - root))
        return bytearray(b"".join(reversed(self._parts)))

    def table(self, count: int, fields: Sequence[Field]) -> int:
        """A table of ``count`` fields in the schema."""
        there = [field for field in fields if field.value != field.default]
        return self._table(form(count, *[field[:2] for field in there]), [field.value for field in there])

    def record(self, form: Form, values: Sequence[int]) -> int:
        """A table of this form; fields whose value is 0, which is their default, are left out."""
        return self._table(*_without_zeros(form, values)) if 0 in values else self._table(form, values)

    def shared_record(self, form: Form, values: Sequence[int]) -> int:
        """A table that equal ones share."""
        key = (form, *values)
        found = self._shared.get(key)
        if found is None:
            found = self._shared[key] = self.record(form, values)
        return found

    def record_with_slots(self, form: Form, slots: int, values: Sequence[int]) -> tuple[int, list[int]]:
        """A table whose first fields, so many as there are ``slots``, are filled in later, and what to fill in.

        That is (table, their distances from the buffer's end). ``values`` are those of the others, and not 0.
        """
        start = self._size
        table = self._table(form, [*[1] * slots, *values])
        return table, [start + end for end, _ in form.layout(start & 7).places[:slots]]

    def _table(self, form: Form, values: Sequence[int]) -> int:
        """The fields, before them the distance to the vtable, and that."""
        start = self._size
        layout = form.layout(start & 7)
        if layout.alignment > self._alignment:
            self._alignment = layout.alignment
        packed = [
            start + end - value if is_offset else value
            for (end, is_offset), value in zip(layout.places, values, strict=True)
        ]
        packed.reverse()
        size = self._size = start + layout.size
        entries = layout.entries
        vtable = self._vtables.get(entries)
        to_vtable = 4 + 2 * len(entries) if vtable is None else vtable - size
        self._parts.append(layout.packer.pack(to_vtable, *packed))
        if vtable is None:
            self._prepend(struct.pack(f"<{2 + len(entries)}H", 4 + 2 * len(entries), layout.size, *entries))
            self._vtables[entries] = self._size
        return size

    def string(self, text: str) -> int:
        """Half a surrogate pair, which the name of a file may have and UTF-8 has not, is written as its escape."""
        found = self._shared.get(text)
        if found is None:
            encoded = text.encode("utf-8", "backslashreplace")
            ending = bytes(1 + -(self._size + len(encoded) + 1) % 4)
            found = self._shared[text] = self._prepend(_UINT32.pack(len(encoded)) + encoded + ending)
        return found

    def strings(self, texts: Sequence[str]) -> int:
        return self.offsets([self.string(text) for text in texts])

    def offsets(self, offsets: Sequence[int]) -> int:
        """A vector of finished tables or strings."""
        key = tuple(offsets)
        found = self._vectors.get(key)
        if found is None:
            self._align(4, 0)
            count = len(key)
            distances = map(sub, range(self._size + 4 * count, self._size, -4), key)
            found = self._vectors[key] = self._prepend(_uint32s(count + 1).pack(count, *distances))
        return found

    def int32s(self, numbers: Sequence[int]) -> int:
        key = ("int32s", *numbers)
        found = self._shared.get(key)
        if found is None:
            self._align(4, 0)
            found = self._shared[key] = self._prepend(struct.pack(f"<I{len(numbers)}i", len(numbers), *numbers))
        return found

    def int16s(self, numbers: Sequence[int]) -> int:
        key = ("int16s", *numbers)
        found = self._shared.get(key)
        if found is None:
            self._align(4, 2 * len(numbers))
            found = self._shared[key] = self._prepend(struct.pack(f"<I{len(numbers)}h", len(numbers), *numbers))
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


def _without_zeros(given: Form, values: Sequence[int]) -> tuple[Form, list[int]]:
    there = [(field, value) for field, value in zip(given.fields, values, strict=True) if value]
    return form(given.count, *[field for field, _ in there]), [value for _, value in there]

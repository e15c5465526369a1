"""Reads flatbuffers from untrusted sources.

Every offset, size and count is checked before it is followed. The generated readers of the ``flatbuffers`` package trust their input; a damaged file
makes them read nonsense, loop or fail with arbitrary exceptions. Here any damage is a
FormatError, and no file makes the reader do more work than its own length allows. As
the format wants, unknown fields are ignored, and absent ones have their default.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from delegraph.errors import FormatError

__all__ = ["Buffer", "Table", "root"]

_SCALARS = {form: struct.Struct("<" + form) for form in "bBhHiIqQ?"}
_U16 = _SCALARS["H"]
_I32 = _SCALARS["i"]
_U32 = _SCALARS["I"]
_FIRST_FIELD = 4
"""Bytes of a vtable before its entries: its own length and the table's, 2 bytes each."""


def root(data: bytes | bytearray | memoryview, identifier: str, what: str) -> Table:
    """Return the root table of a flatbuffer. Raises FormatError for a damaged header.

    ``identifier`` is the four-character file identifier that the file must have;
    ``what`` names the file in errors.
    """
    buffer = Buffer(memoryview(data).cast("B"), what)
    # a flatbuffer begins with the offset of its root table (4 bytes), and the
    # identifier
    if buffer.size < 8:
        raise buffer.damaged(f"it has {buffer.size} bytes and no header")
    if bytes(buffer.data[4:8]) != identifier.encode():
        raise buffer.damaged(
            f"its identifier is {bytes(buffer.data[4:8])!r}, not"
            f" {identifier.encode()!r}"
        )
    return Table(buffer, buffer.follow(0, "root table"), "root table")


class Buffer:
    """The bytes of one file, and how many elements may still be read from them.

    Tables and vectors may be shared, so a small file can describe a structure of any
    size. Therefore each table and each vector element that is read is counted, and a
    file that needs more of them than it has bytes is refused. Strings and copied
    vectors are cached by position. All methods raise FormatError for a damaged file;
    its text names the place ``where``.
    """

    def __init__(self, data: memoryview, what: str) -> None:
        """``what`` names the file in errors, such as "TOSA file"."""
        self.data = data
        self.size = len(data)
        self.what = what
        self._allowance = self.size  # how many elements may still be read
        self._strings: dict[int, str] = {}  # by position
        self._copies: dict[int, bytes] = {}  # by position

    def damaged(self, why: str) -> FormatError:
        """Return the FormatError for this file; ``why`` is the reason."""
        return FormatError("format-invalid", f"damaged {self.what}: {why}")

    def spend(self, count: int, where: str) -> None:
        """Count ``count`` more elements as read.

        Raises FormatError if the total exceeds the file's size in bytes.
        """
        self._allowance -= count
        if self._allowance < 0:
            raise self.damaged(f"{where} makes its structure larger than the file")

    def read(self, form: struct.Struct, position: int, where: str) -> Any:
        """Return the number at ``position``; ``form`` is its type."""
        if not 0 <= position <= self.size - form.size:
            raise self.damaged(f"{where} lies outside of the file")
        return form.unpack_from(self.data, position)[0]

    def follow(self, position: int, where: str) -> int:
        """Return the position to which the offset at ``position`` leads.

        Offsets count forward from their own position, and are 4 bytes long themselves.
        """
        offset: int = self.read(_U32, position, where)
        if not 4 <= offset <= self.size - position:
            raise self.damaged(f"the offset of {where} leads outside of the file")
        return position + offset

    def vector(self, position: int, width: int, where: str) -> tuple[int, int]:
        """Return the position of a vector's first element, and the number of elements.

        Each element has ``width`` bytes. A vector begins at ``position`` with the number
        of its elements, in 4 bytes; the elements follow.
        """
        count: int = self.read(_U32, position, where)
        if count * width > self.size - position - 4:
            raise self.damaged(
                f"{where} has {count} elements and reaches beyond the end of the file"
            )
        return position + 4, count

    def string(self, position: int, where: str) -> str:
        """Return the UTF-8 string at ``position``."""
        if position not in self._strings:
            start, length = self.vector(position, 1, where)
            self.spend(length, where)
            try:
                self._strings[position] = str(
                    self.data[start : start + length], "utf-8"
                )
            except UnicodeDecodeError:
                raise self.damaged(f"{where} is not UTF-8") from None
        return self._strings[position]

    def copy(self, position: int, where: str) -> bytes:
        """Return a copy of the byte vector at ``position``.

        A second call returns the same object.
        """
        if position not in self._copies:
            start, length = self.vector(position, 1, where)
            self.spend(length, where)
            self._copies[position] = bytes(self.data[start : start + length])
        return self._copies[position]


class Table:
    """A table at a checked position.

    ``field``: the id of a field in the schema. ``name``: its name in errors. All methods raise FormatError for a damaged file. The table size that the vtable
    states is ignored: the Python writer lets tables of several sizes share a vtable,
    which states the size of the first.
    """

    __slots__ = ("_buffer", "_field_count", "_vtable", "position", "where")

    def __init__(self, buffer: Buffer, position: int, where: str) -> None:
        """Check the table at ``position`` and its vtable.

        ``where`` names the table in errors. A table begins with the distance back to its vtable (4 bytes). The vtable has
        its own length and the table's (2 bytes each), then for each field the distance
        from the table's beginning to the field's value (2 bytes).
        """
        buffer.spend(1, where)
        self._buffer = buffer
        self.position = position
        self.where = where
        self._vtable = position - buffer.read(_I32, position, where)
        length: int = buffer.read(_U16, self._vtable, f"the vtable of {where}")
        # the fields with an entry in the vtable; later fields of the schema are absent
        self._field_count = (length - _FIRST_FIELD) // 2
        if length < _FIRST_FIELD or length % 2 or self._vtable + length > buffer.size:
            raise self.damaged("its vtable has a wrong length")

    def damaged(self, why: str) -> FormatError:
        """Return the FormatError that names this table; ``why`` is the reason."""
        return self._buffer.damaged(f"{self.where}: {why}")

    def spend(self, count: int) -> None:
        """Count ``count`` more elements as read.

        Call it in a reader that builds more from this table than it reads. Raises FormatError if the total exceeds the file's size in bytes.
        """
        self._buffer.spend(count, self.where)

    def _value_position(self, field: int, width: int) -> int | None:
        """Return the position in the file of a field's value; None if it is absent.

        A field is absent if the vtable ends before its entry, or has 0 there. Raises
        FormatError if the ``width`` bytes of the value are not all in the file.
        """
        if field >= self._field_count:
            return None
        # the vtable has an entry of 2 bytes for each field: the distance from the
        # beginning of the table to the value
        entry = self._vtable + _FIRST_FIELD + 2 * field
        (offset,) = _U16.unpack_from(self._buffer.data, entry)
        if offset == 0:
            return None
        # the table itself begins with 4 bytes, the distance to its vtable
        if offset < 4 or self.position + offset + width > self._buffer.size:
            raise self.damaged(f"field {field} lies outside of the file")
        return int(self.position + offset)

    def scalar(self, field: int, form: str, default: int = 0) -> int:
        """Return a number, or ``default`` if the field is absent.

        ``form`` is the letter of the number's type in ``struct`` (b B h H i I q Q ?).
        """
        packed = _SCALARS[form]
        position = self._value_position(field, packed.size)
        if position is None:
            return default
        (number,) = packed.unpack_from(self._buffer.data, position)
        return int(number)

    def flag(self, field: int, default: bool = False) -> bool:
        """Return a bool, or ``default`` if the field is absent.

        Raises FormatError if it is stored as neither 0 nor 1.
        """
        value = self.scalar(field, "B", default)
        if value > 1:
            raise self.damaged(f"field {field} is {value}, not a bool")
        return bool(value)

    def _target(self, field: int, name: str) -> tuple[int, str] | None:
        """Return where a string, vector or table of a field begins; None without it.

        The result is the position in the file, and the name of the place for errors.
        The field's value is an offset of 4 bytes from the value to that position.
        """
        position = self._value_position(field, 4)
        if position is None:
            return None
        where = f"{self.where}, {name}"
        return self._buffer.follow(position, where), where

    def table(self, field: int, name: str) -> Table | None:
        """Return the table that a field refers to; None if the field is absent."""
        target = self._target(field, name)
        return target and Table(self._buffer, *target)

    def string(self, field: int, name: str) -> str:
        """Return a string; it is empty if the field is absent."""
        target = self._target(field, name)
        return self._buffer.string(*target) if target else ""

    def raw(self, field: int, name: str) -> memoryview:
        """Return a vector of bytes as a view of the file; empty if it is absent."""
        target = self._target(field, name)
        if target is None:
            return memoryview(b"")
        start, count = self._buffer.vector(target[0], 1, target[1])
        return self._buffer.data[start : start + count]

    def copied(self, field: int, name: str) -> bytes:
        """Return a vector of bytes as a copy; empty if the field is absent.

        All references to the vector share one copy.
        """
        target = self._target(field, name)
        return self._buffer.copy(*target) if target else b""

    def numbers(self, field: int, dtype: npt.DTypeLike, name: str) -> list[int]:
        """Return a vector of numbers of the numpy type ``dtype``; empty if absent."""
        target = self._target(field, name)
        if target is None:
            return []
        # flatbuffers are little-endian on all machines
        element = np.dtype(dtype).newbyteorder("<")
        start, count = self._buffer.vector(target[0], element.itemsize, target[1])
        self._buffer.spend(count, target[1])
        return list(np.frombuffer(self._buffer.data, element, count, start).tolist())

    def strings(self, field: int, name: str) -> list[str]:
        """Return a vector of strings; it is empty if the field is absent."""
        return [
            self._buffer.string(*element) for element in self._elements(field, name)
        ]

    def tables(self, field: int, name: str) -> list[Table]:
        """Return a vector of tables; it is empty if the field is absent."""
        return list(self.each_table(field, name))

    def each_table(self, field: int, name: str) -> Iterator[Table]:
        """Yield the tables of a vector one by one.

        Unlike in ``tables``, repeated references to one table take no memory.
        """
        return (
            Table(self._buffer, *element) for element in self._elements(field, name)
        )

    def _elements(self, field: int, name: str) -> Iterator[tuple[int, str]]:
        """Yield where each element of a vector of offsets leads to.

        Each result is a position, and the name of that place for errors. An absent
        field is an empty vector.
        """
        target = self._target(field, name)
        if target is None:
            return
        # an offset has 4 bytes
        start, count = self._buffer.vector(target[0], 4, target[1])
        self._buffer.spend(count, target[1])
        for i in range(count):
            label = f"{name} {i}"
            yield self._buffer.follow(start + 4 * i, label), label

    def extent(self, start: int, length: int, name: str) -> memoryview:
        """Return ``length`` bytes of the file from ``start`` on.

        Some formats keep data in the file, but outside of the flatbuffer.
        """
        if start < 0 or length < 0 or start + length > self._buffer.size:
            raise self.damaged(f"{name} reaches beyond the end of the file")
        return self._buffer.data[start : start + length]

"""The checked flatbuffer reader reads the files that the builder writes."""

from __future__ import annotations

import math
import struct

import pytest
from delegraph_engines.flatbuffer import Table, root
from delegraph_engines.flatbuffer_builder import Builder, Field

RANGES = {
    "bool": (0, 1),
    "int8": (-128, 127),
    "uint8": (0, 255),
    "int16": (-(1 << 15), (1 << 15) - 1),
    "int32": (-(1 << 31), (1 << 31) - 1),
    "uint32": (0, (1 << 32) - 1),
    "int64": (-(1 << 63), (1 << 63) - 1),
    "uint64": (0, (1 << 64) - 1),
}
"""Type -> its lowest and highest number."""
FORMAT_LETTERS = {
    "bool": "?",
    "int8": "b",
    "uint8": "B",
    "int16": "h",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "uint64": "Q",
}
"""Type -> its letter in ``struct`` formats."""


def read_one_table(builder: Builder, fields: list[Field]) -> Table:
    """Finish a file of one table with these fields, and return the read table."""
    table = builder.table(len(fields), fields)
    return root(builder.finish(table, "ACME"), "ACME", "file")


@pytest.mark.parametrize("end", ["lowest", "highest"])
@pytest.mark.parametrize("kind", RANGES)
def test_extreme_numbers_are_read_as_written(kind: str, end: str) -> None:
    lowest, highest = RANGES[kind]
    number = lowest if end == "lowest" else highest
    letter = FORMAT_LETTERS[kind]
    builder = Builder()
    vector = builder.vector(kind, [number, 0])

    table = read_one_table(
        builder, [Field(0, kind, number), Field(1, "offset", vector)]
    )

    assert table.scalar(0, letter, 99) == number
    assert table.numbers(1, letter, "numbers") == [number, 0]


def test_fields_that_are_not_written_have_their_default() -> None:
    builder = Builder()
    with_gap = builder.table(3, [Field(0, "int32", 5), Field(2, "int32", 6)])

    table = root(builder.finish(with_gap, "ACME"), "ACME", "file")

    assert [table.scalar(field, "i", 7) for field in range(3)] == [5, 7, 6]


@pytest.mark.parametrize("kind", RANGES)
def test_numbers_that_do_not_fit_are_refused(kind: str) -> None:
    lowest, highest = RANGES[kind]
    for number in (lowest - 1, highest + 1):
        message = f"{number} does not fit the FlatBuffers type {kind}"
        with pytest.raises(OverflowError, match=message):
            Builder().table(1, [Field(0, kind, number)])
        with pytest.raises(OverflowError, match=message):
            Builder().vector(kind, [0, number])


@pytest.mark.parametrize("number", [0.0, -0.0, math.nan, math.inf, 1e-300])
def test_floats_keep_their_bits(number: float) -> None:
    builder = Builder()
    vector = builder.vector("float64", [number])

    table = read_one_table(
        builder, [Field(0, "float64", number), Field(1, "offset", vector)]
    )

    # read as integers: NaN and minus zero are compared by their bits
    (bits,) = struct.unpack("<q", struct.pack("<d", number))
    assert table.scalar(0, "q", 99) == bits
    assert table.numbers(1, "<i8", "numbers") == [bits]


def test_floats_that_differ_only_in_bits_are_written_separately() -> None:
    """The builder shares equal content, and 0.0 equals -0.0."""
    builder = Builder()
    vectors = [builder.vector("float64", [number]) for number in (0.0, -0.0)]
    tables = [builder.table(1, [Field(0, "float64", number)]) for number in (0.0, -0.0)]

    assert vectors[0] != vectors[1]
    assert tables[0] != tables[1]


def test_equal_content_is_written_once() -> None:
    builder = Builder()
    strings = [builder.string(text) for text in ("a\u00e9", "b", "a\u00e9")]
    vectors = [builder.vector("int32", items) for items in ([1, 2], [1, 3], (1, 2))]
    blobs = [builder.byte_vector(data) for data in (b"x", b"y", b"x")]
    tables = [builder.table(1, [Field(0, "int32", number)]) for number in (1, 2, 1)]

    for first, other, first_again in (strings, vectors, blobs, tables):
        assert first_again == first
        assert other != first


def test_vectors_of_different_types_are_written_separately() -> None:
    builder = Builder()

    assert builder.vector("int64", [1, 2]) != builder.vector("int32", [1, 2])


def test_strings_are_read_as_written() -> None:
    builder = Builder()
    texts = builder.strings(["", "\u6f22\u00e9", "a" * 3000])

    table = read_one_table(builder, [Field(0, "offset", texts)])

    assert table.strings(0, "strings") == ["", "\u6f22\u00e9", "a" * 3000]


def test_lone_surrogates_are_written_as_escapes() -> None:
    """UTF-8 cannot encode them."""
    builder = Builder()
    texts = builder.strings(["\ud800"])

    table = read_one_table(builder, [Field(0, "offset", texts)])

    assert table.strings(0, "strings") == ["\\ud800"]


@pytest.mark.parametrize("length", [0, 1, 7, 16, 5000])
@pytest.mark.parametrize("alignment", [4, 8, 16])
def test_bytes_are_aligned(alignment: int, length: int) -> None:
    builder = Builder()
    builder.string("x" * length)  # content of any length before the vector
    vector = builder.byte_vector(bytes(length), alignment)
    table = builder.table(1, [Field(0, "offset", vector)])

    data = bytes(builder.finish(table, "ACME"))

    assert root(data, "ACME", "file").raw(0, "bytes") == bytes(length)
    # positions count from the end of the file; 4 bytes of length come first
    first_byte = len(data) - vector + 4
    assert first_byte % alignment == 0


def test_fields_can_be_overwritten_at_their_places() -> None:
    builder = Builder()
    fields = [Field(1, "uint32", 1), Field(0, "uint64", 1), Field(2, "int8", -5)]
    made = builder.table_with_places(3, fields)
    data = builder.finish(made.position, "ACME")

    struct.pack_into("<I", data, len(data) - made.places[1], 77)
    struct.pack_into("<Q", data, len(data) - made.places[0], 1 << 40)

    table = root(data, "ACME", "file")
    assert table.scalar(0, "Q") == 1 << 40
    assert table.scalar(1, "I") == 77
    assert table.scalar(2, "b") == -5


def test_tables_with_places_are_never_shared() -> None:
    builder = Builder()
    fields = [Field(0, "uint32", 1)]

    first = builder.table_with_places(1, fields)
    second = builder.table_with_places(1, fields)

    assert first.position != second.position

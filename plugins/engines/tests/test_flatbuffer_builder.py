"""Flatbuffers that are written are read by the checked reader."""

from __future__ import annotations

import math
import struct

import pytest
from delegraph_engines.flatbuffer import root
from delegraph_engines.flatbuffer_builder import Builder, Field

EXTREMES = {
    "bool": (0, 1),
    "int8": (-128, 127),
    "uint8": (0, 255),
    "int16": (-(1 << 15), (1 << 15) - 1),
    "int32": (-(1 << 31), (1 << 31) - 1),
    "uint32": (0, (1 << 32) - 1),
    "int64": (-(1 << 63), (1 << 63) - 1),
    "uint64": (0, (1 << 64) - 1),
}
LETTERS = {
    "bool": "?",
    "int8": "b",
    "uint8": "B",
    "int16": "h",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "uint64": "Q",
}


@pytest.mark.parametrize("kind", EXTREMES)
def test_extreme_numbers_are_read_as_written(kind: str) -> None:
    for number in EXTREMES[kind]:
        builder = Builder()
        fields = [
            Field(0, kind, number),
            Field(2, "offset", builder.vector(kind, [number, 0])),
        ]
        table = root(builder.finish(builder.table(3, fields), "ACME"), "ACME", "file")
        assert table.scalar(0, LETTERS[kind], 99) == number
        assert table.scalar(1, "i", 7) == 7  # absent
        assert table.numbers(2, LETTERS[kind], "numbers") == [number, 0]


@pytest.mark.parametrize("kind", EXTREMES)
def test_numbers_that_do_not_fit_are_refused(kind: str) -> None:
    lowest, highest = EXTREMES[kind]
    for number in (lowest - 1, highest + 1):
        with pytest.raises(
            OverflowError, match=f"{number} does not fit the FlatBuffers type {kind}"
        ):
            Builder().table(1, [Field(0, kind, number)])
        with pytest.raises(
            OverflowError, match=f"{number} does not fit the FlatBuffers type {kind}"
        ):
            Builder().vector(kind, [0, number])


def test_floats_keep_their_bits() -> None:
    numbers = [0.0, -0.0, math.nan, math.inf, 1e-300]
    builder = Builder()
    tables = [builder.table(1, [Field(0, "float64", number)]) for number in numbers]
    vectors = [
        builder.table(1, [Field(0, "offset", builder.vector("float64", [number]))])
        for number in numbers
    ]
    data = builder.finish(
        builder.table(
            1, [Field(0, "offset", builder.vector("offset", tables + vectors))]
        ),
        "ACME",
    )
    read = root(data, "ACME", "file").tables(0, "tables")
    bits = [struct.unpack("<q", struct.pack("<d", number))[0] for number in numbers]
    assert [table.scalar(0, "q", 99) for table in read[: len(numbers)]] == bits
    assert [table.numbers(0, "<i8", "numbers") for table in read[len(numbers) :]] == [
        [b] for b in bits
    ]


def test_equal_content_is_written_once() -> None:
    builder = Builder()
    texts = [builder.string(text) for text in ("a\u00e9", "b", "a\u00e9")]
    lists = [builder.vector("int32", items) for items in ([1, 2], [1, 3], (1, 2))]
    blobs = [builder.byte_vector(data) for data in (b"x", b"y", b"x")]
    tables = [builder.table(1, [Field(0, "int32", number)]) for number in (1, 2, 1)]
    for first, other, again in (texts, lists, blobs, tables):
        assert first == again != other
    assert builder.vector("int64", [1, 2]) not in lists


def test_strings_are_read_as_written() -> None:
    builder = Builder()
    made = builder.strings(["", "\u6f22\u00e9", "\ud800", "a" * 3000])
    table = root(
        builder.finish(builder.table(1, [Field(0, "offset", made)]), "ACME"),
        "ACME",
        "file",
    )
    assert table.strings(0, "strings") == ["", "\u6f22\u00e9", "\\ud800", "a" * 3000]


@pytest.mark.parametrize("alignment", [4, 8, 16])
def test_bytes_are_aligned(alignment: int) -> None:
    for length in (0, 1, 7, 16, 5000):
        builder = Builder()
        builder.string("x" * length)
        made = builder.byte_vector(bytes(length), alignment)
        data = bytes(
            builder.finish(builder.table(1, [Field(0, "offset", made)]), "ACME")
        )
        assert root(data, "ACME", "file").raw(0, "bytes") == bytes(length)
        # the length of the vector has four bytes
        assert (len(data) - made + 4) % alignment == 0


def test_places_can_be_overwritten() -> None:
    builder = Builder()
    fields = [Field(1, "uint32", 1), Field(0, "uint64", 1), Field(2, "int8", -5)]
    made = builder.table_with_places(3, fields)
    other = builder.table_with_places(3, fields)
    assert made.position != other.position
    data = builder.finish(made.position, "ACME")
    struct.pack_into("<I", data, len(data) - made.places[1], 77)
    struct.pack_into("<Q", data, len(data) - made.places[0], 1 << 40)
    table = root(data, "ACME", "file")
    assert [table.scalar(0, "Q"), table.scalar(1, "I"), table.scalar(2, "b")] == [
        1 << 40,
        77,
        -5,
    ]

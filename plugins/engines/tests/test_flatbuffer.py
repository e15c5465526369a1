"""Checked access to flatbuffers: what is well formed is read, everything else is one
FormatError.
"""

from __future__ import annotations

import random
import struct

import flatbuffers
import pytest
from delegraph.errors import FormatError
from delegraph_engines.flatbuffer import Table, root


def make_table_file(children: int = 2) -> bytearray:
    """number: int32 = -7, flag: bool, text, [int16], [byte], [table of one int32] (all
    references to one table).
    """
    b = flatbuffers.Builder(64)
    text = b.CreateString("näme")
    b.StartVector(2, 3, 2)
    for number in (3, -2, 1):
        b.PrependInt16(number)
    numbers = b.EndVector()
    raw = b.CreateByteVector(b"\1\2\3")
    b.StartObject(1)
    b.PrependInt32Slot(0, 41, 0)
    child = b.EndObject()
    b.StartVector(4, children, 4)
    for _ in range(children):
        b.PrependUOffsetTRelative(child)
    tables = b.EndVector()
    b.StartObject(9)
    b.PrependInt32Slot(0, -7, 0)
    b.PrependBoolSlot(1, True, False)
    for field, offset in ((2, text), (3, numbers), (4, raw), (5, tables)):
        b.PrependUOffsetTRelativeSlot(field, offset, 0)
    b.Finish(b.EndObject(), b"TEST")
    return bytearray(b.Output())


def read_all_fields(table: Table) -> list[object]:
    return [
        table.scalar(0, "i"),
        table.flag(1),
        table.string(2, "text"),
        table.numbers(3, "i2", "numbers"),
        bytes(table.raw(4, "raw")),
        [child.scalar(0, "i") for child in table.tables(5, "child")],
    ]


def test_reads_all_kinds_of_fields():
    assert read_all_fields(root(make_table_file(), "TEST", "test file")) == [
        -7,
        True,
        "näme",
        [1, -2, 3],
        b"\1\2\3",
        [41, 41],
    ]


def test_absent_fields_have_their_default():
    table = root(make_table_file(), "TEST", "test file")
    for field in (7, 8, 500):
        assert (
            table.scalar(field, "q", 5),
            table.flag(field),
            table.string(field, ""),
        ) == (5, False, "")
        assert table.numbers(field, "u4", "") == []
        assert table.tables(field, "") == []
        assert table.table(field, "") is None
        assert len(table.raw(field, "")) == 0


def test_bytes_are_views_of_the_file():
    data = make_table_file()
    view = root(data, "TEST", "test file").raw(4, "raw")
    data[data.index(b"\1\2\3")] = 9
    assert bytes(view) == b"\x09\2\3"


def test_errors_name_the_file_kind_and_the_field():
    data = make_table_file()
    data[data.index(b"n\xc3\xa4me") + 1] = 0xFF
    with pytest.raises(
        FormatError, match="damaged test file: root table, text is not UTF-8"
    ):
        root(data, "TEST", "test file").string(2, "text")


def test_sharing_cannot_make_a_small_file_large():
    vast = make_table_file(children=30_000)
    table = root(vast, "TEST", "test file")
    # 120 kB of offsets: work in proportion to the file
    assert len(table.tables(5, "child")) == 30_000
    with pytest.raises(FormatError, match="larger than the file"):
        for _ in range(10):
            table.tables(5, "child")


@pytest.mark.parametrize(
    "data",
    [b"", b"TEST", b"\0\0\0\0TEST", b"\x04\0\0\0TEST", b"\x08\0\0\0TESS\0\0\0\0"],
)
def test_damaged_headers_are_refused(data):
    with pytest.raises(FormatError, match="damaged test file"):
        root(data, "TEST", "test file")


def test_no_damage_is_anything_but_a_format_error():
    generator = random.Random(3)
    sound = make_table_file()
    refused = 0
    for case in range(4000):
        data = bytearray(sound)
        if case < len(sound) * 8:
            data[case // 8] ^= 1 << case % 8
        else:
            word = generator.choice(
                [
                    0,
                    2,
                    0x7FFFFFFF,
                    0xFFFFFFFF,
                    0xFFFFFFF0,
                    generator.randrange(len(data)),
                ]
            )
            struct.pack_into("<I", data, generator.randrange(len(data) - 3), word)
        try:
            read_all_fields(
                root(
                    data[
                        : generator.choice(
                            [len(data), len(data), generator.randrange(len(data))]
                        )
                    ],
                    "TEST",
                    "f",
                )
            )
        except FormatError:
            refused += 1
    assert refused > 2000

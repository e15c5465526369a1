"""The flatbuffer reader reads valid files and refuses damaged ones with FormatError."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

import flatbuffers
import pytest
from delegraph.errors import FormatError
from delegraph_engines.flatbuffer import Table, root

NUMBER, FLAG, TEXT, NUMBERS, RAW, CHILDREN = range(6)
"""The fields of the table that ``make_table_file`` writes."""
ABSENT_FIELD = 7


def make_table_file(children: int = 2) -> bytearray:
    """Return a file with a table of one field of each kind.

    Its last field is a list of ``children`` references to the same small table.
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
    b.PrependInt32Slot(NUMBER, -7, 0)
    b.PrependBoolSlot(FLAG, True, False)
    b.PrependUOffsetTRelativeSlot(TEXT, text, 0)
    b.PrependUOffsetTRelativeSlot(NUMBERS, numbers, 0)
    b.PrependUOffsetTRelativeSlot(RAW, raw, 0)
    b.PrependUOffsetTRelativeSlot(CHILDREN, tables, 0)
    b.Finish(b.EndObject(), b"TEST")
    return bytearray(b.Output())


def read_root(data: bytes | bytearray) -> Table:
    """Return the root table of a file of ``make_table_file``."""
    return root(data, "TEST", "test file")


def read_all_fields(table: Table) -> list[object]:
    return [
        table.scalar(NUMBER, "i"),
        table.flag(FLAG),
        table.string(TEXT, "text"),
        table.numbers(NUMBERS, "i2", "numbers"),
        bytes(table.raw(RAW, "raw")),
        [child.scalar(0, "i") for child in table.tables(CHILDREN, "child")],
    ]


def test_reads_all_kinds_of_fields():
    table = read_root(make_table_file())

    assert read_all_fields(table) == [
        -7,
        True,
        "näme",
        [1, -2, 3],
        b"\1\2\3",
        [41, 41],
    ]


@pytest.mark.parametrize("field", [ABSENT_FIELD, ABSENT_FIELD + 1, 500])
def test_absent_fields_have_their_default(field):
    table = read_root(make_table_file())

    assert table.scalar(field, "q", 5) == 5
    assert table.flag(field) is False
    assert table.string(field, "") == ""
    assert table.numbers(field, "u4", "") == []
    assert table.tables(field, "") == []
    assert table.table(field, "") is None
    assert len(table.raw(field, "")) == 0


def test_raw_bytes_share_the_memory_of_the_file():
    data = make_table_file()
    view = read_root(data).raw(RAW, "raw")

    data[data.index(b"\1\2\3")] = 9

    assert bytes(view) == b"\x09\2\3"


def test_errors_name_the_file_kind_and_the_field():
    data = make_table_file()
    second_letter = data.index("näme".encode()) + 1
    data[second_letter] = 0xFF

    message = "damaged test file: root table, text is not UTF-8"
    with pytest.raises(FormatError, match=message):
        read_root(data).string(TEXT, "text")


def test_reading_a_shared_table_again_and_again_is_refused():
    """A small forged file must not cause unlimited work."""
    table = read_root(make_table_file(children=30_000))

    # one pass is allowed: the file has 30,000 offsets of 4 bytes
    assert len(table.tables(CHILDREN, "child")) == 30_000
    with pytest.raises(FormatError, match="larger than the file"):
        for _ in range(10):
            table.tables(CHILDREN, "child")


@pytest.mark.parametrize(
    "data",
    [b"", b"TEST", b"\0\0\0\0TEST", b"\x04\0\0\0TEST", b"\x08\0\0\0TESS\0\0\0\0"],
    ids=["empty", "identifier only", "offset 0", "offset 4", "wrong identifier"],
)
def test_damaged_headers_are_refused(data):
    with pytest.raises(FormatError, match="damaged test file"):
        read_root(data)


def damaged_copies(sound: bytearray, count: int) -> Iterator[bytearray]:
    """Yield copies of a file: each with one flipped bit, then with one random word.

    A third of them is also cut at a random length.
    """
    generator = random.Random(3)
    for case in range(count):
        data = bytearray(sound)
        if case < len(sound) * 8:
            data[case // 8] ^= 1 << case % 8
        else:
            words = [0, 2, 0x7FFFFFFF, 0xFFFFFFFF, 0xFFFFFFF0]
            word = generator.choice([*words, generator.randrange(len(data))])
            position = generator.randrange(len(data) - 3)
            struct.pack_into("<I", data, position, word)
        if generator.randrange(3) == 0:
            del data[generator.randrange(len(data)) :]
        yield data


def test_reading_damaged_files_raises_only_format_errors():
    refused = 0
    for data in damaged_copies(make_table_file(), 4000):
        try:
            read_all_fields(read_root(data))
        except FormatError:
            refused += 1

    # the other files are readable, with other values
    assert refused > 2000

"""Segments of a file: where they lie, and those that lie in another one."""

from __future__ import annotations

import pytest
from delegraph_executorch.emit.pool import Concatenation, Pool
from delegraph_executorch.inspection.facts import bytes_covered
from delegraph_executorch.program.pte_tables import DataSegment, ExecutionPlan, Program
from delegraph_executorch.serialize.file import Part, Segment, program_file
from delegraph_executorch.serialize.reader import read_program

PROGRAM = Program(plans=(ExecutionPlan("forward"),))


def test_parts_refer_to_bytes_of_their_segment() -> None:
    first = bytes(range(100))
    file = program_file(
        PROGRAM,
        [Segment(b"x", 16), Segment(first, 16), Part(1, 32, 8), Segment(b"last", 16)],
    )
    content = file.join()
    read = read_program(content)
    assert [bytes(s) for s in read.segments] == [b"x", first, first[32:40], b"last"]
    assert len(file) == len(content)
    assert content.endswith(b"last")
    assert content.count(first) == 1
    assert read.program.segments[2].offset == read.program.segments[1].offset + 32


def test_segments_are_aligned_to_cache_lines_by_default() -> None:
    file = program_file(
        PROGRAM, [Segment(b"x", 1), Segment(b"y", 4), Segment(b"z"), Segment(b"w", 96)]
    )
    offsets = [segment.offset for segment in read_program(file.join()).program.segments]
    assert offsets == [0, 16, 128, 192]


def test_pools_find_and_align_equal_contents() -> None:
    pool = Pool(16)
    for content in (b"a" * 70, b"a" * 69 + b"b", b"c"):
        pool.add(content)
    assert pool.find(b"a" * 69 + b"b", 128) == 1
    assert pool.find(b"a" * 69 + b"d", 64) is None
    assert pool.find(b"c" * 2, 64) is None
    assert pool.alignments == [16, 128, 16]
    assert pool.add(b"e", 32) == 3
    assert pool.find(b"e", 1) == 3
    assert pool.alignments == [16, 128, 16, 32]
    assert Concatenation(pool.contents, pool.alignments).offsets == [0, 128, 208, 224]


@pytest.mark.parametrize(
    ("segments", "covered"),
    [
        ([], 0),
        ([(0, 10), (16, 4)], 14),
        ([(0, 10), (2, 4)], 10),
        ([(2, 4), (0, 3), (5, 3)], 8),
        ([(0, 5), (0, 5)], 5),
    ],
)
def test_bytes_that_lie_in_two_segments_count_once(
    segments: list[tuple[int, int]], covered: int
) -> None:
    assert bytes_covered([DataSegment(*segment) for segment in segments]) == covered

"""Damaged files: each is a graph or a FormatError, without a hang, and in memory that the file's size bounds."""

from __future__ import annotations

import random
import struct
import tracemalloc

import pytest
from delegraph.errors import FormatError
from delegraph_tosa.serialise import TosaFile, read
from delegraph_tosa.spec import TosaSpec
from samples import samples

MOST_TIMES = 60
"""Bytes of Python objects for each byte of a file, besides a constant."""
ALWAYS = 1 << 20
FILES = [
    TosaFile(sample.graph, TosaSpec(version)).join()
    for version in ((1, 0), (1, 1))
    for sample in list(samples(version=version))[::5]
]


def mutated(file: bytes, generator: random.Random) -> bytes:
    """The file with some words, bytes or a part of it changed."""
    data = bytearray(file)
    for _ in range(generator.randint(1, 3)):
        position = generator.randrange(len(data))
        kind = generator.choice((0, 0, 0, 1, 1, 2, 3))
        if kind == 0:
            data[position] ^= 1 << generator.randrange(8)
        elif kind == 1 and len(data) >= 8:
            numbers = [0, 1, 4, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, generator.getrandbits(32), len(data)]
            struct.pack_into("<I", data, position // 4 * 4 % (len(data) - 4), generator.choice(numbers))
        elif kind == 2:
            del data[position : position + generator.randint(1, 16)]
        else:
            data[position:position] = generator.randbytes(generator.randint(1, 16))
        if not data:
            break
    return bytes(data)


def outcomes(count: int, seed: int) -> tuple[int, int]:
    """(graphs, refusals) of so many damaged files."""
    generator = random.Random(seed)
    graphs = refusals = 0
    tracemalloc.start()
    try:
        for number in range(count):
            data = mutated(FILES[number % len(FILES)], generator)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            try:
                read(data)
                graphs += 1
            except FormatError:
                refusals += 1
            assert tracemalloc.get_traced_memory()[1] - before < ALWAYS + MOST_TIMES * len(data)
    finally:
        tracemalloc.stop()
    return graphs, refusals


def test_ten_thousand_damaged_files():
    graphs, refusals = outcomes(10_000, seed=1)
    assert graphs + refusals == 10_000
    assert graphs > 500


@pytest.mark.slow
def test_many_more():
    assert sum(outcomes(200_000, seed=2)) == 200_000

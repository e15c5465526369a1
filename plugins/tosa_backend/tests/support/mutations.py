"""Damaged TOSA files, and the memory that reading them may take."""

from __future__ import annotations

import random
import struct
import tracemalloc

from delegraph.errors import FormatError
from delegraph_tosa.serialize import read

MOST_TIMES = 32
"""Bytes of memory for each byte of a file, at the peak of reading it: legal files of
small operators take 10 to 17.
"""
ALWAYS = 1 << 13
"""Besides, for an error's text and the like: what a file of a few bytes takes."""


def mutate_file(file: bytes, generator: random.Random) -> bytes:
    """The file with some words, bytes or a part of it changed."""
    data = bytearray(file)
    for _ in range(generator.randint(1, 3)):
        position = generator.randrange(len(data))
        kind = generator.choice((0, 0, 0, 1, 1, 2, 3))
        if kind == 0:
            data[position] ^= 1 << generator.randrange(8)
        elif kind == 1 and len(data) >= 8:
            numbers = [
                0,
                1,
                4,
                0x7FFFFFFF,
                0x80000000,
                0xFFFFFFFF,
                generator.getrandbits(32),
                len(data),
            ]
            struct.pack_into(
                "<I",
                data,
                position // 4 * 4 % (len(data) - 4),
                generator.choice(numbers),
            )
        elif kind == 2:
            del data[position : position + generator.randint(1, 16)]
        else:
            data[position:position] = generator.randbytes(generator.randint(1, 16))
        if not data:
            break
    return bytes(data)


def reads_or_refuses(data: bytes) -> bool:
    """Whether it is read, or refused with a FormatError; within the memory that a file
    of its length may take.
    """
    tracemalloc.start()
    try:
        read(data)
        return True
    except FormatError:
        return False
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < ALWAYS + MOST_TIMES * len(data), f"{len(data)} bytes took {peak}"

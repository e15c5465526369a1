"""The writer of flatbuffers makes the bytes that the flatbuffers package makes."""

import random

import pytest
from delegraph_tosa.serialize.building import Field, SharingBuilder, form

from ..support.flatbuffers_builder import FlatbuffersBuilder

RANGES = {
    "uint8": (0, 2**8 - 1),
    "bool": (0, 1),
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "uint64": (0, 2**64 - 1),
}


def build(builder, seed):
    """A buffer of random tables, lists and strings: its bytes, and all positions that the builder gave."""
    draw = random.Random(seed)
    made, slots = [builder.string("first")], []
    for _ in range(draw.randrange(40)):
        kind = draw.choice(
            ["string", "strings", "int32s", "raw", "offsets", "table", "record", "shared_record", "slots"]
        )
        if kind == "string":
            made.append(builder.string("".join(draw.choices("ab\u00e9\ud800\u6f22", k=draw.randrange(9)))))
        elif kind == "strings":
            made.append(builder.strings(draw.choices(["", "x", "yy"], k=draw.randrange(4))))
        elif kind == "int32s":
            made.append(builder.int32s([draw.randint(*RANGES["int32"]) for _ in range(draw.randrange(5))]))
        elif kind == "raw":
            made.append(builder.raw(draw.randbytes(draw.randrange(20))))
        elif kind == "offsets":
            made.append(builder.offsets(draw.choices(made, k=draw.randrange(4))))
        else:
            count = draw.randrange(9)
            fields = [field(draw, i, made) for i in draw.sample(range(count), draw.randint(0, count))]
            wanted = form(count, *[(f.id, f.kind) for f in fields])
            if kind == "slots":
                free = [(i, draw.choice(["uint32", "uint64"])) for i in {*range(count)} - {f.id for f in fields}][:2]
                fields = [f for f in fields if f.value]
                wanted = form(count, *free, *[(f.id, f.kind) for f in fields])
                table, distances = builder.record_with_slots(wanted, len(free), [f.value for f in fields])
                made.append(table)
                slots += distances
            elif kind == "table":
                made.append(builder.table(count, fields))
            else:
                made.append(getattr(builder, kind)(wanted, [f.value for f in fields]))
    return bytes(builder.finish(builder.table(1, [Field(0, "offset", made[-1])]), "TOSA")), made, slots


def field(draw, number, made):
    if draw.random() < 0.4:
        return Field(number, "offset", draw.choice(made))
    kind = draw.choice(list(RANGES))
    value = draw.choice([0, 1, *RANGES[kind], draw.randint(*RANGES[kind])])
    return Field(number, kind, value, draw.choice([0, 0, 1]))


@pytest.mark.parametrize("start", range(0, 500, 100))
def test_the_bytes_are_those_of_the_flatbuffers_package(start):
    for seed in range(start, start + 100):
        assert build(SharingBuilder(), seed) == build(FlatbuffersBuilder(), seed), seed

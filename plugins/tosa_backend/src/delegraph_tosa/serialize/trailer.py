"""Records behind the flatbuffer: the scales of inputs and outputs, the ranges of
indices, and what made the file.

The schema has no field for these. A flatbuffer is read from its front, so that its
readers do not see what follows. There are up to ``RECORDS`` records, one behind the
other, each of which is found from its end:

    JSON (UTF-8), its length (uint32, little-endian), MAGIC

The JSON has an entry ``schema``. With ``SCHEMA`` it has ``inputs`` and ``outputs``:
lists, in the order of the program's inputs and outputs in the flatbuffer, of
``{"dtype", "scale", "zero_point"}``, or null for what is not quantized. With ``RANGES``
it has ``inputs``: a list in the same order of ``[lowest, highest]``, or null for an
input without indices. With ``PRODUCER`` it has ``producer``, a distribution and its
version; a saved file ends with this record.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from delegraph.backend import Blob
from delegraph.errors import FormatError
from delegraph.formats import Quantization, QuantizationParameters
from delegraph.io.escape import printable

from ..ir.graph import Graph, Value
from ..ir.types import DType

MAGIC = b"dlgrMETA"
SCHEMA = "delegraph-tosa.metadata/1"
RANGES = "delegraph-tosa.ranges/1"
PRODUCER = "delegraph-tosa.producer/1"
RECORDS = 8
"""Records that are looked for; a file that was saved again has no more than three."""
LONGEST = 1 << 22
"""Bytes of JSON that are read: some 60,000 inputs."""
LONGEST_NAME = 500
"""Characters of a producer."""
LIMITS = {
    DType.INT8: {"int8": (-128, 127), "uint8": (0, 255)},
    DType.INT16: {"int16": (-(1 << 15), (1 << 15) - 1), "uint16": (0, (1 << 16) - 1)},
    DType.INT32: {"int32": (-(1 << 31), (1 << 31) - 1)},
}
"""Types of quantized numbers that the file holds as one type, and between which numbers
their zero points lie.
"""
_LENGTH = struct.Struct("<I")

Border = Sequence[QuantizationParameters | None]


def trailer(inputs: Border, outputs: Border) -> bytes:
    """What is written behind the flatbuffer of a program; nothing if nothing of its
    border is quantized.
    """
    if not any((*inputs, *outputs)):
        return b""
    sides = {"inputs": inputs, "outputs": outputs}
    lists = {
        side: [row and row._asdict() for row in rows] for side, rows in sides.items()
    }
    return _record({"schema": SCHEMA, **lists})


def ranges_record(ranges: Sequence[tuple[int, int] | None]) -> bytes:
    """Return the record of the ranges in which inputs with indices must lie; nothing if
    no input has indices.
    """
    if not any(ranges):
        return b""
    return _record({"schema": RANGES, "inputs": ranges})


def producer_record(producer: str) -> bytes:
    """What a saved file ends with; nothing if it is not known what made the file."""
    return _record({"schema": PRODUCER, "producer": producer}) if producer else b""


def _record(content: Mapping[str, Any]) -> bytes:
    text = json.dumps(content, separators=(",", ":")).encode()
    return text + _LENGTH.pack(len(text)) + MAGIC


def trailer_of(data: bytes | memoryview) -> bytes:
    """The bytes behind the flatbuffer, as they are; none if nothing of ours is there."""
    starts = [start for start, _ in _extents(data)]
    return bytes(data[starts[-1] :]) if starts else b""


def producer_of(data: bytes | memoryview) -> str:
    """What made a file, its distribution and version; "" if the file does not say it in
    a way that is known.
    """
    try:
        given = (_read(data, PRODUCER) or {}).get("producer")
    except FormatError:
        # who asks for the scales is told what is damaged; the program does not depend
        # on it
        return ""
    return printable(given[:LONGEST_NAME]) if isinstance(given, str) else ""


@dataclass(frozen=True)
class Followed:
    """A file with a record behind it (a ``delegraph.backend.Blob``); the file is not
    joined for it.
    """

    file: bytes | Blob
    record: bytes

    def __len__(self) -> int:
        return len(self.file) + len(self.record)

    def write_to(self, stream: BinaryIO) -> None:
        """Append the bytes of both."""
        if isinstance(self.file, bytes):
            stream.write(self.file)
        else:
            self.file.write_to(stream)
        stream.write(self.record)


def quantization(data: bytes | memoryview, graph: Graph) -> Quantization:
    """What is written behind the flatbuffer ``data`` of ``graph``, by name; nothing is
    quantized if nothing is there.

    Raises FormatError for what does not fit the graph.
    """
    held = _read(data, SCHEMA)
    inputs, outputs = (
        _named(values, None if held is None else held.get(side), side)
        for side, values in (("inputs", graph.inputs), ("outputs", graph.outputs))
    )
    return Quantization(inputs, outputs)


def input_ranges(data: bytes | memoryview, graph: Graph) -> dict[int, tuple[int, int]]:
    """Return the range of each input that has indices, by its position in ``graph``.

    Outside of the range, an index names another element in the file, or none. Raises
    FormatError for wrong ranges.
    """
    try:
        held = _read(data, RANGES)
    except FormatError:
        # reading the scales raises it; the program runs without these records
        return {}
    if held is None:
        return {}
    rows = held.get("inputs")
    if not isinstance(rows, list) or len(rows) != len(graph.inputs):
        raise _damaged(f"it does not describe the program's {len(graph.inputs)} inputs")
    ranges = {}
    for position, row in enumerate(rows):
        if row is None:
            continue
        if not isinstance(row, list) or [type(end) for end in row] != [int, int]:
            raise _damaged(f"the range of input {position} is not two integers")
        low, high = row
        if not -(1 << 63) <= low <= high < 1 << 63:
            raise _damaged(f"the range of input {position} is not one of int64")
        ranges[position] = (low, high)
    return ranges


def _read(data: bytes | memoryview, schema: str) -> Mapping[str, Any] | None:
    """The last record of that schema; None if there is none. What a later version wrote
    has another schema.
    """
    for start, length in _extents(data):
        try:
            held = json.loads(bytes(data[start : start + length]))
        except (ValueError, RecursionError) as error:
            raise _damaged(f"it is no JSON ({type(error).__name__})") from error
        if not isinstance(held, dict) or not isinstance(held.get("schema"), str):
            raise _damaged("it has no schema")
        if held["schema"] == schema:
            return held
    return None


def _extents(data: bytes | memoryview) -> Iterator[tuple[int, int]]:
    """Where the JSON of each record starts and how long it is, the last record first."""
    end = len(data)
    for _ in range(RECORDS):
        text_end = end - len(MAGIC) - _LENGTH.size
        if text_end < 0 or bytes(data[end - len(MAGIC) : end]) != MAGIC:
            return
        (length,) = _LENGTH.unpack_from(data, text_end)
        if length > LONGEST or length > text_end:
            raise _damaged(f"it has {length} bytes")
        end = text_end - length
        yield end, length


def _named(
    values: Sequence[Value], rows: Any, side: str
) -> dict[str, QuantizationParameters | None]:
    names = [
        value.name or f"{side[:-1]}_{position}" for position, value in enumerate(values)
    ]
    if rows is None:
        return dict.fromkeys(names)
    if not isinstance(rows, list) or len(rows) != len(values):
        raise _damaged(f"it does not describe the program's {len(values)} {side}")
    pairs = zip(names, values, rows, strict=True)
    return {
        name: None if row is None else _parameters(row, value, name)
        for name, value, row in pairs
    }


def _parameters(row: Any, value: Value, name: str) -> QuantizationParameters:
    types = LIMITS.get(value.dtype, {})
    given = row if isinstance(row, dict) else {}
    dtype, scale, zero_point = (
        given.get(key) for key in QuantizationParameters._fields
    )
    if not isinstance(dtype, str) or dtype not in types:
        raise _damaged(
            f"{name} is {value.dtype}, and not quantized as {str(dtype)[:20]!r}"
        )
    if not isinstance(scale, float) or not 0 < scale < math.inf:
        raise _damaged(f"the scale of {name} is no positive number")
    least, most = types[dtype]
    if type(zero_point) is not int or not least <= zero_point <= most:
        raise _damaged(f"the zero point of {name} is no {dtype}")
    return QuantizationParameters(dtype, scale, zero_point)


def _damaged(why: str) -> FormatError:
    return FormatError(
        "format-invalid", f"damaged TOSA file: what stands behind the flatbuffer: {why}"
    )

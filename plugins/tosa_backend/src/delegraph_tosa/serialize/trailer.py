"""Records after the flatbuffer: quantization of the border, index ranges, producer.

The schema has no field for them. Readers of flatbuffers start at the front and ignore
bytes that follow. There are up to ``RECORDS`` records, each found from its end:

    JSON (UTF-8), its length (uint32, little-endian), MAGIC

The entry ``schema`` of the JSON defines its content:

- ``SCHEMA``: ``inputs`` and ``outputs`` list ``{"dtype", "scale", "zero_point"}`` for
  each input and output of the program, or null if it is not quantized.
- ``RANGES``: ``inputs`` lists ``[lowest, highest]`` for each input, or null if it holds
  no indices.
- ``PRODUCER``: ``producer`` is a distribution and its version. It is the last record.
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
from delegraph.io.escape_for_terminal import printable

from ..ir.graph import Graph, Value
from ..ir.types import DType

MAGIC = b"dlgrMETA"
SCHEMA = "delegraph-tosa.metadata/1"
RANGES = "delegraph-tosa.ranges/1"
PRODUCER = "delegraph-tosa.producer/1"
RECORDS = 8
"""Number of records that are searched.

A file that was saved again has at most three.
"""
LONGEST = 1 << 22
"""Largest accepted size of a JSON in bytes: some 60,000 inputs."""
LONGEST_NAME = 500
"""Largest number of characters of a producer."""
LIMITS = {
    DType.INT8: {"int8": (-128, 127), "uint8": (0, 255)},
    DType.INT16: {"int16": (-(1 << 15), (1 << 15) - 1), "uint16": (0, (1 << 16) - 1)},
    DType.INT32: {"int32": (-(1 << 31), (1 << 31) - 1)},
}
"""Maps a TOSA type to the torch types stored in it, with the limits of zero points."""
_LENGTH = struct.Struct("<I")

Border = Sequence[QuantizationParameters | None]


def trailer(inputs: Border, outputs: Border) -> bytes:
    """Return the record of the border's quantization; b"" if nothing is quantized."""
    if not any((*inputs, *outputs)):
        return b""
    sides = {"inputs": inputs, "outputs": outputs}
    lists = {
        side: [p and p._asdict() for p in parameters]
        for side, parameters in sides.items()
    }
    return _record({"schema": SCHEMA, **lists})


def ranges_record(ranges: Sequence[tuple[int, int] | None]) -> bytes:
    """Return the record of the ranges of index inputs; b"" if there are none."""
    if not any(ranges):
        return b""
    return _record({"schema": RANGES, "inputs": ranges})


def producer_record(producer: str) -> bytes:
    """Return the record of the producer; b"" if it is unknown."""
    return _record({"schema": PRODUCER, "producer": producer}) if producer else b""


def _record(content: Mapping[str, Any]) -> bytes:
    text = json.dumps(content, separators=(",", ":")).encode()
    return text + _LENGTH.pack(len(text)) + MAGIC


def trailer_of(data: bytes | memoryview) -> bytes:
    """Return our records after the flatbuffer, unparsed; b"" if there are none."""
    starts = [start for start, _ in _extents(data)]
    return bytes(data[starts[-1] :]) if starts else b""


def producer_of(data: bytes | memoryview) -> str:
    """Return the distribution and version that made a file; "" if unknown."""
    try:
        given = (_read(data, PRODUCER) or {}).get("producer")
    except FormatError:
        # A damaged record is reported when the scales are read; the program does not
        # need it.
        return ""
    return printable(given[:LONGEST_NAME]) if isinstance(given, str) else ""


@dataclass(frozen=True)
class Followed:
    """A file followed by a record (``delegraph.backend.Blob``)."""

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
    """Read the quantization of inputs and outputs, by name.

    All are None without a record. Raises FormatError if the record does not fit the
    graph.
    """
    record = _read(data, SCHEMA)
    inputs, outputs = (
        _named(values, None if record is None else record.get(side), side)
        for side, values in (("inputs", graph.inputs), ("outputs", graph.outputs))
    )
    return Quantization(inputs, outputs)


def input_ranges(data: bytes | memoryview, graph: Graph) -> dict[int, tuple[int, int]]:
    """Return the range of each index input, by its position in ``graph``.

    An index outside its range would address another element, or none. Raises
    FormatError for malformed ranges.
    """
    try:
        record = _read(data, RANGES)
    except FormatError:
        # Reading the scales reports it. The program runs without these records.
        return {}
    if record is None:
        return {}
    rows = record.get("inputs")
    if not isinstance(rows, list) or len(rows) != len(graph.inputs):
        raise _damaged(f"it does not describe the program's {len(graph.inputs)} inputs")
    ranges = {}
    for position, row in enumerate(rows):
        if row is None:
            continue
        if not isinstance(row, list) or [type(end) for end in row] != [int, int]:
            raise _damaged(f"the range of input {position} must be two integers")
        low, high = row
        if not -(1 << 63) <= low <= high < 1 << 63:
            raise _damaged(f"the range of input {position} does not fit int64")
        ranges[position] = (low, high)
    return ranges


def _read(data: bytes | memoryview, schema: str) -> Mapping[str, Any] | None:
    """Return the last record of that schema, or None.

    Later versions use other schemas.
    """
    for start, length in _extents(data):
        try:
            record = json.loads(bytes(data[start : start + length]))
        except (ValueError, RecursionError) as error:
            raise _damaged(f"it is not JSON ({type(error).__name__})") from error
        if not isinstance(record, dict) or not isinstance(record.get("schema"), str):
            raise _damaged("it has no schema")
        if record["schema"] == schema:
            return record
    return None


def _extents(data: bytes | memoryview) -> Iterator[tuple[int, int]]:
    """Return the start and length of each record's JSON, the last record first."""
    end = len(data)
    for _ in range(RECORDS):
        text_end = end - len(MAGIC) - _LENGTH.size
        if text_end < 0 or bytes(data[end - len(MAGIC) : end]) != MAGIC:
            return
        (length,) = _LENGTH.unpack_from(data, text_end)
        if length > LONGEST or length > text_end:
            raise _damaged(f"its length is {length} bytes")
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
    dtype = given.get("dtype")
    scale = given.get("scale")
    zero_point = given.get("zero_point")
    if not isinstance(dtype, str) or dtype not in types:
        raise _damaged(
            f"{name} has type {value.dtype}, which cannot be quantized as {str(dtype)[:20]!r}"
        )
    if not isinstance(scale, float) or not 0 < scale < math.inf:
        raise _damaged(f"the scale of {name} must be positive and finite")
    least, most = types[dtype]
    if type(zero_point) is not int or not least <= zero_point <= most:
        raise _damaged(f"the zero point of {name} does not fit {dtype}")
    return QuantizationParameters(dtype, scale, zero_point)


def _damaged(why: str) -> FormatError:
    return FormatError(
        "format-invalid", f"damaged TOSA file: the record after the flatbuffer: {why}"
    )

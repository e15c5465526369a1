"""Records after the flatbuffer: quantization of the border, index ranges, producer.

The border is the inputs and outputs of the program. The schema has no field for these
records. Readers of flatbuffers start at the front and ignore bytes that follow. There
are up to ``MOST_RECORDS`` records, each found from its end:

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
from typing import Any, BinaryIO, NamedTuple

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
MOST_RECORDS = 8
"""The most records that are searched. Files of this project have at most three."""
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
    return _with_length({"schema": SCHEMA, **lists})


def ranges_record(ranges: Sequence[tuple[int, int] | None]) -> bytes:
    """Return the record of the ranges of index inputs; b"" if there are none."""
    if not any(ranges):
        return b""
    return _with_length({"schema": RANGES, "inputs": ranges})


def producer_record(producer: str) -> bytes:
    """Return the record of the producer; b"" if it is unknown."""
    if not producer:
        return b""
    return _with_length({"schema": PRODUCER, "producer": producer})


def _with_length(content: Mapping[str, Any]) -> bytes:
    """Return the record with this content: JSON, its length, MAGIC."""
    text = json.dumps(content, separators=(",", ":")).encode()
    return text + _LENGTH.pack(len(text)) + MAGIC


def trailer_of(data: bytes | memoryview) -> bytes:
    """Return the records after the flatbuffer, unparsed; b"" if there are none."""
    starts = [extent.start for extent in _json_extents(data)]
    return bytes(data[starts[-1] :]) if starts else b""


def producer_of(data: bytes | memoryview) -> str:
    """Return the distribution and version that made a file; "" if unknown."""
    try:
        record = _read(data, PRODUCER)
    except FormatError:
        # A damaged record is reported when the scales are read; the program does not
        # need it.
        return ""
    producer = None if record is None else record.get("producer")
    if not isinstance(producer, str):
        return ""
    return printable(producer[:LONGEST_NAME])


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
    record = _read(data, SCHEMA) or {}
    inputs = _by_name(graph.inputs, record.get("inputs"), "inputs")
    outputs = _by_name(graph.outputs, record.get("outputs"), "outputs")
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
    """Return the last record with this ``schema``, or None.

    Other records may be of later versions, and are ignored.
    """
    for start, length in _json_extents(data):
        try:
            record = json.loads(bytes(data[start : start + length]))
        except (ValueError, RecursionError) as error:
            raise _damaged(f"it is not JSON ({type(error).__name__})") from error
        if not isinstance(record, dict) or not isinstance(record.get("schema"), str):
            raise _damaged("it has no schema")
        if record["schema"] == schema:
            return record
    return None


class _Extent(NamedTuple):
    """The position of a record's JSON in the file, and its length in bytes."""

    start: int
    length: int


def _json_extents(data: bytes | memoryview) -> Iterator[_Extent]:
    """Yield the extent of each record's JSON, the last record first."""
    end = len(data)
    for _ in range(MOST_RECORDS):
        text_end = end - len(MAGIC) - _LENGTH.size
        if text_end < 0 or bytes(data[end - len(MAGIC) : end]) != MAGIC:
            return
        (length,) = _LENGTH.unpack_from(data, text_end)
        if length > LONGEST or length > text_end:
            raise _damaged(f"its length is {length} bytes")
        end = text_end - length
        yield _Extent(end, length)


def _by_name(
    values: Sequence[Value], rows: Any, side: str
) -> dict[str, QuantizationParameters | None]:
    """Map names of inputs or outputs to their quantization.

    ``rows`` is the list of a record, or None. ``side`` is ``inputs`` or ``outputs``.
    """
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
    """Return the quantization of ``value`` from an entry of a record."""
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

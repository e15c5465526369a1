"""How a file's quantized inputs and outputs stand for real numbers, in JSON behind the flatbuffer.

The schema has no field for it. A flatbuffer is read from its front, so that its readers do not see what follows:

    flatbuffer, JSON (UTF-8), its length (uint32, little-endian), MAGIC

The JSON has the entries ``schema``, ``inputs`` and ``outputs``. The latter are lists, in the order of the program's
inputs and outputs in the flatbuffer, of ``{"dtype", "scale", "zero_point"}``, or null for what is not quantized.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from delegraph.errors import FormatError
from delegraph.formats import Quantization, QuantizationParameters

from ..ir.graph import Graph, Value
from ..ir.types import DType

MAGIC = b"dlgrMETA"
SCHEMA = "delegraph-tosa.metadata/1"
LONGEST = 1 << 22
"""Bytes of JSON that are read: some 60,000 inputs."""
LIMITS = {
    DType.INT8: {"int8": (-128, 127), "uint8": (0, 255)},
    DType.INT16: {"int16": (-(1 << 15), (1 << 15) - 1), "uint16": (0, (1 << 16) - 1)},
    DType.INT32: {"int32": (-(1 << 31), (1 << 31) - 1)},
}
"""Types of quantized numbers that the file holds as one type, and between which numbers their zero points lie."""
_LENGTH = struct.Struct("<I")

Border = Sequence[QuantizationParameters | None]


def trailer(inputs: Border, outputs: Border) -> bytes:
    """What is written behind the flatbuffer of a program; nothing if nothing of its border is quantized."""
    if not any((*inputs, *outputs)):
        return b""
    sides = {"inputs": inputs, "outputs": outputs}
    lists = {side: [row and row._asdict() for row in rows] for side, rows in sides.items()}
    text = json.dumps({"schema": SCHEMA, **lists}, separators=(",", ":")).encode()
    return text + _LENGTH.pack(len(text)) + MAGIC


def trailer_of(data: bytes | memoryview) -> bytes:
    """The bytes behind the flatbuffer, as they are; none if nothing of ours is there."""
    held = _extent(data)
    return b"" if held is None else bytes(data[held[0] :])


def quantization(data: bytes | memoryview, graph: Graph) -> Quantization:
    """What is written behind the flatbuffer ``data`` of ``graph``, by name; nothing is quantized if nothing is there.

    Raises FormatError for what does not fit the graph.
    """
    held = _read(data)
    inputs, outputs = (
        _named(values, None if held is None else held.get(side), side)
        for side, values in (("inputs", graph.inputs), ("outputs", graph.outputs))
    )
    return Quantization(inputs, outputs)


def _read(data: bytes | memoryview) -> Mapping[str, Any] | None:
    """The JSON at the end of a file; None if there is none, or if a later version wrote it."""
    extent = _extent(data)
    if extent is None:
        return None
    start, length = extent
    try:
        held = json.loads(bytes(data[start : start + length]))
    except (ValueError, RecursionError) as error:
        raise _damaged(f"it is no JSON ({type(error).__name__})") from error
    if not isinstance(held, dict) or not isinstance(held.get("schema"), str):
        raise _damaged("it has no schema")
    return held if held["schema"] == SCHEMA else None


def _extent(data: bytes | memoryview) -> tuple[int, int] | None:
    """Where the JSON starts and how long it is; None if there is none."""
    end = len(data) - len(MAGIC)
    if end < _LENGTH.size or bytes(data[end:]) != MAGIC:
        return None
    (length,) = _LENGTH.unpack_from(data, end - _LENGTH.size)
    start = end - _LENGTH.size - length
    if length > LONGEST or start < 0:
        raise _damaged(f"it has {length} bytes")
    return start, length


def _named(values: Sequence[Value], rows: Any, side: str) -> dict[str, QuantizationParameters | None]:
    names = [value.name or f"{side[:-1]}_{position}" for position, value in enumerate(values)]
    if rows is None:
        return dict.fromkeys(names)
    if not isinstance(rows, list) or len(rows) != len(values):
        raise _damaged(f"it does not describe the program's {len(values)} {side}")
    pairs = zip(names, values, rows, strict=True)
    return {name: None if row is None else _parameters(row, value, name) for name, value, row in pairs}


def _parameters(row: Any, value: Value, name: str) -> QuantizationParameters:
    types, given = LIMITS.get(value.dtype, {}), row if isinstance(row, dict) else {}
    dtype, scale, zero_point = (given.get(key) for key in QuantizationParameters._fields)
    if not isinstance(dtype, str) or dtype not in types:
        raise _damaged(f"{name} is {value.dtype}, and not quantized as {str(dtype)[:20]!r}")
    if not isinstance(scale, float) or not 0 < scale < math.inf:
        raise _damaged(f"the scale of {name} is no positive number")
    least, most = types[dtype]
    if type(zero_point) is not int or not least <= zero_point <= most:
        raise _damaged(f"the zero point of {name} is no {dtype}")
    return QuantizationParameters(dtype, scale, zero_point)


def _damaged(why: str) -> FormatError:
    return FormatError("format-invalid", f"damaged TOSA file: what stands behind the flatbuffer: {why}")

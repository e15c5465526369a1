"""Number the element types as the file does, which uses PyTorch's numbers."""

from __future__ import annotations

import enum


class ScalarType(enum.IntEnum):
    """The element types of the schema."""

    BYTE = 0
    CHAR = 1
    SHORT = 2
    INT = 3
    LONG = 4
    HALF = 5
    FLOAT = 6
    DOUBLE = 7
    COMPLEX_HALF = 8
    COMPLEX_FLOAT = 9
    COMPLEX_DOUBLE = 10
    BOOL = 11
    QINT8 = 12
    QUINT8 = 13
    QINT32 = 14
    BFLOAT16 = 15
    QUINT4X2 = 16
    QUINT2X4 = 17
    BITS16 = 22
    FLOAT8_E5M2 = 23
    FLOAT8_E4M3FN = 24
    FLOAT8_E5M2FNUZ = 25
    FLOAT8_E4M3FNUZ = 26
    UINT16 = 27
    UINT32 = 28
    UINT64 = 29


TORCH_NAMES = {
    ScalarType.BYTE: "uint8",
    ScalarType.CHAR: "int8",
    ScalarType.SHORT: "int16",
    ScalarType.INT: "int32",
    ScalarType.LONG: "int64",
    ScalarType.HALF: "float16",
    ScalarType.FLOAT: "float32",
    ScalarType.DOUBLE: "float64",
    ScalarType.COMPLEX_HALF: "complex32",
    ScalarType.COMPLEX_FLOAT: "complex64",
    ScalarType.COMPLEX_DOUBLE: "complex128",
    ScalarType.BOOL: "bool",
    ScalarType.BFLOAT16: "bfloat16",
    ScalarType.FLOAT8_E5M2: "float8_e5m2",
    ScalarType.FLOAT8_E4M3FN: "float8_e4m3fn",
    ScalarType.FLOAT8_E5M2FNUZ: "float8_e5m2fnuz",
    ScalarType.FLOAT8_E4M3FNUZ: "float8_e4m3fnuz",
    ScalarType.UINT16: "uint16",
    ScalarType.UINT32: "uint32",
    ScalarType.UINT64: "uint64",
}
"""Element type -> its name in ``torch``. Types of quantized tensors have none."""

_ONE_BYTE = {
    "uint8",
    "int8",
    "bool",
    "float8_e5m2",
    "float8_e4m3fn",
    "float8_e5m2fnuz",
    "float8_e4m3fnuz",
}
_TWO_BYTES = {"int16", "uint16", "float16", "bfloat16"}
_EIGHT_BYTES = {"int64", "uint64", "float64", "complex64"}


def width(kind: ScalarType) -> int:
    """Return the bytes of an element; ValueError for types without dense tensors."""
    name = TORCH_NAMES.get(kind)
    if name is None:
        raise ValueError(f"{kind.name} is not a type of dense tensors")
    if name in _ONE_BYTE:
        return 1
    if name in _TWO_BYTES:
        return 2
    if name in _EIGHT_BYTES:
        return 8
    return 16 if name == "complex128" else 4

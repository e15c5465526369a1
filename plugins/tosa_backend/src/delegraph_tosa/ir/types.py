"""Element types and tensor types of TOSA (specification section 1.5, "Supported Number Formats")."""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

import numpy as np


class DType(enum.IntEnum):
    """An element type. The number is the flatbuffer schema's, the name in lower case is the specification's."""

    BOOL = 1
    INT4 = 2
    INT8 = 3
    INT16 = 4
    INT32 = 5
    INT48 = 6
    FP32 = 7
    FP16 = 8
    BF16 = 9
    SHAPE = 10
    FP8E4M3 = 11
    FP8E5M2 = 12
    FP6E2M3 = 13
    FP6E3M2 = 14
    FP4E2M1 = 15
    FP8UE8M0 = 16
    INT64 = 17
    MXINT8 = 18

    __hash__ = int.__hash__  # enum's own is a Python function, and types are keys of every table

    def __str__(self) -> str:
        return self.name.lower()


INTEGERS = frozenset({DType.INT4, DType.INT8, DType.INT16, DType.INT32, DType.INT48, DType.INT64})
FLOAT8 = frozenset({DType.FP8E4M3, DType.FP8E5M2})
FLOATS = frozenset({DType.FP32, DType.FP16, DType.BF16})


class Type(NamedTuple):
    """Shape and element type of a value. A SHAPE value of rank 1 has shape ``(length,)``."""

    shape: tuple[int, ...]
    dtype: DType

    def __str__(self) -> str:
        return f"[{'x'.join(map(str, self.shape))}]{self.dtype}"


ARRAY_DTYPES: dict[DType, np.dtype[Any]] = {
    **{t: np.dtype(t.name.lower()) for t in (DType.INT8, DType.INT16, DType.INT32, DType.INT64)},
    DType.BOOL: np.dtype(np.bool_),
    DType.INT4: np.dtype(np.int8),
    DType.INT48: np.dtype(np.int64),
    DType.SHAPE: np.dtype(np.int64),
    DType.FP32: np.dtype(np.float32),
    DType.FP16: np.dtype(np.float16),
    DType.BF16: np.dtype(np.uint16),
    **{t: np.dtype(np.uint8) for t in DType if "FP" in t.name and t > DType.SHAPE},
    DType.MXINT8: np.dtype(np.int8),
}
"""Element type of the arrays that hold constants in memory. INT4 and INT48 are widened; BF16 and the
floats of 8 bits and less, which numpy does not have, are their bit patterns; MXINT8 is in units of 1/64."""

BYTES: dict[DType, int] = {t: array.itemsize for t, array in ARRAY_DTYPES.items()} | {DType.INT48: 6}
"""Bytes an element takes in a file; INT4 and FP4 pack two into one, FP6 four into three."""


class Mode(enum.IntEnum):
    """Base of the attribute enumerations; prints as its name."""

    def __str__(self) -> str:
        return self.name


class NanMode(Mode):
    """What CLAMP, MAXIMUM and the like do with NaN."""

    PROPAGATE = 1
    IGNORE = 2


class ResizeMode(Mode):
    """Interpolation of RESIZE."""

    NEAREST = 1
    BILINEAR = 2


class RoundingMode(Mode):
    """Rounding of RESCALE."""

    SINGLE_ROUND = 1
    INEXACT_ROUND = 2
    DOUBLE_ROUND = 3


class BlockSize(Mode):
    """Elements that share a scale, in the operators on block-scaled tensors."""

    BLOCK_SIZE_1 = 1
    BLOCK_SIZE_32 = 32

"""Element types and tensor types of TOSA (specification: Supported Number Formats)."""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

import numpy as np

from .dynamic_sizes import agree, is_dynamic, symbol


class DType(enum.IntEnum):
    """An element type.

    The number is the flatbuffer schema's, the name in lower case is the
    specification's. The last six, of the 1.1 draft, are block-scaled: tensors contain
    scales (``block_scale_t``). A file has three fields for such a type, from which its
    number is composed: block shape, scale type and value type.
    """

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
    BS32_FP8UE8M0_FP8E4M3 = 32 << 16 | 16 << 8 | 11
    BS32_FP8UE8M0_FP8E5M2 = 32 << 16 | 16 << 8 | 12
    BS32_FP8UE8M0_FP6E2M3 = 32 << 16 | 16 << 8 | 13
    BS32_FP8UE8M0_FP6E3M2 = 32 << 16 | 16 << 8 | 14
    BS32_FP8UE8M0_FP4E2M1 = 32 << 16 | 16 << 8 | 15
    BS32_FP8UE8M0_MXINT8 = 32 << 16 | 16 << 8 | 18

    # faster than the __hash__ of enum: types are keys of many tables
    __hash__ = int.__hash__

    def __str__(self) -> str:
        return self.name.lower()


INTEGERS = frozenset(
    {DType.INT4, DType.INT8, DType.INT16, DType.INT32, DType.INT48, DType.INT64}
)
FLOAT8 = frozenset({DType.FP8E4M3, DType.FP8E5M2})
FLOATS = frozenset({DType.FP32, DType.FP16, DType.BF16})
SHORT_FLOATS = FLOATS - {DType.FP32}
SMALL_FLOATS = FLOAT8 | {DType.FP6E2M3, DType.FP6E3M2, DType.FP4E2M1, DType.FP8UE8M0}
"""Floats of at most 8 bits. MXINT8, a fixed-point type, is not among them."""


class Blocks(NamedTuple):
    """The parts of a block-scaled type.

    Each ``size`` elements of type ``value`` along the last axis share a scale.
    """

    size: int
    scale: DType
    value: DType


BLOCK_SCALED: dict[DType, Blocks] = {
    t: Blocks(t >> 16, DType(t >> 8 & 255), DType(t & 255))
    for t in DType
    if t.name.startswith("BS")
}
"""Types of block-scaled tensors (specification: Supported Number Formats).

Element i of the last axis is its value times scale ``i // size``. The shape counts the
values.
"""


UNKNOWN = -1
"""The number in files for a size that is known at run time only."""


class Type(NamedTuple):
    """Shape and element type of a value.

    A SHAPE value of rank 1 has shape ``(length,)``.
    """

    shape: tuple[int, ...]
    dtype: DType

    def __str__(self) -> str:
        return f"[{'x'.join(map(str, self.shape))}]{self.dtype}"

    @property
    def is_dynamic(self) -> bool:
        """Return whether one of its sizes is known at run time only."""
        return any(map(is_dynamic, self.shape))

    @property
    def declared(self) -> tuple[int, ...]:
        """Return the shape as in files, with UNKNOWN for dynamic sizes."""
        if not self.is_dynamic:
            return self.shape
        return tuple([UNKNOWN if is_dynamic(size) else size for size in self.shape])

    @property
    def written(self) -> str:
        """Return the type as in the text form, with ``?`` for dynamic sizes."""
        sizes = ["?" if is_dynamic(size) else str(size) for size in self.shape]
        return f"[{'x'.join(sizes)}]{self.dtype}"

    def named(self, name: str) -> Type:
        """Return the type of the value ``name`` of a file, without UNKNOWN.

        Each unknown size becomes a new symbol, such as ``x.0`` for axis 0 of x.
        """
        if UNKNOWN not in self.shape:
            return self
        sizes = [
            symbol(f"{name}.{axis}") if size == UNKNOWN else size
            for axis, size in enumerate(self.shape)
        ]
        return Type(tuple(sizes), self.dtype)

    def reconciled(self, declared: Type) -> Type | None:
        """Return this inferred type with the known sizes of ``declared``.

        None if the two contradict each other.
        """
        if self == declared:
            return self
        if self.dtype is not declared.dtype or not agree(self.shape, declared.shape):
            return None
        shape: list[int] = []
        for inferred_size, size in zip(self.shape, declared.shape, strict=True):
            shape.append(inferred_size if is_dynamic(size) else size)
        return Type(tuple(shape), self.dtype)


ARRAY_DTYPES: dict[DType, np.dtype[Any]] = {
    **{
        t: np.dtype(t.name.lower())
        for t in (DType.INT8, DType.INT16, DType.INT32, DType.INT64)
    },
    DType.BOOL: np.dtype(np.bool_),
    DType.INT4: np.dtype(np.int8),
    DType.INT48: np.dtype(np.int64),
    DType.SHAPE: np.dtype(np.int64),
    DType.FP32: np.dtype(np.float32),
    DType.FP16: np.dtype(np.float16),
    DType.BF16: np.dtype(np.uint16),
    **{t: np.dtype(np.uint8) for t in SMALL_FLOATS},
    DType.MXINT8: np.dtype(np.int8),
}
"""Element type of the arrays that hold constants in memory.

INT4 and INT48 are widened; BF16 and the floats of 8 bits and less, which numpy does not
have, are their bit patterns; MXINT8 is in units of 1/64.
"""

ARRAY_DTYPES |= {
    t: np.dtype([("value", ARRAY_DTYPES[value]), ("scale", ARRAY_DTYPES[scale])])
    for t, (_, scale, value) in BLOCK_SCALED.items()
}
# Each element is stored with its scale, as the specification's ``value_scale_t``:
# operators that move elements move both.

BYTES: dict[DType, int] = {
    t: array.itemsize for t, array in ARRAY_DTYPES.items() if t not in BLOCK_SCALED
} | {DType.INT48: 6}
"""Bytes that an element takes in a file.

A file packs two INT4 or FP4 into one byte, and four FP6 into three. Block-scaled types
have no entry: ``stored_types`` returns how a file stores them.
"""


def stored_types(type: Type) -> tuple[Type, ...]:
    """Return the types stored for a tensor: itself, or values and scales."""
    blocks = BLOCK_SCALED.get(type.dtype)
    if blocks is None:
        return (type,)
    scales = (*type.shape[:-1], type.shape[-1] // blocks.size)
    return Type(type.shape, blocks.value), Type(scales, blocks.scale)


def why_not_blocks(type: Type) -> str | None:
    """Return why the last axis does not consist of whole blocks; None if it does."""
    blocks = BLOCK_SCALED.get(type.dtype)
    if blocks is None or (type.shape and type.shape[-1] % blocks.size == 0):
        return None
    return (
        f"{type} is not made of whole blocks: its last size must be a multiple of"
        f" {blocks.size}"
    )


class Mode(enum.IntEnum):
    """Base of the attribute enumerations; prints as its name."""

    def __str__(self) -> str:
        return self.name


class NanMode(Mode):
    """How CLAMP, MAXIMUM and similar operators treat NaN."""

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

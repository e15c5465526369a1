"""Writes and reads elements of constants as text, or base64 if many."""

from __future__ import annotations

import base64
import math

import numpy as np

from ..ir.graph import Array, Illegal, Number
from ..ir.types import ARRAY_DTYPES, DType, Type

MOST_NUMBERS = 16
"""Constants of more elements are written in base64, unless all elements are equal."""


def text_of(array: Array, type: Type) -> str:
    """Return ``[1.0, 2.0]``, ``splat 0.0`` or ``base64 "..."``, the shortest."""
    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.size > 1 and _bits(flat, type.dtype) == _bits(
        np.repeat(flat[:1], flat.size), type.dtype
    ):
        splat = _numeral(flat[:1], type.dtype)
        if splat is not None:
            return f"splat {splat}"
    numerals = [
        _numeral(flat[i : i + 1], type.dtype)
        for i in range(flat.size if flat.size <= MOST_NUMBERS else 0)
    ]
    if flat.size > MOST_NUMBERS or None in numerals:
        return f'base64 "{base64.b64encode(_bits(flat, type.dtype)).decode()}"'
    return f"[{', '.join(n for n in numerals if n is not None)}]"


_RANGES = {
    DType.INT4: range(-8, 8),
    DType.INT48: range(-(1 << 47), 1 << 47),
    DType.FP4E2M1: range(16),
    DType.FP6E2M3: range(64),
    DType.FP6E3M2: range(64),
}
"""Elements of the types that memory holds in wider ones."""


def _bits(array: Array, dtype: DType) -> bytes:
    return array.astype(ARRAY_DTYPES[dtype].newbyteorder("<"), copy=False).tobytes()


def _numeral(element: Array, dtype: DType) -> str | None:
    """Return the text of one element.

    None if only its bits define it (a NaN with a payload).
    """
    for text in _candidates(element, dtype):
        if _bits(_array([_number(text)], dtype), dtype) == _bits(element, dtype):
            return text
    return None


def _candidates(element: Array, dtype: DType) -> list[str]:
    if dtype is DType.BF16:
        wide = np.left_shift(element.astype(np.uint32), 16).view(np.float32)
        return [repr(float(wide[0]))]
    if element.dtype.kind == "f":
        return [str(element[0]), repr(float(element[0]))]
    return [str(element[0]).lower()]


def _array(numbers: list[Number], dtype: DType) -> Array:
    """Return the elements in memory.

    Floats are the nearest, Illegal if only infinity is near.
    """
    array = ARRAY_DTYPES[dtype]
    if array.kind != "f" and dtype is not DType.BF16:
        if not all(isinstance(n, int) and _fits(n, dtype) for n in numbers):
            raise Illegal(f"an element is no {dtype}")
        return np.array(numbers, array)
    floats = _floats(numbers, DType.FP32 if dtype is DType.BF16 else dtype)
    return _bfloat16_bits(floats) if dtype is DType.BF16 else floats


def _floats(numbers: list[Number], dtype: DType) -> Array:
    try:
        exact = np.array([float(n) for n in numbers], np.float64)
    except OverflowError:  # an integer of hundreds of digits
        raise Illegal(f"an element is too large for {dtype}") from None
    with np.errstate(over="ignore"):
        rounded = exact.astype(ARRAY_DTYPES[dtype])
    if np.any(np.isinf(rounded) & ~np.isinf(exact)):
        raise Illegal(f"an element is too large for {dtype}")
    return rounded


def _bfloat16_bits(floats: Array) -> Array:
    """Return the upper halves of float32 numbers, rounded to nearest, ties to even."""
    bits = floats.view(np.uint32)
    rounded: Array = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    if np.any((rounded & 0x7FFF == 0x7F80) & np.isfinite(floats)):
        raise Illegal(f"an element is too large for {DType.BF16}")
    return rounded


def _fits(number: int, dtype: DType) -> bool:
    if dtype is DType.BOOL:
        return number in (0, 1)
    info = np.iinfo(ARRAY_DTYPES[dtype])
    return number in _RANGES.get(dtype, range(info.min, int(info.max) + 1))


def _number(text: str) -> Number:
    if text in ("true", "false"):  # as an element of a bool constant is printed
        return int(text == "true")
    try:
        return int(text)
    except ValueError:
        return float(text)


def number_of(text: str) -> Number:
    """Return the number of a numeral: an int, a float, ``inf`` or ``nan``."""
    try:
        return _number(text)
    except ValueError:
        raise Illegal(f"{text!r} is no number") from None


def from_numbers(numbers: list[Number], type: Type) -> Array:
    """Return a constant from all of its elements.

    Illegal if there are more or fewer than the type has.
    """
    if len(numbers) != math.prod(type.shape):
        raise Illegal(
            f"{type} has {math.prod(type.shape)} elements, {len(numbers)} are given"
        )
    return _array(numbers, type.dtype).reshape(type.shape)


def from_splat(number: Number, type: Type) -> Array:
    """Return a constant with equal elements.

    They share their memory, so that a short text cannot take much.
    """
    element = _array([number], type.dtype)
    try:
        return (
            np.broadcast_to(element, type.shape) if type.shape else element.reshape(())
        )
    except ValueError:  # more elements than an address counts
        raise Illegal(f"{type} is larger than any memory") from None


def from_base64(text: str, type: Type) -> Array:
    """Return a constant from the little-endian bytes of its elements."""
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError:
        raise Illegal("the elements are not base64") from None
    array = ARRAY_DTYPES[type.dtype].newbyteorder("<")
    if len(data) != math.prod(type.shape) * array.itemsize:
        raise Illegal(
            f"{type} takes {math.prod(type.shape) * array.itemsize} bytes, {len(data)}"
            " are given"
        )
    elements = np.frombuffer(data, array).reshape(type.shape)
    extremes = (elements.min(), elements.max()) if elements.size else ()
    if type.dtype in _RANGES and not all(_fits(int(n), type.dtype) for n in extremes):
        raise Illegal(f"an element is no {type.dtype}")
    return elements

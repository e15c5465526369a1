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
    """Return ``splat 0.0`` for equal elements, ``[1.0, 2.0]``, or ``base64 "..."``."""
    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.size > 1 and _are_equal(flat, type.dtype):
        number = _numeral(flat[:1], type.dtype)
        if number is not None:
            return f"splat {number}"
    if flat.size <= MOST_NUMBERS:
        elements = [flat[k : k + 1] for k in range(flat.size)]
        numerals = [_numeral(element, type.dtype) for element in elements]
        if None not in numerals:
            return f"[{', '.join(map(str, numerals))}]"
    encoded = base64.b64encode(_bits(flat, type.dtype))
    return f'base64 "{encoded.decode()}"'


def _are_equal(flat: Array, dtype: DType) -> bool:
    """Return whether all elements have the same bits."""
    repeated = np.repeat(flat[:1], flat.size)
    return _bits(flat, dtype) == _bits(repeated, dtype)


_RANGES = {
    DType.INT4: range(-8, 8),
    DType.INT48: range(-(1 << 47), 1 << 47),
    DType.FP4E2M1: range(16),
    DType.FP6E2M3: range(64),
    DType.FP6E3M2: range(64),
}
"""Legal elements of types that memory holds in wider types."""


def _bits(array: Array, dtype: DType) -> bytes:
    """Return the little-endian bytes of the elements."""
    little_endian = ARRAY_DTYPES[dtype].newbyteorder("<")
    return array.astype(little_endian, copy=False).tobytes()


def _numeral(element: Array, dtype: DType) -> str | None:
    """Return a text of one element that is parsed to the same bits.

    None if there is none, as for a NaN with a payload.
    """
    bits = _bits(element, dtype)
    for text in _candidates(element, dtype):
        parsed = _array([_number(text)], dtype)
        if _bits(parsed, dtype) == bits:
            return text
    return None


def _candidates(element: Array, dtype: DType) -> list[str]:
    """Return texts of an element, the shortest first; not all need be exact."""
    if dtype is DType.BF16:
        wide = np.left_shift(element.astype(np.uint32), 16).view(np.float32)
        return [repr(float(wide[0]))]
    (number,) = element
    if element.dtype.kind == "f":
        return [str(number), repr(float(number))]
    return [str(number).lower()]


def _array(numbers: list[Number], dtype: DType) -> Array:
    """Return numbers as elements in memory. Floats are rounded.

    Raises Illegal for a number that is not in the range of ``dtype``.
    """
    if dtype is DType.BF16:
        return _bfloat16_bits(_floats(numbers, DType.FP32))
    array_dtype = ARRAY_DTYPES[dtype]
    if array_dtype.kind == "f":
        return _floats(numbers, dtype)
    for number in numbers:
        if not isinstance(number, int) or not _fits(number, dtype):
            raise Illegal(f"an element is no {dtype}")
    return np.array(numbers, array_dtype)


def _floats(numbers: list[Number], dtype: DType) -> Array:
    """Return numbers as floats of ``dtype``. Raises Illegal if one is too large."""
    try:
        exact = np.array([float(n) for n in numbers], np.float64)
    except OverflowError:  # an integer of hundreds of digits
        raise Illegal(f"an element is too large for {dtype}") from None
    with np.errstate(over="ignore"):
        rounded = exact.astype(ARRAY_DTYPES[dtype])
    has_overflowed = np.isinf(rounded) & ~np.isinf(exact)
    if np.any(has_overflowed):
        raise Illegal(f"an element is too large for {dtype}")
    return rounded


def _bfloat16_bits(floats: Array) -> Array:
    """Return float32 numbers as bits of bfloat16, rounded to nearest, ties to even."""
    bits = floats.view(np.uint32)
    is_odd = bits >> 16 & 1
    rounded: Array = ((bits + 0x7FFF + is_odd) >> 16).astype(np.uint16)
    is_infinite = rounded & 0x7FFF == 0x7F80
    if np.any(is_infinite & np.isfinite(floats)):
        raise Illegal(f"an element is too large for {DType.BF16}")
    return rounded


def _fits(number: int, dtype: DType) -> bool:
    """Return whether an integer is an element of ``dtype``."""
    if dtype is DType.BOOL:
        return number in (0, 1)
    if dtype in _RANGES:
        return number in _RANGES[dtype]
    limits = np.iinfo(ARRAY_DTYPES[dtype])
    return int(limits.min) <= number <= int(limits.max)


def _number(text: str) -> Number:
    """Return the number of a numeral; raises ValueError."""
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
        raise Illegal(f"{text!r} is not a number") from None


def from_numbers(numbers: list[Number], type: Type) -> Array:
    """Return a constant from all of its elements.

    Raises Illegal if there are more or fewer than the type has.
    """
    count = math.prod(type.shape)
    if len(numbers) != count:
        raise Illegal(f"{type} has {count} elements, {len(numbers)} are given")
    return _array(numbers, type.dtype).reshape(type.shape)


def from_splat(number: Number, type: Type) -> Array:
    """Return a constant with equal elements.

    They share their memory, so that a short text cannot take much.
    """
    element = _array([number], type.dtype)
    if not type.shape:
        return element.reshape(())
    try:
        return np.broadcast_to(element, type.shape)
    except ValueError:  # more elements than an address counts
        raise Illegal(f"{type} is larger than any memory") from None


def from_base64(text: str, type: Type) -> Array:
    """Return a constant from the little-endian bytes of its elements."""
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError:
        raise Illegal("the elements are not base64") from None
    little_endian = ARRAY_DTYPES[type.dtype].newbyteorder("<")
    size = math.prod(type.shape) * little_endian.itemsize
    if len(data) != size:
        raise Illegal(f"{type} takes {size} bytes, {len(data)} are given")
    elements = np.frombuffer(data, little_endian).reshape(type.shape)
    if type.dtype in _RANGES and elements.size:
        extremes = (int(elements.min()), int(elements.max()))
        if not all(_fits(extreme, type.dtype) for extreme in extremes):
            raise Illegal(f"an element is no {type.dtype}")
    return elements

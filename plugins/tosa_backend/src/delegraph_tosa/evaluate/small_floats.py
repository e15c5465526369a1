"""Floats of at most 8 bits: bit patterns in memory, computed in fp32.

FP8 is OCP-OFP8's: E4M3 has no infinities, and one NaN of each sign; E5M2 is the upper
half of an fp16. FP6, FP4, the scale E8M0 and MXINT8 are OCP-MX's: FP6 and FP4 have
neither infinities nor NaN, E8M0 is a power of two without a sign, MXINT8 an integer in
units of 1/64 (specification: Supported Number Formats).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ..ir.graph import Array
from ..ir.types import SMALL_FLOATS, DType


class Format(NamedTuple):
    """A format of floats: numbers of bits of exponent and fraction, and the bias.

    Numbers with an exponent of 0 are subnormal. ``largest`` is the pattern of the
    largest finite number, ``nan`` that of NaN.
    """

    exponent: int
    fraction: int
    bias: int
    largest: int
    nan: int | None = None

    @property
    def sign(self) -> int:
        """Return the bit of the sign, which is above all others."""
        return 1 << self.exponent + self.fraction


FORMATS: dict[DType, Format] = {
    DType.FP8E4M3: Format(4, 3, 7, 0x7E, 0x7F),
    DType.FP8E5M2: Format(5, 2, 15, 0x7B, 0x7E),
    DType.FP6E2M3: Format(2, 3, 1, 0x1F),
    DType.FP6E3M2: Format(3, 2, 3, 0x1F),
    DType.FP4E2M1: Format(2, 1, 1, 0x7),
}
_E8M0_NAN = 255
MXINT8_UNITS = 64
FRACTIONS = SMALL_FLOATS | {DType.MXINT8}
"""Types that ``decoded`` and ``encoded`` know."""


@lru_cache(maxsize=8)
def _values(dtype: DType) -> Array:
    """Return the number of each bit pattern, in fp32."""
    if dtype is DType.FP8UE8M0:
        powers = [2.0 ** (bits - 127) for bits in range(_E8M0_NAN)]
        return np.array([*powers, np.nan], np.float32)
    form = FORMATS[dtype]
    bits = np.arange(form.sign)
    exponent = bits >> form.fraction
    fraction = (bits & (1 << form.fraction) - 1) / (1 << form.fraction)
    normal = np.ldexp(1 + fraction, exponent - form.bias)
    magnitude = np.where(exponent > 0, normal, np.ldexp(fraction, 1 - form.bias))
    magnitude = np.where(bits > form.largest, np.nan, magnitude)
    if dtype is DType.FP8E5M2:
        magnitude[form.largest + 1] = np.inf
    numbers: Array = np.concatenate([magnitude, -magnitude])
    return numbers.astype(np.float32)


class Limit(NamedTuple):
    """The number half a step above the largest one of a type."""

    number: float
    is_out_of_range: bool
    """Whether the number is rounded up, and so out of range itself."""


def overflow(dtype: DType) -> Limit:
    """Return the limit below which numbers are rounded into the range of ``dtype``."""
    if dtype is DType.MXINT8:
        return Limit(127.5 / MXINT8_UNITS, is_out_of_range=True)
    largest = FORMATS[dtype].largest
    numbers = _values(dtype)
    before_last = float(numbers[largest - 1])
    last = float(numbers[largest])
    half_step = (last - before_last) / 2
    # ties are rounded to even
    is_odd = largest % 2 == 1
    return Limit(last + half_step, is_out_of_range=is_odd)


def decoded(bits: Array, dtype: DType) -> Array:
    """Return the numbers in fp32, exactly; bits above the type's are ignored."""
    if dtype is DType.MXINT8:
        return bits.astype(np.float32) / np.float32(MXINT8_UNITS)
    table = _values(dtype)
    numbers: Array = table[bits & np.uint8(len(table) - 1)]
    return numbers


def encoded(array: Array, dtype: DType) -> Array:
    """Return the bit patterns of the nearest numbers, ties to even.

    Numbers that are too large become NaN (E4M3), infinite (E5M2), or the largest number
    of a type without both. NaN becomes 0 in types without NaN, which the specification
    leaves open.
    """
    wide = array.astype(np.float64)
    if dtype is DType.MXINT8:
        return _units(wide)
    if dtype is DType.FP8UE8M0:
        return _scales(wide)
    form = FORMATS[dtype]
    finite = _values(dtype)[: form.largest + 1].astype(np.float64)
    bits = _nearest(np.abs(wide), finite)
    nan = form.nan
    if nan is None:
        bits = np.minimum(bits, form.largest)
        nan = 0
    bits = np.where(np.isnan(wide), nan, bits)
    signed: Array = np.where(np.signbit(wide), bits | form.sign, bits)
    return signed.astype(np.uint8)


def _units(wide: Array) -> Array:
    """Return numbers as MXINT8: in units of 1/64, clamped; 0 for NaN."""
    numbers = np.where(np.isnan(wide), 0, wide)
    units: Array = np.rint(numbers * MXINT8_UNITS)
    return np.clip(units, -128, 127).astype(np.int8)


def _nearest(magnitude: Array, finite: Array) -> Array:
    """Return the pattern of the nearest number in ``finite``.

    For larger numbers, it is one more than the pattern of the largest.
    Numbers ascend with their patterns, so a search among the middles between
    neighbours is enough.
    """
    would_follow = 2 * finite[-1] - finite[-2]
    middles = (np.append(finite[1:], would_follow) + finite) / 2
    below = np.searchsorted(middles, magnitude)
    next_middle = middles[np.minimum(below, len(middles) - 1)]
    is_tie = magnitude == next_middle
    is_odd = below % 2 == 1
    bits: Array = below + (is_tie & is_odd)
    return bits


def _scales(wide: Array) -> Array:
    """Return positive numbers as E8M0: the nearest powers of two."""
    is_nan = np.isnan(wide)
    mantissa, exponent = np.frexp(np.where(is_nan, 1, wide))
    nearest = exponent - 1 + (mantissa > 0.75)
    in_range = np.clip(nearest + 127, 0, 254)
    bits: Array = np.where(is_nan, _E8M0_NAN, in_range)
    return bits.astype(np.uint8)

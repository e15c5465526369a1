"""The 8-bit floats of TOSA, which numpy does not have: bit patterns in memory, fp32 where something is computed.

FP8E4M3 has no infinities, and one NaN of each sign; FP8E5M2 is the upper half of an fp16 (specification 1.5).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ..ir.graph import Array
from ..ir.types import DType

_NAN = {DType.FP8E4M3: 0x7F, DType.FP8E5M2: 0x7E}
_LARGEST = {DType.FP8E4M3: 0x7E, DType.FP8E5M2: 0x7B}
"""Bit pattern of the largest finite number."""


@lru_cache(maxsize=2)
def _values(dtype: DType) -> Array:
    """The 256 numbers, by bit pattern."""
    if dtype is DType.FP8E5M2:
        return (np.arange(256, dtype=np.uint16) << np.uint16(8)).view(np.float16).astype(np.float32)
    bits = np.arange(256)
    exponent, fraction = bits >> 3 & 15, bits & 7
    magnitude = np.where(exponent > 0, np.ldexp(1 + fraction / 8, exponent - 7), np.ldexp(fraction / 8, -6))
    magnitude = np.where(bits & 127 == _NAN[dtype], np.nan, magnitude)
    return np.where(bits > 127, -magnitude, magnitude).astype(np.float32)


def decoded_float8(bits: Array, dtype: DType) -> Array:
    """The numbers in fp32."""
    numbers: Array = _values(dtype)[bits]
    return numbers


def encoded_float8(array: Array, dtype: DType) -> Array:
    """The bit patterns of the nearest numbers, ties to even; too large ones become NaN (E4M3) or infinite."""
    wide = array.astype(np.float64)
    finite = _values(dtype)[: _LARGEST[dtype] + 1].astype(np.float64)
    beyond = 2 * finite[-1] - finite[-2]  # the number that would follow
    middles = (np.append(finite[1:], beyond) + finite) / 2
    magnitude = np.abs(wide)
    low, high = np.searchsorted(middles, magnitude, "left"), np.searchsorted(middles, magnitude, "right")
    bits = np.where(low % 2 == 0, low, high)  # at a tie they differ by one, and the even one is right
    bits = np.where(np.isnan(wide), _NAN[dtype], bits)
    signed: Array = np.where(np.signbit(wide), bits | 128, bits).astype(np.uint8)
    return signed

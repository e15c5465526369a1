"""Ratios as multipliers and shifts, for RESCALE (specification: apply_scale)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .graph import Array

SMALLEST_SHIFT = 2
LARGEST_SHIFT = 62


class RescaleRatios(NamedTuple):
    """Ratios multiplier / 2**shift."""

    multiplier: Array
    shift: Array


def rescale_ratios(ratios: Array, bits: int) -> RescaleRatios:
    """Return RESCALE's multiplier and shift for each of ``ratios``.

    Multipliers have ``bits`` bits, 31 or 15. If a ratio is too small for the largest
    shift, its multiplier loses low bits. If a ratio is too large, it gets the largest
    multiplier, with which all results but 0 saturate.
    """
    # ratio = fraction * 2**exponent with a fraction in [1/2, 1)
    fraction, exponent = np.frexp(ratios)
    multiplier = np.rint(np.ldexp(fraction, bits)).astype(np.int64)
    carried = multiplier >> bits  # 1 where the fraction was rounded up to 1
    multiplier = multiplier >> carried
    exponent = exponent + carried
    shift = bits - exponent
    # a ratio that is too small: the multiplier loses low bits, with rounding (at most
    # 40, more than it has)
    lost = np.clip(shift - LARGEST_SHIFT, 0, 40)
    half = (1 << lost) >> 1
    shortened = (multiplier + half) >> lost
    multiplier = np.where(lost > 0, shortened, multiplier)
    # a ratio that is too large
    largest = (1 << bits) - 1
    multiplier = np.where(shift < SMALLEST_SHIFT, largest, multiplier)
    return RescaleRatios(multiplier, np.clip(shift, SMALLEST_SHIFT, LARGEST_SHIFT))

"""Tells from ratios of signal to noise whether integers ruin a result."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

LEAST_SNR = 20.0
"""The signal-to-noise ratio, in dB, of a result that is of use.

Usual layers in int8 have 25 to 45 dB.
"""
SHARE = 0.25
"""A result is ruined if its ratio is too low in this share of the batches.

Energies add up: in the mean over all batches, loud ones would hide silent ones.
"""


def is_ruined(ratios: Sequence[float]) -> bool:
    """Return whether a result with these ratios, one for each batch, is ruined."""
    return sorted(ratios)[int(SHARE * (len(ratios) - 1))] < LEAST_SNR


def signal_to_noise(got: torch.Tensor, floats: torch.Tensor) -> float:
    """Return the ratio, in dB, of the variance in floats to the mean squared error.

    The variance of the norms of two similar vectors is almost zero, which says nothing
    about their errors. So with one element a sample, the mean square takes its place.
    Elements that are not finite in floats are left out.
    """
    finite = floats.isfinite()
    expected = floats[finite].double()
    error = float((got[finite].double() - expected).square().sum())
    if error == 0 or len(expected) == 0:
        return math.inf
    samples = floats.shape[0] if floats.dim() else 1
    has_one_a_sample = floats.numel() == samples
    offset = 0 if has_one_a_sample else expected.mean()
    signal = float((expected - offset).square().sum())
    if signal == 0 or not math.isfinite(error):
        return -math.inf
    return 10 * math.log10(signal / error)

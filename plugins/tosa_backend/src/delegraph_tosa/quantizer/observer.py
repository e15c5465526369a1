"""Chooses limits of a tensor with the smallest squared error.

Values outside are clipped, values inside get finer steps.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torchao.quantization.pt2e import MinMaxObserver

BINS = 4096
"""Bins of the histogram, on both sides of 0.

A tensor of one sign has at least a quarter of them.
"""
CANDIDATES = 256
"""Limits that are tried on each side of 0, as parts of the largest value there."""
SMALLEST = -100
LARGEST = 126
"""Exponents of the histogram's end: its bins have to be normal numbers of fp32."""


class _Clipping(NamedTuple):
    """Limits on one side of 0, and the squared error of values beyond each."""

    limits: Tensor
    errors: Tensor


class SquaredErrorObserver(MinMaxObserver):  # type: ignore[misc]
    """Counts values, and returns limits with the least clipping and rounding error.

    torchao's HistogramObserver looks for the same, step by step from both ends, which
    takes longer than calibration. Zeros have no error, so they do not count: after a
    relu they are half of all values.
    """

    counts: Tensor

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.register_buffer("counts", torch.zeros(BINS, dtype=torch.float64))
        self.exponent: int | None = None

    def get_extra_state(self) -> int | None:
        """Scale of the bins, stored with their counts in a state dictionary."""
        return self.exponent

    def set_extra_state(self, state: int | None) -> None:
        """See ``get_extra_state``."""
        self.exponent = state

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x``, after its values are counted.

        The histogram reaches to a power of two, so that it doubles by adding pairs of
        bins.
        """
        super().forward(x)
        most = max(abs(self.min_val.item()), abs(self.max_val.item()))
        if x.numel() and math.isfinite(most):
            values = x.detach().float()
            _, exponent = math.frexp(most)
            self._extend_to(min(max(exponent, SMALLEST), LARGEST))
            assert self.exponent is not None
            end = 2.0**self.exponent
            self.counts += torch.histc(values, BINS, -end, end)
            self.counts[BINS // 2] -= (values == 0).sum()
        return x

    def _extend_to(self, exponent: int) -> None:
        """Make the histogram end at 2**exponent, unless it ends later already."""
        if self.exponent is None:
            self.exponent = exponent
            return
        if exponent <= self.exponent:
            return
        # the old bins are added in groups; at least one group is left on each side of 0
        doublings = min(exponent - self.exponent, BINS.bit_length() - 2)
        inner = self.counts.view(-1, 2**doublings).sum(1)
        empty_bins = (BINS - len(inner)) // 2
        padded = torch.nn.functional.pad(inner, (empty_bins, empty_bins))
        self.counts.copy_(padded)
        self.exponent = exponent

    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        """Return scale and zero point."""
        low = self.min_val.item()
        high = self.max_val.item()
        if not self._has_histogram() or not low < high or not math.isfinite(high - low):
            return super().calculate_qparams()  # type: ignore[no-any-return]
        positive = self.counts[BINS // 2 :]
        negative = self.counts[: BINS // 2].flip(0)
        above = self._clipping(positive, max(high, 0.0))
        below = self._clipping(negative, max(-low, 0.0))
        # a row for each limit above 0, a column for each one below
        widths = above.limits[:, None] + below.limits
        steps = widths / (self.quant_max - self.quant_min)
        # a value between steps has a mean squared error of step**2 / 12; clipped values
        # count here, too, because they are few
        rounding_errors = self.counts.sum() * steps.square() / 12
        errors = above.errors[:, None] + below.errors + rounding_errors
        row, column = divmod(int(errors.argmin()), len(below.limits))
        least = torch.tensor(-below.limits[column].item(), dtype=torch.float32)
        most = torch.tensor(above.limits[row].item(), dtype=torch.float32)
        return self._calculate_qparams(least, most)  # type: ignore[no-any-return]

    def _has_histogram(self) -> bool:
        """Return whether values were counted, and none beyond the histogram's end."""
        return self.exponent is not None and self.exponent != LARGEST

    def _clipping(self, counts: Tensor, most: float) -> _Clipping:
        """Return limits on one side of 0, and the squared error of clipping at each.

        ``counts`` are the bins from 0 outwards, and ``most`` is the largest value.
        """
        if most == 0:
            zero = torch.zeros(1, dtype=torch.float64)
            return _Clipping(zero, zero)
        assert self.exponent is not None
        width = 2.0**self.exponent / len(counts)
        parts = torch.arange(1, CANDIDATES + 1, dtype=torch.float64)
        limits = most * parts / CANDIDATES
        centres = (torch.arange(len(counts)) + 0.5) * width
        moments = torch.stack([counts, counts * centres, counts * centres.square()])
        # sums over each bin and all bins beyond it: of counts, centres and squares
        sums = moments.flip(1).cumsum(1).flip(1)
        sums = torch.nn.functional.pad(sums, (0, 1))
        # the first bin with a centre beyond each limit
        first = (limits / width).round().long().clamp_max(len(counts))
        count, total, squares = sums[:, first]
        # the sum of (value - limit)**2 over the clipped values
        errors = squares - 2 * limits * total + limits.square() * count
        return _Clipping(limits, errors.clamp_min(0))

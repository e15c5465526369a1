"""Chooses limits of a tensor with the smallest squared error.

Values outside are clipped, values inside get finer steps.
"""

from __future__ import annotations

import math
from typing import Any

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


class SquaredErrorObserver(MinMaxObserver):  # type: ignore[misc]
    """Counts values, and returns limits with the least clipping and rounding error.

    torchao's HistogramObserver looks for the same, step by step from both ends, which
    takes longer than calibration. Zeros have no error, so they do not count: behind a
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
        """Returns ``x``.

        The histogram reaches to a power of two, so that it doubles by adding pairs of
        bins.
        """
        super().forward(x)
        most = max(abs(self.min_val.item()), abs(self.max_val.item()))
        if x.numel() and math.isfinite(most):
            values = x.detach().float()
            self._reach(min(max(math.frexp(most)[1], SMALLEST), LARGEST))
            assert self.exponent is not None
            end = 2.0**self.exponent
            self.counts += torch.histc(values, BINS, -end, end)
            self.counts[BINS // 2] -= (values == 0).sum()
        return x

    def _reach(self, exponent: int) -> None:
        """Make the histogram end at 2**exponent, if it ended before."""
        if self.exponent is not None and exponent > self.exponent:
            # two bins are left at least
            merged = 2 ** min(exponent - self.exponent, BINS.bit_length() - 2)
            inner = self.counts.view(-1, merged).sum(1)
            beside = (BINS - len(inner)) // 2
            self.counts.copy_(torch.nn.functional.pad(inner, (beside, beside)))
        if self.exponent is None or exponent > self.exponent:
            self.exponent = exponent

    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        """Scale and zero point."""
        low = self.min_val.item()
        high = self.max_val.item()
        if (
            self.exponent is None
            or self.exponent == LARGEST
            or not low < high
            or not math.isfinite(high - low)
        ):
            return super().calculate_qparams()  # type: ignore[no-any-return]
        positive = self.counts[BINS // 2 :]
        negative = self.counts[: BINS // 2].flip(0)
        tops, above = self._clipped(positive, max(high, 0.0))
        bottoms, below = self._clipped(negative, max(-low, 0.0))
        steps = (tops[:, None] + bottoms) / (self.quant_max - self.quant_min)
        # clipped values count as rounded, too: they are few
        errors = above[:, None] + below + self.counts.sum() * steps.square() / 12
        top, bottom = divmod(int(errors.argmin()), len(bottoms))
        limits = (
            torch.tensor(v, dtype=torch.float32)
            for v in (-bottoms[bottom].item(), tops[top].item())
        )
        return self._calculate_qparams(*limits)  # type: ignore[no-any-return]

    def _clipped(self, counts: Tensor, most: float) -> tuple[Tensor, Tensor]:
        """Return limits on one side of 0 with the squared error beyond each.

        The bins are ordered outwards.
        """
        if most == 0:
            return torch.zeros(1, dtype=torch.float64), torch.zeros(
                1, dtype=torch.float64
            )
        assert self.exponent is not None
        width = 2.0**self.exponent / len(counts)
        limits = (
            most * torch.arange(1, CANDIDATES + 1, dtype=torch.float64) / CANDIDATES
        )
        centres = (torch.arange(len(counts)) + 0.5) * width
        # sums over the bins with a centre beyond a limit: of 1, of the centre and of
        # its square
        first = (limits / width).round().long().clamp_max(len(counts))
        moments = torch.stack([counts, counts * centres, counts * centres.square()])
        beyond = torch.nn.functional.pad(moments.flip(1).cumsum(1).flip(1), (0, 1))[
            :, first
        ]
        error = beyond[2] - 2 * limits * beyond[1] + limits.square() * beyond[0]
        return limits, error.clamp_min(0)

"""Clamps of quantized values.

They become clamps of the integers when a quantize operator gives the quantization.
"""

from __future__ import annotations

import math

import torch

from ..builder import Tosa
from ..lazy.lazy_values import Clamped, Lazy
from ..registry import lowers

aten = torch.ops.aten
inf = math.inf


def between(x: Lazy, low: float | None, high: float | None) -> Lazy:
    """Return x clamped to ``low`` .. ``high``; None means no limit.

    If ``low`` is above ``high``, every element becomes ``high``, as in torch.
    """
    lower = -inf if low is None else float(low)
    upper = inf if high is None else float(high)
    return Clamped(x, min(lower, upper), upper)


@lowers(aten.relu.default, on=Lazy)
def relu(t: Tosa, self: Lazy) -> Lazy:
    """[*S] -> [*S]"""
    return between(self, 0, None)


@lowers(aten.relu6.default, on=Lazy)
def relu6(t: Tosa, self: Lazy) -> Lazy:
    """[*S] -> [*S]"""
    return between(self, 0, 6)


@lowers(
    aten.clamp.default,
    aten.clip.default,
    aten.clamp_min.default,
    aten.clamp_max.default,
    on=Lazy,
)
def clamp(
    t: Tosa, self: Lazy, min: float | None = None, max: float | None = None
) -> Lazy:
    """[*S] -> [*S]"""
    return between(self, min, max)


@lowers(aten.hardtanh.default, on=Lazy)
def hardtanh(t: Tosa, self: Lazy, min_val: float, max_val: float) -> Lazy:
    """[*S] -> [*S]"""
    return between(self, min_val, max_val)

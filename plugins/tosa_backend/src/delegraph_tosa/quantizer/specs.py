"""Specs of tensors for torchao: type, limits and observer.

torchao shares an observer between two uses of a tensor if both have the same spec
object. So each spec is made once, by cached functions.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch.fx import Node
from torchao.quantization.pt2e import (
    FakeQuantize,
    MinMaxObserver,
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
    PerChannelMinMaxObserver,
)
from torchao.quantization.pt2e.quantizer import (
    DerivedQuantizationSpec,
    FixedQParamsQuantizationSpec,
    QuantizationSpec,
    QuantizationSpecBase,
)

from .observer import SquaredErrorObserver
from .settings import Precision

aten = torch.ops.aten
EPS = 2.0**-16
"""The smallest scale."""
FIXED = {
    aten.softmax.int: (0, 1),
    aten._softmax.default: (0, 1),
    aten.sigmoid.default: (0, 1),
    aten.hardsigmoid.default: (0, 1),
    aten.tanh.default: (-1, 1),
}
"""Limits of results that do not depend on calibration."""


@cache
def activation(precision: Precision, qat: bool) -> QuantizationSpec:
    """Return the spec of a tensor that is computed."""
    integers = _integers(precision)
    settings = {
        "dtype": precision.activations,
        "quant_min": integers.low,
        "quant_max": integers.high,
        "qscheme": integers.scheme,
    }
    if qat:
        made = FakeQuantize.with_args(
            observer=MovingAverageMinMaxObserver, eps=EPS, **settings
        )
    elif precision.observer == "histogram":
        made = SquaredErrorObserver.with_args(eps=EPS)
    else:
        made = MinMaxObserver.with_args(eps=EPS)
    return QuantizationSpec(observer_or_fake_quant_ctr=made, **settings)


class _Integers(NamedTuple):
    """The integers of activations: the smallest, the largest, and their scheme."""

    low: int
    high: int
    scheme: torch.qscheme


def _integers(precision: Precision) -> _Integers:
    """Return the integers of activations.

    int16 is symmetric: TOSA's int16 has no zero points.
    """
    if precision.activations is torch.int8:
        return _Integers(-128, 127, torch.per_tensor_affine)
    return _Integers(-32767, 32767, torch.per_tensor_symmetric)


@cache
def weight(precision: Precision, axis: int, qat: bool) -> QuantizationSpec:
    """Return the spec of a weight with output channels on ``axis``.

    It is symmetric, so it does not use the lowest integer.
    """
    high = 2 ** (precision.weight_bits - 1) - 1
    settings: dict[str, Any] = {
        "dtype": torch.int8,
        "quant_min": -high,
        "quant_max": high,
        "qscheme": torch.per_tensor_symmetric,
    }
    observer: Any = MovingAverageMinMaxObserver if qat else MinMaxObserver
    if precision.per_channel:
        observer = PerChannelMinMaxObserver
        if qat:
            observer = MovingAveragePerChannelMinMaxObserver
        settings["qscheme"] = torch.per_channel_symmetric
        settings["ch_axis"] = axis
    if qat:
        made = FakeQuantize.with_args(observer=observer, eps=EPS, **settings)
    else:
        made = observer.with_args(eps=EPS)
    return QuantizationSpec(observer_or_fake_quant_ctr=made, **settings)


def bias(
    precision: Precision, x: Node, weight: Node, user: Node, groups: int = 1
) -> QuantizationSpecBase | None:
    """Return the spec of a bias: int32, scaled by the product of the other scales.

    With this scale, a bias is added to sums without rounding. With int16, sums have 48
    bits; the lowering rounds that bias itself. ``groups`` is how often the scales of
    the weight's channels are repeated: the weight of a transposed convolution has only
    the channels of one group.
    """
    if precision.activations is torch.int16:
        return None

    def product(observers: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the scales and the zero points of the bias."""
        scale, scale_of_weight = (
            observer.calculate_qparams()[0] for observer in observers
        )
        steps = (scale * scale_of_weight).repeat(groups)
        return steps, torch.zeros_like(steps, dtype=torch.int32)

    scheme = torch.per_tensor_symmetric
    axis = None
    if precision.per_channel:
        scheme = torch.per_channel_symmetric
        axis = 0
    sources = [(x, user), (weight, user)]
    low = -(2**31)
    high = 2**31 - 1
    return DerivedQuantizationSpec(
        sources, product, torch.int32, low, high, scheme, axis
    )


def fixed(precision: Precision, target: Any) -> QuantizationSpecBase | None:
    """Return the spec of a result with known limits, or None."""
    if target not in FIXED:
        return None
    low, high, scheme = _integers(precision)
    least, most = FIXED[target]
    if precision.activations is torch.int16:
        scale = 2.0**-15
        zero_point = 0
    else:
        scale = (most - least) / 256
        zero_point = low - round(least / scale)
    return FixedQParamsQuantizationSpec(
        precision.activations, scale, zero_point, low, high, scheme
    )

"""Specs of tensors for torchao: type, limits and observer.

One object for each kind of tensor. torchao shares an observer between two uses of a
tensor if both have the same spec, so each is made once.
"""

from __future__ import annotations

from functools import cache
from typing import Any

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
    """Of a tensor that is computed."""
    low, high, scheme = _limits(precision)
    settings = {
        "dtype": precision.activations,
        "quant_min": low,
        "quant_max": high,
        "qscheme": scheme,
    }
    observer: Any = (
        SquaredErrorObserver if precision.observer == "histogram" else MinMaxObserver
    )
    if qat:
        made = FakeQuantize.with_args(
            observer=MovingAverageMinMaxObserver, eps=EPS, **settings
        )
    else:
        made = observer.with_args(eps=EPS)
    return QuantizationSpec(observer_or_fake_quant_ctr=made, **settings)


def _limits(precision: Precision) -> tuple[int, int, torch.qscheme]:
    """int16 is symmetric: TOSA's int16 has no zero points."""
    if precision.activations is torch.int8:
        return -128, 127, torch.per_tensor_affine
    return -32767, 32767, torch.per_tensor_symmetric


@cache
def weight(precision: Precision, axis: int, qat: bool) -> QuantizationSpec:
    """Return the spec of a weight with output channels on ``axis``.

    Symmetric, and without the lowest integer.
    """
    high = 2 ** (precision.weight_bits - 1) - 1
    settings: dict[str, Any] = {
        "dtype": torch.int8,
        "quant_min": -high,
        "quant_max": high,
    }
    observer: Any = MovingAverageMinMaxObserver if qat else MinMaxObserver
    settings["qscheme"] = torch.per_tensor_symmetric
    if precision.per_channel:
        observer = (
            MovingAveragePerChannelMinMaxObserver if qat else PerChannelMinMaxObserver
        )
        settings |= {"qscheme": torch.per_channel_symmetric, "ch_axis": axis}
    made = (
        FakeQuantize.with_args(observer=observer, eps=EPS, **settings)
        if qat
        else observer.with_args(eps=EPS)
    )
    return QuantizationSpec(observer_or_fake_quant_ctr=made, **settings)


def bias(
    precision: Precision, x: Node, weight: Node, user: Node, groups: int = 1
) -> QuantizationSpecBase | None:
    """Spec of a bias: int32 in the product of the other scales, so nothing rounds.

    With int16, sums have 48 bits; the lowering rounds that bias itself. ``groups``: how
    often the scales of the weight's channels are repeated, for transposed convolutions,
    with the channels of one group in its weight.
    """
    if precision.activations is torch.int16:
        return None

    def product(observers: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        scale, of_weight = (observer.calculate_qparams()[0] for observer in observers)
        steps = (scale * of_weight).repeat(groups)
        return steps, torch.zeros_like(steps, dtype=torch.int32)

    scheme, axis = (
        (torch.per_channel_symmetric, 0)
        if precision.per_channel
        else (torch.per_tensor_symmetric, None)
    )
    sources = [(x, user), (weight, user)]
    return DerivedQuantizationSpec(
        sources, product, torch.int32, -(2**31), 2**31 - 1, scheme, axis
    )


def fixed(precision: Precision, target: Any) -> QuantizationSpecBase | None:
    """Return the spec of a result with known limits, or None."""
    if target not in FIXED:
        return None
    low, high, _ = _limits(precision)
    least, most = FIXED[target]
    if precision.activations is torch.int16:
        scale = 2.0**-15
        zero_point = 0
    else:
        scale = (most - least) / 256
        zero_point = low - round(least / scale)
    return FixedQParamsQuantizationSpec(
        precision.activations, scale, zero_point, low, high, _limits(precision)[2]
    )

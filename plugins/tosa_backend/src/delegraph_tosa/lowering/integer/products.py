"""Convolutions and matrix products of integers: the rules for floats, on a builder that sums in int32 or int48.

A sum stands for its product of scales, and waits for the quantize that makes it one RESCALE.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ...evaluate import materialize
from ...ir import operators as tosa
from ...ir.graph import Array, Deferred, Operator, Value
from ...ir.types import ARRAY_DTYPES, DType, Type
from ..builder import Operand, Shape, Tosa
from ..lazy import Lazy, Scaled, operand
from ..quantization import Scale, multipliers
from ..registry import RULES, lowers_quantized

aten = torch.ops.aten
WIDE = {DType.INT8: DType.INT32, DType.INT16: DType.INT48}
"""What products of activations are summed in."""
PRODUCT_BITS = 22
"""Bits of an int16 times an int8, beside the sign."""


class Accumulating(Tosa):
    """The builder ``t``, with operands that have zero points, and sums of integers.

    What is computed at run time has the zero point ``computed``, constants have ``constant``. Padding is that, too.
    """

    dropped: int | None = None
    """Low bits that sums of int48 have lost."""

    def __init__(self, t: Tosa, dtype: DType, computed: int, constant: int = 0) -> None:
        self.__dict__.update(t.__dict__)
        self.sums, self._computed, self._constant = dtype, computed, constant

    def zero(self, value: Value) -> Value:
        return self.constant(self._zero_point(value), value.dtype)

    def _zero_point(self, value: Value) -> int:
        return self._computed if value.constant is None else self._constant

    def pad(self, x: Value, padding: Sequence[int], number: Operand = 0) -> Value:
        return super().pad(x, padding, self._zero_point(x) if number == 0 else number)

    def expect_one_type(self, what: str, *values: Value | None) -> None:
        """Types are those of the rules below, which give a bias in the type of the sums."""

    def _convolution(self, cls: type[Operator], x: Value, weight: Value, *settings: Any) -> Value:
        terms = math.prod(weight.shape[:2] if cls is tosa.DEPTHWISE_CONV2D else weight.shape[1:])
        return self._narrow_sums(super()._convolution(cls, x, weight, *settings), terms)

    def transpose_conv2d(self, x: Value, weight: Value, bias: Value, out_pad: Shape, stride: Shape) -> Value:
        sums = super().transpose_conv2d(x, weight, bias, out_pad, stride)
        return self._narrow_sums(sums, math.prod(weight.shape[1:]))

    def _narrow_sums(self, sums: Value, terms: int) -> Value:
        """int48, which nothing but RESCALE takes, as int32 without the bits that do not fit.

        RESCALE by another number than a power of two has 15 bits of it, which is too little for int16.
        """
        if sums.dtype is not DType.INT48:
            return sums
        dropped = max(0, math.ceil(math.log2(terms)) + PRODUCT_BITS - 29)
        self.require(self.dropped in (None, dropped), "its sums have different lengths")
        self.dropped = dropped
        multiplier, shift = multipliers(self, Scale(2.0**-dropped), 15)
        return self.rescale(sums, multiplier, shift, 0, 0, DType.INT32)

    def no_bias(self, x: Value) -> Value:
        return self.constant(0, self.sums)

    def accumulator(self, x: Value) -> DType:
        return self.sums

    def matmul(self, left: Value, right: Value) -> Value:
        sums = self.emit(tosa.MATMUL, (left, right, self.zero(left), self.zero(right)), dtype=self.sums)
        return self._narrow_sums(sums, left.shape[2])


def _summed(
    t: Tosa, overload: Any, x: Scaled, weight: Scaled, bias: Value | None, *settings: Any
) -> tuple[Value, Scale]:
    """The sums of the rule for floats, and what one step of them is."""
    sums = WIDE[x.q.dtype]
    scale = x.scale.times(weight.scale)
    inside = Accumulating(t, sums, x.zero_point, weight.zero_point)
    function = RULES[overload].function
    y = function(inside, x.q, weight.q, bias_in_steps(t, bias, scale, sums), *settings)
    return y, scale.over(2.0 ** -(inside.dropped or 0))


def bias_in_steps(t: Tosa, bias: Value | None, scale: Scale, sums: DType) -> Value | None:
    """A constant bias [O], quantized or not, in steps of ``scale``; computed when the file is written."""
    if bias is None:
        return None
    t.require(bias.constant is not None, "its bias is computed at run time")
    most = 2 ** (31 if sums is DType.INT32 else 47) - 1

    def load() -> Array:
        steps = np.rint(_real_elements(bias) / scale.elements())
        limited: Array = np.clip(steps, -most, most).astype(ARRAY_DTYPES[sums])
        return limited

    made: Value = t.once(("bias", bias, scale, sums), lambda: Value(Type(bias.shape, sums), Deferred(load)))
    return made


def _real_elements(value: Value) -> Array:
    """The elements of a constant [O], float64."""
    if not isinstance(value, Scaled):
        return materialize(value).astype(np.float64)
    return (materialize(value.q).astype(np.float64) - value.zero_point) * value.scale.elements()


def _constant_weight(t: Tosa, weight: Value, axis: int) -> Scaled:
    """A quantized weight whose channels, if it has scales for them, lie on ``axis``."""
    found = operand(t, weight, "its weight")
    t.require(found.axis in (None, axis), f"its weight has scales along axis {found.axis}, not {axis}")
    t.require(found.constant is not None, "its weight is computed at run time")
    return found


def _convolves(*overloads: Any) -> None:
    for overload in overloads:

        def convolved(
            t: Tosa, input: Value, weight: Value, bias: Value | None, *settings: Any, of: Any = overload
        ) -> Lazy:
            """input [N,C,*S], weight [O,C/groups,*K], bias [O] -> [N,O,*S']"""
            x, w = operand(t, input, "its input"), _constant_weight(t, weight, 0)
            y, scale = _summed(t, of, x, w, bias, *settings)
            return Scaled(y, scale, axis=y.rank - (w.rank - 1))

        lowers_quantized(overload)(convolved)


_convolves(
    aten.conv1d.default, aten.conv1d.padding, aten.conv2d.default, aten.conv2d.padding, aten.conv3d.default,
    aten.conv3d.padding,
)  # fmt: skip


@lowers_quantized(aten.linear.default)
def linear(t: Tosa, input: Value, weight: Value, bias: Value | None) -> Lazy:
    """input [*S,I], weight [O,I], bias [O] -> [*S,O]"""
    x, w = operand(t, input, "its input"), _constant_weight(t, weight, 0)
    y, scale = _summed(t, aten.linear.default, x, w, bias)
    return Scaled(y, scale, axis=y.rank - 1)

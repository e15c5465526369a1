"""Convolutions and matrix products of integers: the rules for floats, on a builder that sums in int32 or int48.

A sum stands for its product of scales, and waits for the quantize that makes it one RESCALE.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from ...evaluate import materialize
from ...ir import operators as tosa
from ...ir.graph import Array, Deferred, Operator, Value
from ...ir.sizes import greatest
from ...ir.types import ARRAY_DTYPES, DType, Type
from ..builder import Operand, Shape, Tosa
from ..lazy.quantization import Scale, multipliers
from ..lazy.values import Lazy, Scaled, operand, rescale
from ..ranges.ranges import inside, range_of
from ..registry import lowering_of, lowers
from ..torch_values.types import refused
from .sums import Shifted, addend, aligned, times

aten = torch.ops.aten
WIDE = {DType.INT8: DType.INT32, DType.INT16: DType.INT48}
"""What products of activations are summed in."""


class Accumulating(Tosa):
    """The builder ``t``, with operands that have zero points, and sums of integers.

    ``left`` and ``right`` are the zero points of the operands of a product. Padding is the zero point of what is
    padded: that of the right operand for ``weight``, and for all that is made of it.
    """

    unit: Scale = Scale(1.0)
    """Steps of the sums in one of the results: a power of two, where sums of int48 have lost low bits."""
    terms: int | None = None

    def __init__(
        self, t: Tosa, dtype: DType, left: int, right: int, weight: Value | None = None, bias: Value | None = None
    ) -> None:
        self.__dict__.update(t.__dict__)
        self.sums, self._left, self._right, self._bias = dtype, left, right, bias
        self._of_weight = set() if weight is None else {weight}

    def emit(self, cls: type[Operator], inputs: Sequence[Value], fold: bool = True, **attributes: Any) -> Value:
        result = super().emit(cls, inputs, fold, **attributes)
        if inputs[0] in self._of_weight:
            self._of_weight.add(result)
        return result

    def zero(self, value: Value) -> Value:
        return self.constant(self._left, value.dtype)

    def zeros(self, left: Value, right: Value) -> tuple[Value, Value]:
        return self.constant(self._left, left.dtype), self.constant(self._right, right.dtype)

    def pad(self, x: Value, padding: Sequence[int], number: Operand = 0) -> Value:
        zero_point = self._right if x in self._of_weight else self._left
        return super().pad(x, padding, zero_point if number == 0 else number)

    def expect_one_type(self, what: str, *values: Value | None) -> None:
        """Types are those of the rules below, which give a bias in the type of the sums."""

    def _convolution(self, cls: type[Operator], x: Value, weight: Value, *settings: Any) -> Value:
        terms = math.prod(weight.shape[:2] if cls is tosa.DEPTHWISE_CONV2D else weight.shape[1:])
        return self._narrow_sums(super()._convolution(cls, x, weight, *settings), terms, x, weight)

    def transpose_conv2d(self, x: Value, weight: Value, bias: Value, out_pad: Shape, stride: Shape) -> Value:
        sums = super().transpose_conv2d(x, weight, bias, out_pad, stride)
        return self._narrow_sums(sums, math.prod(weight.shape[1:]), x, weight)

    def _narrow_sums(self, sums: Value, terms: int, left: Value, right: Value) -> Value:
        """int48, which nothing but RESCALE takes, as int32 without the bits that do not fit.

        RESCALE by another number than a power of two has 15 bits of it, which is too little for int16.
        """
        if sums.dtype is not DType.INT48:
            return self._bounded(sums, terms, left, right)
        self.require(self.terms in (None, terms), "its sums have different lengths")
        self.terms, bits = terms, math.ceil(math.log2(greatest(terms))) + _bits(left) + _bits(right)
        self.require(bits < 48, f"sums of up to {greatest(terms)} products have more than 48 bits")
        products = 2.0**bits
        if self._bias is None:
            self.unit = Scale(_unit(products))
            return self._bounded(self._rescaled(sums, Scale(1 / self.unit.factor)), terms, left, right)
        up, down = _unit_of(self._bias, products, 1), _unit_of(self._bias, products, -1)
        self.unit = Scale(1.0, (up,))
        return self._rescaled(sums, Scale(1.0, (down,)))

    def _bounded(self, sums: Value, terms: int, left: Value, right: Value) -> Value:
        """The sums, with the range of so many products and no bias."""
        most = greatest(terms) * _farthest(left, self._left) * _farthest(right, self._right) / self.unit.factor
        sums.range = (-math.ceil(most), math.ceil(most)) if most < 1 << 31 and self._bias is None else None
        return sums

    def _rescaled(self, sums: Value, ratio: Scale) -> Value:
        return self.rescale(sums, *multipliers(self, ratio, 15), 0, 0, DType.INT32)

    def no_bias(self, x: Value) -> Value:
        return self.constant(0, self.sums)

    def accumulator(self, x: Value) -> DType:
        return self.sums

    def matmul(self, left: Value, right: Value) -> Value:
        sums = self.emit(tosa.MATMUL, (left, right, *self.zeros(left, right)), dtype=self.sums)
        return self._narrow_sums(sums, left.shape[2], left, right)


def _summed(
    t: Tosa, overload: Any, x: Scaled, weight: Scaled, bias: Value | None, *settings: Any
) -> tuple[Value, Scale]:
    """The sums of the rule for floats, and what one step of them is."""
    sums = WIDE[x.q.dtype]
    scale = x.scale.times(weight.scale)
    steps = bias_in_steps(t, bias, scale, sums)
    kernel = _as_int4(t, weight.q) if _fits_int4(t, x, weight) else weight.q
    building = Accumulating(t, sums, x.zero_point, weight.zero_point, kernel, steps)
    y = lowering_of(overload)(building, x.q, kernel, steps, *settings)
    return y, scale.times(building.unit)


def _fits_int4(t: Tosa, x: Scaled, weight: Scaled) -> bool:
    """Whether a constant weight can be of int4, which has no zero points, in a product with ``x``."""
    possible = "int4" in t.spec.extensions and x.q.dtype is DType.INT8 and weight.constant is not None
    return possible and weight.zero_point == 0 and inside(range_of(weight.q), INT4)


def _bits(value: Value) -> int:
    """How many bits its integers have, beside the sign; the least one counts as the greatest."""
    low, high = range_of(value)
    return (max(-low, high, 1) - 1).bit_length()


def _farthest(value: Value, zero_point: int) -> int:
    """The largest distance of its integers from the zero point."""
    return max(abs(end - zero_point) for end in range_of(value))


def _unit(largest: float) -> float:
    """The least power of two in steps of which sums of int48 up to ``largest`` are below 2**30."""
    return 2.0 ** max(0, math.ceil(math.log2(largest)) - 29)


def _unit_of(bias: Value, products: float, sign: int) -> Value:
    """That unit, or 1 / it, for sums of products and a bias, fp32 [1]; the bias is read when the file is written."""

    def load() -> Array:
        largest = products + float(np.abs(materialize(bias)).max())
        return np.array([_unit(largest) ** sign], np.float32)

    return Value(Type((1,), DType.FP32), Deferred(load))


def bias_in_steps(t: Tosa, bias: Value | None, scale: Scale, sums: DType) -> Value | None:
    """A constant bias [O], quantized or not, in steps of ``scale``; computed when the file is written."""
    if bias is None:
        return None
    t.require(bias.constant is not None, "its bias is computed at run time")
    most = 2 ** (31 if sums is DType.INT32 else 47) - 1

    def load() -> Array:
        steps = np.rint(real_elements(bias) / scale.elements())
        largest = np.abs(steps).max()
        if not largest <= most:  # or NaN
            raise refused(f"a bias of {largest:.3g} steps of the product's scale does not fit into {sums}")
        found: Array = steps.astype(ARRAY_DTYPES[sums])
        return found

    return t.once(("bias", bias, scale, sums), lambda: deferred(Type(bias.shape, sums), load, most))  # type: ignore[no-any-return]


def deferred(type: Type, load: Callable[[], Array], most: int) -> Value:
    """An integer constant that is computed when the file is written, from ``-most`` to ``most``."""
    made = Value(type, Deferred(load))
    made.range = (-most, most)
    return made


def real_elements(value: Value) -> Array:
    """The elements of a constant [O], or of one with a single scale, float64."""
    if not isinstance(value, Scaled):
        return materialize(value).astype(np.float64)
    return (materialize(value.q).astype(np.float64) - value.zero_point) * value.scale.elements()


def _weight(t: Tosa, weight: Value, axis: int) -> Scaled:
    """A quantized weight whose channels, if it has scales for them, lie on ``axis``."""
    found = operand(t, weight, "its weight")
    t.require(found.axis in (None, axis), f"its weight has scales along axis {found.axis}, not {axis}")
    return found


def _kernel(t: Tosa, weight: Value, axis: int) -> Scaled:
    """The same for a convolution, of which TOSA has no weights of int16."""
    found = _weight(t, weight, axis)
    t.require(found.q.dtype is DType.INT8, f"TOSA convolves by weights of int8 and int4 only, not {found.q.dtype}")
    return found


INT4 = (-7, 7)
"""Integers of int4 (specification: Supported Number Formats), of which -8 is none."""


def _as_int4(t: Tosa, weight: Value) -> Value:
    """A constant of int8 that takes half a byte each in the file."""

    def load() -> Array:
        elements = materialize(weight)
        if np.abs(elements).max(initial=0) > INT4[1]:
            raise refused("a weight that is quantized to int4 has integers beyond -7 to 7")
        return elements

    made: Value = t.once(("int4", weight), lambda: Value(Type(weight.shape, DType.INT4), Deferred(load)))
    return made


def _convolution(t: Tosa, overload: Any, x: Scaled, weight: Scaled, bias: Value | None, *settings: Any) -> Lazy:
    """A bias that is computed at run time is added to the sums."""
    folded = bias if bias is None or bias.constant is not None else None
    y, scale = _summed(t, overload, x, weight, folded, *settings)
    axis = y.rank - (weight.rank - 1)
    return _plus(t, Scaled(y, scale, axis=axis), None if folded is bias else bias, axis)


def _plus(t: Tosa, y: Scaled, bias: Value | None, axis: int) -> Lazy:
    """y + bias [O], whose elements belong to the indices of ``axis``"""
    if bias is None:
        return y
    t.require(y.axis is None, "its bias is no part of the sums, because the weight has a scale for each channel")
    shape = (*bias.shape, *(1,) * (y.rank - 1 - axis))
    if bias.constant is not None:
        load = partial(_as_floats, bias, shape)
        return Shifted(y, Value(Type(shape, DType.FP32), Deferred(load)), y.shape)
    (sums, steps), step = aligned(t, [addend(t, y), addend(t, bias)])
    return Scaled(t.add(sums, t.reshape(steps, shape)), Scale(step))


def _as_floats(value: Value, shape: Shape) -> Array:
    elements: Array = real_elements(value).astype(np.float32).reshape(shape)
    return elements


def _convolves(*overloads: Any) -> None:
    for overload in overloads:

        def convolved(
            t: Tosa, input: Value, weight: Value, bias: Value | None, *settings: Any, of: Any = overload
        ) -> Lazy:
            """input [N,C,*S], weight [O,C/groups,*K], bias [O] -> [N,O,*S']"""
            return _convolution(t, of, operand(t, input, "its input"), _kernel(t, weight, 0), bias, *settings)

        lowers(overload, on=Lazy)(convolved)


_convolves(
    aten.conv1d.default, aten.conv1d.padding, aten.conv2d.default, aten.conv2d.padding, aten.conv3d.default,
    aten.conv3d.padding,
)  # fmt: skip


def _multiplies(*overloads: Any) -> None:
    for overload in overloads:

        def multiplied(t: Tosa, self: Value, other: Value, of: Any = overload) -> Lazy:
            """[*B,L,K], [*B,K,M] -> [*B,L,M]; the right one may have a scale for each column"""
            return product(t, of, operand(t, self, "the left matrix"), operand(t, other, "the right matrix"))

        lowers(overload, on=Lazy)(multiplied)


def product(t: Tosa, overload: Any, left: Scaled, right: Scaled) -> Scaled:
    """The sums of products of two matrices."""
    t.require(left.axis is None, f"the left matrix has scales along axis {left.axis}")
    columns = right.rank - 1
    t.require(right.axis in (None, columns), f"the right matrix has scales along axis {right.axis}, not {columns}")
    left, right = _widened(t, left, right), _widened(t, right, left)
    sums = WIDE[left.q.dtype]
    building = Accumulating(t, sums, left.zero_point, right.zero_point)
    y: Value = lowering_of(overload)(building, left.q, right.q)
    return Scaled(y, left.scale.times(right.scale).times(building.unit), axis=y.rank - 1)


def _widened(t: Tosa, x: Scaled, other: Scaled) -> Scaled:
    """int8 beside int16 as int16, without zero point."""
    if x.q.dtype is other.q.dtype or x.q.dtype is DType.INT16 or x.axis is not None:
        return x
    return Scaled(rescale(t, x, x.scale.factor, 0, DType.INT16), x.scale)


_multiplies(aten.matmul.default, aten.mm.default, aten.bmm.default)


def _spreads(*overloads: Any) -> None:
    for overload in overloads:

        def spread(
            t: Tosa, input: Value, weight: Value, bias: Value | None, *settings: Any, of: Any = overload
        ) -> Lazy:
            """input [N,C,*S], weight [C,O/groups,*K], bias [O] -> [N,O,*S']"""
            x, w = operand(t, input, "its input"), _kernel(t, weight, 1)
            every = Scaled(w.q, _of_groups(t, w.scale, settings[3]), w.zero_point, w.axis)
            return _convolution(t, of, x, every, bias, *settings)

        lowers(overload, on=Lazy)(spread)


def _of_groups(t: Tosa, scale: Scale, groups: int) -> Scale:
    """The scale of every channel, where each group has the same ones."""
    if scale.channels == 1:
        return scale
    return Scale(scale.factor, tuple([t.tile(v, (groups,)) if v.shape != (1,) else v for v in scale.tensors]))


_spreads(aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input)


@lowers(aten.baddbmm.default, on=Lazy)
def baddbmm(t: Tosa, self: Value, batch1: Value, batch2: Value, beta: float, alpha: float) -> Lazy:
    """self [B,L,M], batch1 [B,L,K], batch2 [B,K,M] -> [B,L,M]; beta * self + alpha * batch1 @ batch2"""
    left, right = operand(t, batch1, "the left matrix"), operand(t, batch2, "the right matrix")
    y = times(t, product(t, aten.bmm.default, left, right), alpha)
    if beta == 0:
        return y
    (sums, added), step = aligned(t, [addend(t, y), addend(t, times(t, self, beta))])
    return Scaled(t.add(sums, added), Scale(step))


@lowers(aten.addmm.default, on=Lazy)
def addmm(t: Tosa, self: Value, mat1: Value, mat2: Value, beta: float, alpha: float) -> Lazy:
    """self [M], mat1 [L,K], mat2 [K,M] -> [L,M]"""
    x, matrix = operand(t, mat1, "the left matrix"), operand(t, mat2, "the right matrix")
    t.require(beta == alpha == 1 and self.shape == mat2.shape[1:], "addmm with factors, or of a matrix, is not lowered")
    turned = Scaled(t.transpose(matrix.q, (1, 0)), matrix.scale, matrix.zero_point, 0 if matrix.axis == 1 else None)
    t.require(matrix.axis in (None, 1), f"the right matrix has scales along axis {matrix.axis}, not 1")
    return linear(t, x, turned, self)


@lowers(aten.linear.default, on=Lazy)
def linear(t: Tosa, input: Value, weight: Value, bias: Value | None) -> Lazy:
    """input [*S,I], weight [O,I], bias [O] -> [*S,O]"""
    x, w = operand(t, input, "its input"), _weight(t, weight, 0)
    in_sums = w.constant is not None or x.q.dtype is w.q.dtype is DType.INT8
    folded = bias if in_sums and (bias is None or bias.constant is not None) else None
    if w.constant is None:  # a MATMUL, whose operands have one type
        x, w = _widened(t, x, w), _widened(t, w, x)
    y, scale = _summed(t, aten.linear.default, x, w, folded)
    return _plus(t, Scaled(y, scale, axis=y.rank - 1), None if folded is bias else bias, y.rank - 1)

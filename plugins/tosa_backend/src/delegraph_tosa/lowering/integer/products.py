"""Convolves and multiplies integers: float rules on a builder that sums integers.

It sums in int32 or int48. The scale of these sums is the product of the operands'
scales. The next quantize operator makes one RESCALE of it.
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
from ...ir.dynamic_sizes import greatest
from ...ir.graph import Array, Deferred, Operator, Value
from ...ir.types import ARRAY_DTYPES, DType, Type
from ..builder import Operand, Shape, Tosa
from ..lazy.lazy_values import Lazy, Scaled, operand, rescale
from ..lazy.quantization import Scale, multipliers
from ..ranges.value_ranges import inside, range_of
from ..registry import lowering_of, lowers
from ..torch_values.tensor_types import refused
from .sums import Shifted, addend, aligned, times

aten = torch.ops.aten
WIDE = {DType.INT8: DType.INT32, DType.INT16: DType.INT48}
"""Type of the operands -> type in which TOSA sums their products."""


class Accumulating(Tosa):
    """A builder on which rules for floats make products of quantized integers.

    Products are summed in an integer type. The builder adds the zero points of their
    operands, which rules for floats do not know, and pads with them.
    """

    unit: Scale = Scale(1.0)
    """The scale of the results relative to the sums.

    It is a power of two if int48 loses low bits to become int32.
    """
    terms: int | None = None
    """The number of products in each sum of int48; None before the first one."""

    def __init__(
        self,
        t: Tosa,
        dtype: DType,
        left: int,
        right: int,
        weight: Value | None = None,
        bias: Value | None = None,
    ) -> None:
        """Create a builder that sums products in ``dtype`` and appends to ``t``.

        ``dtype`` is int32 or int48. ``left`` and ``right`` are the zero points of a
        product's operands. ``weight`` is the right operand, if the rule may pad it: it
        is padded with ``right``, any other value with ``left``. ``bias`` is the
        constant that is part of the sums, None if there is none.
        """
        # the same operators and constants as ``t``
        self.__dict__.update(t.__dict__)
        self.sums = dtype
        self._left = left
        self._right = right
        self._bias = bias
        self._of_weight = set() if weight is None else {weight}

    def emit(
        self,
        cls: type[Operator],
        inputs: Sequence[Value],
        fold: bool = True,
        **attributes: Any,
    ) -> Value:
        """Emit as the base class does, and note values computed from the weight."""
        result = super().emit(cls, inputs, fold, **attributes)
        if inputs[0] in self._of_weight:
            self._of_weight.add(result)
        return result

    def zero(self, value: Value) -> Value:
        """Return the zero point of the left operand as a constant [1]."""
        return self.constant(self._left, value.dtype)

    def zeros(self, left: Value, right: Value) -> tuple[Value, Value]:
        """Return the zero points of both operands of a product as constants [1]."""
        zero_of_left = self.constant(self._left, left.dtype)
        zero_of_right = self.constant(self._right, right.dtype)
        return zero_of_left, zero_of_right

    def pad(self, x: Value, padding: Sequence[int], number: Operand = 0) -> Value:
        """Pad as the base class does, but with the zero point, which means 0.0."""
        zero_point = self._right if x in self._of_weight else self._left
        return super().pad(x, padding, zero_point if number == 0 else number)

    def expect_one_type(self, what: str, *values: Value | None) -> None:
        """Check nothing: integer operands and the bias may differ in type."""

    def _convolution(
        self, cls: type[Operator], x: Value, weight: Value, *settings: Any
    ) -> Value:
        """Return the convolution of the base class with its sums as int32."""
        # the products in each sum: weight is [O,*K,C], or [KH,KW,C,M] if depthwise
        terms = math.prod(weight.shape[1:])
        if cls is tosa.DEPTHWISE_CONV2D:
            terms = math.prod(weight.shape[:2])
        sums = super()._convolution(cls, x, weight, *settings)
        return self._narrow_sums(sums, terms, x, weight)

    def transpose_conv2d(
        self, x: Value, weight: Value, bias: Value, out_pad: Shape, stride: Shape
    ) -> Value:
        """Return the convolution of the base class with its sums as int32."""
        sums = super().transpose_conv2d(x, weight, bias, out_pad, stride)
        terms = math.prod(weight.shape[1:])
        return self._narrow_sums(sums, terms, x, weight)

    def _narrow_sums(self, sums: Value, terms: int, left: Value, right: Value) -> Value:
        """Return the sums of ``terms`` products of ``left`` and ``right`` as int32.

        int32 stays as it is. No other operator takes int48, so a RESCALE divides it by a
        power of two, ``unit``, that makes it fit. Other divisors would be too coarse
        for int16 results: for int48 the multiplier of a RESCALE has 15 bits. Raises
        Unsupported if the sums may have more than 48 bits.
        """
        if sums.dtype is not DType.INT48:
            return self._bounded(sums, terms, left, right)
        self.refuse_unless(
            self.terms in (None, terms), "its sums have different lengths"
        )
        self.terms = terms
        bits_of_count = math.ceil(math.log2(greatest(terms)))
        bits = bits_of_count + _bits(left) + _bits(right)
        self.refuse_unless(
            bits < 48,
            f"sums of up to {greatest(terms)} products have more than 48 bits",
        )
        # the largest sum of products. The bias is not in it: it is read when the file
        # is written
        products = 2.0**bits
        if self._bias is None:
            self.unit = Scale(_unit(products))
            narrow = self._rescaled(sums, Scale(1 / self.unit.factor))
            return self._bounded(narrow, terms, left, right)
        up = _unit_with_bias(self._bias, products, exponent=1)
        down = _unit_with_bias(self._bias, products, exponent=-1)  # 1 / up
        self.unit = Scale(1.0, (up,))
        return self._rescaled(sums, Scale(1.0, (down,)))

    def _bounded(self, sums: Value, terms: int, left: Value, right: Value) -> Value:
        """Return ``sums`` after setting their range.

        They are sums of ``terms`` products of ``left`` and ``right``, in steps of
        ``unit``. The range is not known (None) if there is a bias, or if it exceeds 31
        bits.
        """
        distance_of_left = _largest_distance(left, self._left)
        distance_of_right = _largest_distance(right, self._right)
        most = greatest(terms) * distance_of_left * distance_of_right / self.unit.factor
        sums.range = None
        if most < 1 << 31 and self._bias is None:
            sums.range = (-math.ceil(most), math.ceil(most))
        return sums

    def _rescaled(self, sums: Value, ratio: Scale) -> Value:
        """Return int48 ``sums`` times ``ratio`` as int32, by a 15-bit RESCALE."""
        multiplier, shift = multipliers(self, ratio, 15)
        return self.rescale(
            sums, multiplier, shift, before=0, after=0, dtype=DType.INT32
        )

    def no_bias(self, x: Value) -> Value:
        """Return a bias of 0 in the type of the sums."""
        return self.constant(0, self.sums)

    def accumulator(self, x: Value) -> DType:
        """Return the type of the sums."""
        return self.sums

    def matmul(self, left: Value, right: Value) -> Value:
        """Return the sums of products of two matrices [B,L,K] and [B,K,M].

        The base class would sum in fp32.
        """
        operands = (left, right, *self.zeros(left, right))
        sums = self.emit(tosa.MATMUL, operands, dtype=self.sums)
        terms = left.shape[2]
        return self._narrow_sums(sums, terms, left, right)


def _sums_and_scale(
    t: Tosa,
    overload: Any,
    x: Scaled,
    weight: Scaled,
    bias: Value | None,
    *settings: Any,
) -> tuple[Value, Scale]:
    """Apply the float rule of ``overload`` to the integers of x, weight and bias.

    Returns the sums and their scale. ``bias`` is a constant, quantized or not, or None.
    ``settings`` are the operator's arguments after the bias.
    """
    dtype = WIDE[x.q.dtype]
    scale = x.scale.times(weight.scale)
    steps = bias_in_steps(t, bias, scale, dtype)
    kernel = weight.q
    if _fits_int4(t, x, weight):
        kernel = _as_int4(t, kernel)
    builder = Accumulating(t, dtype, x.zero_point, weight.zero_point, kernel, steps)
    float_rule = lowering_of(overload)
    y = float_rule(builder, x.q, kernel, steps, *settings)
    return y, scale.times(builder.unit)


def _fits_int4(t: Tosa, x: Scaled, weight: Scaled) -> bool:
    """Return whether ``weight`` may be stored as int4 for a product with ``x``.

    int4 has no zero point.
    """
    if "int4" not in t.spec.extensions or x.q.dtype is not DType.INT8:
        return False
    if weight.constant is None or weight.zero_point != 0:
        return False
    return inside(range_of(weight.q), INT4)


def _bits(value: Value) -> int:
    """Return the smallest n >= 0 with all integers of ``value`` in -2**n .. 2**n."""
    low, high = range_of(value)
    return (max(-low, high, 1) - 1).bit_length()


def _largest_distance(value: Value, zero_point: int) -> int:
    """Return the largest distance of an integer of ``value`` from the zero point."""
    return max(abs(end - zero_point) for end in range_of(value))


def _unit(largest: float) -> float:
    """Return the smallest power of two that scales ``largest`` below 2**30.

    It is at least 1.
    """
    return 2.0 ** max(0, math.ceil(math.log2(largest)) - 29)


def _unit_with_bias(bias: Value, products: float, exponent: int) -> Value:
    """Return ``_unit(products + largest |bias|) ** exponent``, fp32 [1].

    It is computed when the file is written.
    """

    def load() -> Array:
        """Return the unit, read from the bias when the file is written."""
        largest_bias = float(np.abs(materialize(bias)).max())
        # |product + bias| is at most the sum of both limits
        unit = _unit(products + largest_bias)
        return np.array([unit**exponent], np.float32)

    return Value(Type((1,), DType.FP32), Deferred(load))


def bias_in_steps(
    t: Tosa, bias: Value | None, scale: Scale, sums: DType
) -> Value | None:
    """Return a constant bias [O] as integers round(bias / scale) of the type ``sums``.

    None stays None. They are computed when the file is written, which raises
    Unsupported if one does not fit into the type.
    """
    if bias is None:
        return None
    t.refuse_unless(bias.constant is not None, "its bias is computed at run time")
    bits = 31 if sums is DType.INT32 else 47
    most = 2**bits - 1

    def load() -> Array:
        """Return the bias as integers.

        Raises Unsupported if one does not fit, or is NaN.
        """
        steps = np.rint(real_elements(bias) / scale.elements())
        largest = np.abs(steps).max()
        if not largest <= most:  # or NaN
            raise refused(
                f"a bias of {largest:.3g} steps of the product's scale does not fit"
                f" into {sums}"
            )
        integers: Array = steps.astype(ARRAY_DTYPES[sums])
        return integers

    steps: Value = t.once(
        ("bias", bias, scale, sums),
        lambda: deferred(Type(bias.shape, sums), load, most),
    )
    return steps


def deferred(type: Type, load: Callable[[], Array], most: int) -> Value:
    """Return an integer constant from ``load``, which runs when the file is written.

    Its elements are between -most and most.
    """
    constant = Value(type, Deferred(load))
    constant.range = (-most, most)
    return constant


def real_elements(value: Value) -> Array:
    """Return the real numbers of a constant [O], quantized or not, as float64.

    This reads the constant.
    """
    if not isinstance(value, Scaled):
        return materialize(value).astype(np.float64)
    integers = materialize(value.q).astype(np.float64)
    return (integers - value.zero_point) * value.scale.elements()


def _weight(t: Tosa, weight: Value, axis: int) -> Scaled:
    """Return ``weight`` as a quantized value.

    Raises Unsupported if it has scales along an axis other than ``axis``.
    """
    w = operand(t, weight, "its weight")
    is_along_axis = w.axis in (None, axis)
    t.refuse_unless(
        is_along_axis, f"its weight has scales along axis {w.axis}, not {axis}"
    )
    return w


def _kernel(t: Tosa, weight: Value, axis: int) -> Scaled:
    """Return the weight of a convolution as ``_weight`` does; it has to be int8."""
    w = _weight(t, weight, axis)
    t.refuse_unless(
        w.q.dtype is DType.INT8,
        f"TOSA convolves by weights of int8 and int4 only, not {w.q.dtype}",
    )
    return w


INT4 = (-7, 7)
"""The smallest and largest int4.

TOSA leaves -8 out (specification: Supported Number Formats).
"""


def _as_int4(t: Tosa, weight: Value) -> Value:
    """Return an int8 constant as int4, which takes half a byte for each element.

    Writing the file raises Unsupported for integers beyond INT4.
    """

    def load() -> Array:
        """Return the elements of the weight; they have to be in INT4."""
        elements = materialize(weight)
        if np.abs(elements).max(initial=0) > INT4[1]:
            raise refused(
                "a weight that is quantized to int4 has integers beyond -7 to 7"
            )
        return elements

    constant: Value = t.once(
        ("int4", weight), lambda: Value(Type(weight.shape, DType.INT4), Deferred(load))
    )
    return constant


def _convolution(
    t: Tosa,
    overload: Any,
    x: Scaled,
    weight: Scaled,
    bias: Value | None,
    *settings: Any,
) -> Lazy:
    """Return a convolution of quantized values.

    A constant bias is part of the operator; any other is added to its sums.
    """
    in_operator = bias
    added = None
    if bias is not None and bias.constant is None:
        in_operator = None
        added = bias
    y, scale = _sums_and_scale(t, overload, x, weight, in_operator, *settings)
    # the axis of the channels: 1, or 0 for an input without batch axis
    axis = y.rank - (weight.rank - 1)
    return _with_bias(t, Scaled(y, scale, axis=axis), added, axis)


def _with_bias(t: Tosa, y: Scaled, bias: Value | None, axis: int) -> Lazy:
    """Return y + bias, where ``bias`` [O] has a number for each element of ``axis``.

    A ``bias`` of None is no bias. Raises Unsupported for a bias if y has a scale for
    each channel.
    """
    if bias is None:
        return y
    t.refuse_unless(
        y.axis is None,
        "its bias is no part of the sums, because the weight has a scale for each"
        " channel",
    )
    axes_after = y.rank - 1 - axis
    shape = (*bias.shape, *(1,) * axes_after)
    if bias.constant is not None:
        load = partial(_real_elements_fp32, bias, shape)
        numbers = Value(Type(shape, DType.FP32), Deferred(load))
        return Shifted(y, numbers, y.shape)
    (sums, steps), step = aligned(t, [addend(t, y), addend(t, bias)])
    return Scaled(t.add(sums, t.reshape(steps, shape)), Scale(step))


def _real_elements_fp32(value: Value, shape: Shape) -> Array:
    """Return the real numbers of a constant, fp32, in ``shape``."""
    elements: Array = real_elements(value).astype(np.float32).reshape(shape)
    return elements


def _convolved(
    overload: Any,
    t: Tosa,
    input: Value,
    weight: Value,
    bias: Value | None,
    *settings: Any,
) -> Lazy:
    """input [N,C,*S], weight [O,C/groups,*K], bias [O] -> [N,O,*S']"""
    x = operand(t, input, "its input")
    kernel = _kernel(t, weight, axis=0)
    return _convolution(t, overload, x, kernel, bias, *settings)


for packet in (aten.conv1d, aten.conv2d, aten.conv3d):
    for overload in (packet.default, packet.padding):
        lowers(overload, on=Lazy)(partial(_convolved, overload))


def _multiplied(overload: Any, t: Tosa, *matrices: Value) -> Lazy:
    """[*B,L,K], [*B,K,M] -> [*B,L,M].

    The right matrix may have a scale for each column.
    """
    # their names differ between the operators
    left, right = matrices
    left_matrix = operand(t, left, "the left matrix")
    right_matrix = operand(t, right, "the right matrix")
    return product(t, overload, left_matrix, right_matrix)


def product(t: Tosa, overload: Any, left: Scaled, right: Scaled) -> Scaled:
    """Return the sums of a product of two quantized matrices.

    ``overload`` is the ATen operator. Raises Unsupported for scales of channels, other
    than one for each column of the right matrix.
    """
    t.refuse_unless(
        left.axis is None, f"the left matrix has scales along axis {left.axis}"
    )
    columns = right.rank - 1
    t.refuse_unless(
        right.axis in (None, columns),
        f"the right matrix has scales along axis {right.axis}, not {columns}",
    )
    x = _widened(t, left, other=right)
    y = _widened(t, right, other=left)
    builder = Accumulating(t, WIDE[x.q.dtype], x.zero_point, y.zero_point)
    sums: Value = lowering_of(overload)(builder, x.q, y.q)
    scale = x.scale.times(y.scale).times(builder.unit)
    return Scaled(sums, scale, axis=sums.rank - 1)


def _widened(t: Tosa, x: Scaled, other: Scaled) -> Scaled:
    """Return x as int16 without zero point if x is int8 and ``other`` is int16.

    Operands of MATMUL have one type. Otherwise returns x.
    """
    if x.q.dtype is other.q.dtype or x.q.dtype is DType.INT16 or x.axis is not None:
        return x
    return Scaled(rescale(t, x, x.scale.factor, 0, DType.INT16), x.scale)


for overload in (aten.matmul.default, aten.mm.default, aten.bmm.default):
    lowers(overload, on=Lazy)(partial(_multiplied, overload))


def _convolved_transposed(
    overload: Any,
    t: Tosa,
    input: Value,
    weight: Value,
    bias: Value | None,
    *settings: Any,
) -> Lazy:
    """input [N,C,*S], weight [C,O/groups,*K], bias [O] -> [N,O,*S']"""
    x = operand(t, input, "its input")
    w = _kernel(t, weight, axis=1)
    groups = settings[3]  # after stride, padding and output_padding
    # the weight has scales for the channels of one group
    scale = _scale_of_groups(t, w.scale, groups)
    kernel = Scaled(w.q, scale, w.zero_point, w.axis)
    return _convolution(t, overload, x, kernel, bias, *settings)


def _scale_of_groups(t: Tosa, scale: Scale, groups: int) -> Scale:
    """Return the scales of all output channels: a group's scales, once a group."""
    if scale.channels == 1:
        return scale
    tensors = [
        tensor if tensor.shape == (1,) else t.tile(tensor, (groups,))
        for tensor in scale.tensors
    ]
    return Scale(scale.factor, tuple(tensors))


for overload in (
    aten.conv_transpose1d.default,
    aten.conv_transpose2d.input,
    aten.conv_transpose3d.input,
):
    lowers(overload, on=Lazy)(partial(_convolved_transposed, overload))


@lowers(aten.baddbmm.default, on=Lazy)
def baddbmm(
    t: Tosa, self: Value, batch1: Value, batch2: Value, beta: float, alpha: float
) -> Lazy:
    """self [B,L,M], batch1 [B,L,K], batch2 [B,K,M] -> [B,L,M]; beta * self + alpha *
    batch1 @ batch2
    """
    left = operand(t, batch1, "the left matrix")
    right = operand(t, batch2, "the right matrix")
    y = times(t, product(t, aten.bmm.default, left, right), alpha)
    if beta == 0:
        return y
    products = addend(t, y)
    added = addend(t, times(t, self, beta))
    (left_term, right_term), step = aligned(t, [products, added])
    return Scaled(t.add(left_term, right_term), Scale(step))


@lowers(aten.addmm.default, on=Lazy)
def addmm(
    t: Tosa, self: Value, mat1: Value, mat2: Value, beta: float, alpha: float
) -> Lazy:
    """self [M], mat1 [L,K], mat2 [K,M] -> [L,M]"""
    x = operand(t, mat1, "the left matrix")
    matrix = operand(t, mat2, "the right matrix")
    t.refuse_unless(
        beta == alpha == 1 and self.shape == mat2.shape[1:],
        "addmm with factors, or of a matrix, is not lowered",
    )
    t.refuse_unless(
        matrix.axis in (None, 1),
        f"the right matrix has scales along axis {matrix.axis}, not 1",
    )
    transposed = t.transpose(matrix.q, (1, 0))
    axis = None if matrix.axis is None else 0
    weight = Scaled(transposed, matrix.scale, matrix.zero_point, axis)
    return linear(t, x, weight, self)


@lowers(aten.linear.default, on=Lazy)
def linear(t: Tosa, input: Value, weight: Value, bias: Value | None) -> Lazy:
    """input [*S,I], weight [O,I], bias [O] -> [*S,O]"""
    x = operand(t, input, "its input")
    w = _weight(t, weight, axis=0)
    # CONV2D takes a bias; MATMUL takes none, but for int8 the bias can be added to its
    # int32 sums
    takes_bias = w.constant is not None or x.q.dtype is w.q.dtype is DType.INT8
    in_operator = bias
    added = None
    if bias is not None and not (takes_bias and bias.constant is not None):
        in_operator = None
        added = bias
    if w.constant is None:
        # a MATMUL needs operands of one type: at most one of them is widened
        x = _widened(t, x, other=w)
        w = _widened(t, w, other=x)
    y, scale = _sums_and_scale(t, aten.linear.default, x, w, in_operator)
    axis = y.rank - 1
    return _with_bias(t, Scaled(y, scale, axis=axis), added, axis)

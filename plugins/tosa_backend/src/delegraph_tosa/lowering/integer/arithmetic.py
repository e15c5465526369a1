"""Sums, products and comparisons of quantized values.

A *lazy* operand is a real number that is known as integers with a scale; no operator
has computed it. For a call that is a function of one quantized value, these rules
return NotImplemented: the call becomes a TABLE.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial, reduce
from typing import Any

import torch
from delegraph.errors import Unsupported

from ...ir.dynamic_sizes import greatest, is_dynamic
from ...ir.graph import Value
from ...ir.types import DType
from ..aten.activation import leaky_relu, slopes_shape
from ..aten.reduce import axes_of, reduced
from ..aten.shape import slice_axis
from ..builder import Tosa
from ..lazy.lazy_values import BITS, Joined, Lazy, Scaled, limit, trial
from ..lazy.quantization import Scale
from ..registry import lowering_of, lowers
from .affine import multiply_add, sloped
from .data_movement import where
from .division import Quotient
from .products import real_elements
from .sums import HIDES, Shifted, addend, aligned, centred, expect_fp32, times

aten = torch.ops.aten


def _is_table(*operands: Any) -> bool:
    """Return whether the call is an elementwise function of one quantized value.

    Lazy operands have to be functions of the same quantized value; all others have to
    be single numbers. At least one operand is lazy.
    """
    functions = []
    for operand in operands:
        if isinstance(operand, Lazy):
            functions.append(operand.pointwise())
        elif isinstance(operand, Value):
            has_one_element = set(operand.shape) <= {1}
            if operand.constant is None or not has_one_element:
                return False
    first = functions[0]
    for function in functions:
        # None: not elementwise
        if first is None or function is None:
            return False
        if not function.source.is_like(first.source):
            return False
    return True


def _is_constant(value: Any) -> bool:
    """Return whether an operand is a number or a constant that is not quantized."""
    if isinstance(value, Lazy):
        return False
    return not isinstance(value, Value) or value.constant is not None


@lowers(aten.add.Tensor, aten.add.Scalar, on=Lazy)
def add(t: Tosa, self: Any, other: Any, alpha: float) -> Any:
    """[*S], [*S] -> [*S]"""
    return _sum(t, self, other, alpha, sign=1)


@lowers(aten.sub.Tensor, aten.sub.Scalar, aten.subtract.Tensor, on=Lazy)
def sub(t: Tosa, self: Any, other: Any, alpha: float) -> Any:
    """[*S], [*S] -> [*S]"""
    return _sum(t, self, other, alpha, sign=-1)


@lowers(aten.rsub.Tensor, aten.rsub.Scalar, on=Lazy)
def rsub(t: Tosa, self: Any, other: Any, alpha: float) -> Any:
    """[*S], [*S] -> [*S]"""
    return _sum(t, other, self, alpha, sign=-1)


def _sum(t: Tosa, left: Any, right: Any, alpha: float, sign: int) -> Any:
    """Return left + sign * alpha * right, for at least one lazy operand.

    ``sign`` is 1 or -1. Returns NotImplemented for a function of one quantized value,
    which can be a TABLE.
    """
    if _is_table(left, right):
        return NotImplemented
    right = _operand_times(t, right, alpha)
    # if one operand cannot be brought to a common scale (a mask, a float), it is added
    # later, when the result's scale is known
    if isinstance(left, Lazy) and _has_no_common_scale(t, right):
        return _shifted_by(t, left, _operand_times(t, right, sign))
    if isinstance(right, Lazy) and _has_no_common_scale(t, left):
        signed = right if sign > 0 else times(t, right, -1)
        return _shifted_by(t, signed, left)
    (x, y), step = aligned(t, [addend(t, left), addend(t, right)])
    result = t.add(x, y) if sign > 0 else t.sub(x, y)
    return Scaled(result, Scale(step))


def _has_no_common_scale(t: Tosa, value: Any) -> bool:
    """Return whether an operand has no scale in common with others: a float or a mask.

    A mask has numbers below ``HIDES``, such as -inf, for which the common scale would
    be too coarse.
    """
    if not isinstance(value, Lazy):
        return True
    # whether numbers below HIDES increase the largest absolute value
    return value.reach(t) > value.reach(t, HIDES)


def _shifted_by(t: Tosa, x: Lazy, by: Any) -> Lazy:
    """Return x + by as a lazy value, added when the scale of the result is known."""
    number = by if isinstance(by, Value) else t.constant(by, x.dtype, ())
    # a trial run of the float rule gives the shape of the result
    float_rule = lowering_of(aten.add.Tensor)
    tried = float_rule(trial(), Value(x.type), Value(number.type), 1)
    return Shifted(x, number, tried.shape)


def _operand_times(t: Tosa, value: Any, factor: float) -> Any:
    """Return ``value`` * factor, for a lazy value, a tensor or a number."""
    if factor == 1:
        return value
    if isinstance(value, Lazy):
        return times(t, value, factor)
    if isinstance(value, Value):
        return t.mul(value, float(factor))
    return value * factor


@lowers(aten.neg.default, aten.negative.default, on=Lazy)
def neg(t: Tosa, self: Lazy) -> Any:
    """[*S] -> [*S]"""
    if _is_table(self):
        return NotImplemented
    return times(t, self, -1)


@lowers(aten.abs.default, aten.absolute.default, on=Lazy)
def abs(t: Tosa, self: Lazy) -> Any:
    """[*S] -> [*S]; a TABLE of a quantized value, ABS of the integers of a sum"""
    if _is_table(self):
        return NotImplemented
    x = addend(t, self)
    return Scaled(t.abs(centred(t, x, x.scale.factor)), x.scale)


@lowers(aten.mul.Tensor, aten.mul.Scalar, aten.multiply.Tensor, on=Lazy)
def mul(t: Tosa, self: Any, other: Any) -> Any:
    """[*S], [*S] -> [*S]; one factor is quantized, the other may also be a number, a
    mask or a constant
    """
    if _is_table(self, other):
        return NotImplemented
    for x, factor in ((self, other), (other, self)):
        if not isinstance(factor, Value):
            return times(t, x, factor)
        if factor.dtype is DType.BOOL:
            return where(t, factor, x, 0.0)
        if _is_constant(factor):
            return multiply_add(t, addend(t, x), factor)
    return _product(t, addend(t, self), addend(t, other))


@lowers(aten.prelu.default, on=Lazy)
def prelu(t: Tosa, self: Lazy, weight: Value) -> Lazy:
    """[N,C,*S], [C] or [1] -> [N,C,*S]; a TABLE if slopes are equal and self is a
    function of one quantized value
    """
    t.refuse_unless(weight.constant is not None, "its slopes are computed at run time")
    function = self.pointwise()
    slope = _single_number(weight)
    if function is not None and slope is not None:
        return function.then(lambda t, x: leaky_relu(t, x, slope))
    return sloped(t, addend(t, self), slopes_shape(self, weight), weight)


def _single_number(constant: Value) -> float | None:
    """Return the number that all elements of ``constant`` equal.

    None if they differ, and during the support check, which cannot read constants.
    """
    try:
        numbers = set(real_elements(constant).flat)
    except Unsupported:  # in the support check
        return None
    return numbers.pop() if len(numbers) == 1 else None


@lowers(aten.hardsigmoid.default, on=Lazy)
def hardsigmoid(t: Tosa, self: Lazy) -> Any:
    """[*S] -> [*S]; a TABLE of int8, computed operators of int16"""
    if not _is_int16(self):
        return NotImplemented
    return _gate(t, self)


@lowers(aten.hardswish.default, on=Lazy)
def hardswish(t: Tosa, self: Lazy) -> Any:
    """[*S] -> [*S]; a TABLE of int8, computed operators of int16"""
    if not _is_int16(self):
        return NotImplemented
    x = addend(t, self)
    return _product(t, x, _gate(t, self))


def _is_int16(x: Lazy) -> bool:
    """Return whether x is quantized to int16.

    A TABLE of int16 would round off the kinks of a function: it interpolates linearly
    between its entries.
    """
    return isinstance(x, Scaled) and x.q.dtype is DType.INT16


def _gate(t: Tosa, self: Lazy) -> Scaled:
    """Return the gate clamp(x + 3, 0, 6) / 6 of hardsigmoid and hardswish, as int32."""
    x = addend(t, self)
    # both terms, x and 3, have at most BITS - 1 bits
    largest = max(x.size * x.scale.factor, 3.0)
    step = largest / 2.0 ** (BITS - 1)
    three = round(3 / step)
    raised = t.add(centred(t, x, step), three)
    gate = limit(t, raised, 0, 2 * three)
    return Scaled(gate, Scale(step / 6))


def _product(t: Tosa, left: Scaled, right: Scaled) -> Scaled:
    """Return left * right as int32.

    If a product may have more than BITS bits, its ``lost`` low bits are rounded off.
    """
    scale = left.scale.times(right.scale)
    are_centred = left.zero_point == 0 and right.zero_point == 0
    if are_centred and left.is_small and left.q.dtype is right.q.dtype:
        # MUL of int8 or int16 returns int32
        return Scaled(t.mul(left.q, right.q), scale)
    x = centred(t, left, left.scale.factor)
    y = centred(t, right, right.scale.factor)
    bits = (left.size * right.size).bit_length()
    lost = max(0, bits - BITS)
    product = t.mul(x, y, shift=lost)
    return Scaled(product, scale.times(Scale(2.0**lost)))


@lowers(
    aten.div.Tensor,
    aten.div.Scalar,
    aten.divide.Tensor,
    aten.true_divide.Tensor,
    on=Lazy,
)
def div(t: Tosa, self: Any, other: Any) -> Any:
    """[*S], [*S] -> [*S]; ``other`` is a number, a constant or a quantized value"""
    if _is_table(self, other):
        return NotImplemented
    if not isinstance(other, Value):
        return times(t, self, 1 / other)
    if _is_constant(other):
        return multiply_add(t, addend(t, self), t.reciprocal(other))
    float_rule = lowering_of(aten.div.Tensor)
    tried = float_rule(trial(), Value(self.type), Value(other.type))
    return Quotient(addend(t, self), addend(t, other), tried.shape)


def _register_comparison(packet: Any) -> None:
    """Register the rules of a comparison, ``packet.Tensor`` and ``packet.Scalar``."""

    def compared(t: Tosa, self: Any, other: Any) -> Any:
        """[*S], [*S] -> bool [*S]"""
        if _is_table(self, other):
            return NotImplemented
        operands = [_comparable(t, self), _comparable(t, other)]
        integers, _ = aligned(t, operands)
        float_rule = lowering_of(packet.Tensor)
        return float_rule(t, *integers)

    lowers(packet.Tensor, packet.Scalar, on=Lazy)(compared)


def _comparable(t: Tosa, value: Any) -> Scaled:
    """Return an operand of a comparison as integers with a scale.

    A Python number x becomes the integer 1, 0 or -1 (its sign) with the scale |x|; 0
    gets the scale 1.
    """
    if isinstance(value, Value):
        return addend(t, value)
    t.refuse_unless(math.isfinite(value), f"comparing sums with {value} is not lowered")
    sign = (value > 0) - (value < 0)
    magnitude = math.fabs(value) or 1.0
    return Scaled(t.constant(sign, DType.INT32, ()), Scale(magnitude))


for compare in (aten.eq, aten.ne, aten.gt, aten.ge, aten.lt, aten.le):
    _register_comparison(compare)


def _register_choice(*overloads: Any, larger: bool) -> None:
    """Register the rule of the element-wise maximum (``larger``) or minimum."""

    def choose(t: Tosa, pair: Sequence[Value]) -> Value:
        """MAXIMUM or MINIMUM of two tensors of one type.

        Smaller integers are compared as int32, and cast back.
        """
        dtype = pair[0].dtype
        wide = [v if v.dtype is DType.FP32 else t.cast(v, DType.INT32) for v in pair]
        left, right = wide
        chosen = t.maximum(left, right) if larger else t.minimum(left, right)
        return t.cast(chosen, dtype)

    def rule(t: Tosa, self: Any, other: Any) -> Any:
        """[*S], [*S] -> [*S]; a constant gets the quantization of the result, and two
        quantized values get one scale
        """
        if _is_table(self, other):
            return NotImplemented
        if _is_constant(self) or _is_constant(other):
            tried = choose(trial(), [Value(self.type), Value(other.type)])
            return Joined([self, other], choose, tried.shape)
        pair, step = aligned(t, [addend(t, self), addend(t, other)])
        return Scaled(choose(t, pair), Scale(step))

    lowers(*overloads, on=Lazy)(rule)


_register_choice(aten.maximum.default, aten.max.other, larger=True)
_register_choice(aten.minimum.default, aten.min.other, larger=False)


@lowers(aten.clamp.Tensor, on=Lazy)
def clamp_tensor(t: Tosa, self: Value, min: Value | None, max: Value | None) -> Any:
    """[*S], [*S], [*S] -> [*S]"""
    limits = [limit for limit in (min, max) if limit is not None]
    if _is_table(self, *limits):
        return NotImplemented
    x: Any = self
    if min is not None:
        x = lowering_of(aten.maximum.default, Lazy)(t, x, min)
        t.refuse_unless(
            x is not NotImplemented,
            "one of its limits depends on the limited tensor, the other does not",
        )
    if max is not None:
        x = lowering_of(aten.minimum.default, Lazy)(t, x, max)
    return x


@lowers(aten.sum.default, aten.sum.dim_IntList, on=Lazy)
def sum(
    t: Tosa,
    self: Lazy,
    dtype: torch.dtype | None,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
) -> Lazy:
    """[*S] -> [*S']"""
    expect_fp32(t, "a sum", dtype)
    total, _ = summed(t, self, dim, keepdim)
    return total


FACTORS = 8
"""The most elements of a product.

Its scale fits the largest possible product and leaves small ones few bits.
"""


@lowers(aten.prod.dim_int, on=Lazy)
def prod_dim(
    t: Tosa, self: Lazy, dim: int, keepdim: bool, dtype: torch.dtype | None
) -> Lazy:
    """[*A,N,*B] -> [*A,*B]"""
    expect_fp32(t, "a product", dtype)
    x = addend(t, self)
    (axis,) = axes_of(dim, self.rank)
    count = x.shape[axis]
    t.refuse_unless(
        not is_dynamic(count) and count <= FACTORS,
        f"a product of more than {FACTORS} elements",
    )
    # a factor is [*A,1,*B], the elements at one position of the axis
    factors = []
    for position in range(count):
        elements = slice_axis(t, x.q, axis, position, 1)
        factors.append(x.with_integers(elements))
    y = reduce(partial(_product, t), factors)
    kept = (1,) if keepdim else ()
    shape = (*x.shape[:axis], *kept, *x.shape[axis + 1 :])
    return y.with_integers(t.reshape(y.q, shape))


KEPT = 20
"""The fewest bits of an element in a sum of unknown length.

If the sum is short at run time, its result has no more bits.
"""


def lost_in_sum(t: Tosa, size: int, count: int, bits: int) -> int:
    """Return how many low bits each of ``count`` integers loses in a sum.

    The integers are at most ``size``, and the sum has at most ``bits`` bits. Raises
    Unsupported if ``count`` is known at run time only and elements would keep fewer
    than KEPT bits.
    """
    most = greatest(count)
    lost = max(0, (size * most).bit_length() - bits)
    kept = size.bit_length() - lost
    if lost and is_dynamic(count):
        t.refuse_unless(
            kept >= KEPT,
            f"it sums up to {most} elements, too many for 32 bits;"
            " torch.export.Dim takes a max",
        )
    return lost


def summed(
    t: Tosa, x: Lazy, dim: Sequence[int] | None, keepdim: bool
) -> tuple[Scaled, int]:
    """x [*S] -> the sum over ``dim`` [*S'], and the number of elements in each sum."""
    terms = addend(t, x)
    count = math.prod([terms.shape[a] for a in axes_of(dim, terms.rank)])
    lost = lost_in_sum(t, terms.size, count, bits=31)
    step = terms.scale.factor * 2.0**lost
    total = reduced(t, centred(t, terms, step), t.reduce_sum, dim, keepdim)
    return Scaled(total, Scale(step)), count

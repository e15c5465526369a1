"""Replaces integer operators that an NPU lacks by equal ones that it has.

The builder calls ``instead`` when a target that names a device refuses an operator. If
that returns None, the call that needs the operator is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ...ir import operators as tosa
from ...ir.dynamic_sizes import is_dynamic
from ...ir.graph import Literal, Operator, Value
from ...ir.types import DType
from ..ranges.value_ranges import INT32, range_of
from .operators import Operators


def instead(t: Operators, operator: Operator) -> Value | None:
    """Return the result of ``operator`` on integers by other operators.

    Returns None without a replacement.
    """
    result = _substitute(t, operator)
    if result is not None:
        result.range = operator.outputs[0].range
    return result


def _substitute(t: Operators, operator: Operator) -> Value | None:
    """As ``instead``, but the range of the result may be wider."""
    dtype = operator.outputs[0].dtype
    if isinstance(operator, tosa.SELECT):
        if dtype in (DType.INT8, DType.INT16, DType.INT32):
            return _selected(t, operator)
        return None
    if dtype is not DType.INT32:
        return None
    if isinstance(operator, tosa.ARITHMETIC_RIGHT_SHIFT):
        return _rounded_down(t, operator)
    if isinstance(operator, tosa.BITWISE_AND):
        return _low_bits(t, operator)
    if isinstance(operator, tosa.REDUCE_MAX):
        return _by_halves(t, operator, t.maximum)
    if isinstance(operator, tosa.REDUCE_MIN):
        return _by_halves(t, operator, t.minimum)
    return None


def _rounded_down(t: Operators, shift: tosa.ARITHMETIC_RIGHT_SHIFT) -> Value | None:
    """Return a shift that rounds down on Ethos-U55, where shifts round to nearest.

    A shift that rounds to nearest adds half of the last bit that stays. So this half is
    subtracted before. Returns None unless the number of bits is constant.
    """
    x, amount = shift.inputs
    bits = _number(amount)
    if shift.round or bits is None or not 0 < bits < 32:
        return None
    if not t.takes(type(shift), (x, amount), round=True):
        return None
    half = 1 << bits >> 1
    # numbers below ``least`` would overflow; they are rounded down to the same number as
    # ``least`` itself
    least = INT32[0] + half
    smallest, _ = range_of(x)
    raised = x if smallest >= least else t.maximum(x, least)
    return t.emit(type(shift), (t.sub(raised, half), amount), round=True)


def _low_bits(t: Operators, masked: Operator) -> Value | None:
    """Return x & (2**bits - 1) as x minus x shifted right by ``bits`` and back.

    Returns None for other masks.
    """
    x, mask = masked.inputs
    number = _number(mask)
    if number is None or number < 0 or number & (number + 1):
        return None
    bits = number.bit_length()
    high = t.right_shift(x, bits)
    return t.sub(x, t.left_shift(high, bits))


def _by_halves(
    t: Operators,
    reduction: tosa.REDUCE_MAX | tosa.REDUCE_MIN,
    choose: Callable[[Value, Value], Value],
) -> Value | None:
    """Return the largest or smallest element along an axis, chosen by ``choose``.

    It combines two halves, which may overlap, until one element is left.
    """
    x = reduction.inputs[0]
    axis = reduction.axis
    count = x.shape[axis]
    if is_dynamic(count):
        return None
    while count > 1:
        half = math.ceil(count / 2)
        size = list(x.shape)
        size[axis] = half
        start_of_second = [0] * x.rank
        start_of_second[axis] = count - half
        first = t.slice(x, [0] * x.rank, size)
        second = t.slice(x, start_of_second, size)
        x = choose(first, second)
        count = half
    return x


def _selected(t: Operators, selection: Operator) -> Value | None:
    """Return the result of a SELECT by a constant condition, such as a causal mask.

    Returns None for other conditions.
    """
    condition, on_true, on_false = selection.inputs
    if condition.constant is None:
        return None
    if on_true.dtype is not DType.INT32:
        wide_true = t.cast(on_true, DType.INT32)
        wide_false = t.cast(on_false, DType.INT32)
        wide = t.select(condition, wide_true, wide_false)
        wide.range = selection.outputs[0].range
        return t.cast(wide, on_true.dtype)
    bound = _number(on_false)
    low, high = range_of(on_true)
    # if ``on_true`` is never below ``bound``, its MINIMUM with ``bound`` is ``bound``,
    # and its MINIMUM with the largest int32 is ``on_true``; and the reverse
    if bound is not None and bound <= low:
        return t.minimum(on_true, t.select(condition, INT32[1], on_false))
    if bound is not None and bound >= high:
        return t.maximum(on_true, t.select(condition, INT32[0], on_false))
    is_chosen = t.cast(condition, DType.INT32)
    chosen_true = t.mul(on_true, is_chosen)
    chosen_false = t.mul(on_false, t.sub(1, is_chosen))
    return t.add(chosen_true, chosen_false)


def _number(constant: Value) -> int | None:
    """Return the integer of a constant with one element in memory, else None."""
    if not isinstance(constant.constant, Literal):
        return None
    array = constant.constant.array
    if array.size != 1:
        return None
    return int(array.item())

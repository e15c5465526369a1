"""Replaces integer operators that an NPU lacks (``narrow``) by equal ones that it has.

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

    None without a replacement.
    """
    dtype = operator.outputs[0].dtype
    if isinstance(operator, tosa.SELECT) and dtype in (
        DType.INT8,
        DType.INT16,
        DType.INT32,
    ):
        result = _selected(t, operator, *operator.inputs)
    elif dtype is not DType.INT32:
        return None
    elif isinstance(operator, tosa.ARITHMETIC_RIGHT_SHIFT):
        result = _rounded_down(t, operator)
    elif isinstance(operator, tosa.BITWISE_AND):
        result = _low_bits(t, operator)
    elif isinstance(operator, tosa.REDUCE_MAX):
        result = _by_halves(t, operator, t.maximum)
    elif isinstance(operator, tosa.REDUCE_MIN):
        result = _by_halves(t, operator, t.minimum)
    else:
        return None
    if result is not None:
        result.range = operator.outputs[0].range
    return result


def _rounded_down(t: Operators, shift: tosa.ARITHMETIC_RIGHT_SHIFT) -> Value | None:
    """Return a shift that rounds down on Ethos-U55, where shifts round to nearest.

    Returns None unless the number of bits is known. A shift that rounds adds half of
    the last bit that stays. So that half is taken off before.
    """
    x, amount = shift.inputs
    bits = _number(amount)
    if (
        shift.round
        or bits is None
        or not 0 < bits < 32
        or not t.takes(type(shift), (x, amount), round=True)
    ):
        return None
    half = 1 << bits >> 1
    # numbers below ``least`` would overflow; they are rounded down to the same number as
    # ``least`` itself
    least = INT32[0] + half
    raised = x if range_of(x)[0] >= least else t.maximum(x, least)
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
    return t.sub(x, t.left_shift(t.right_shift(x, bits), bits))


def _by_halves(
    t: Operators,
    reduction: tosa.REDUCE_MAX | tosa.REDUCE_MIN,
    larger: Callable[[Value, Value], Value],
) -> Value | None:
    """Return the largest or smallest element along an axis.

    Combines two halves, which may overlap, until one element is left.
    """
    x = reduction.inputs[0]
    axis = reduction.axis
    if is_dynamic(x.shape[axis]):
        return None
    while (count := x.shape[axis]) > 1:
        half = math.ceil(count / 2)
        size = [half if a == axis else n for a, n in enumerate(x.shape)]
        starts = (
            [start if a == axis else 0 for a in range(x.rank)]
            for start in (0, count - half)
        )
        x = larger(*(t.slice(x, start, size) for start in starts))
    return x


def _selected(
    t: Operators, selection: Operator, condition: Value, on_true: Value, on_false: Value
) -> Value | None:
    """Return a SELECT with a constant condition, such as a causal mask.

    None for others.
    """
    if condition.constant is None:
        return None
    if on_true.dtype is not DType.INT32:
        wide = t.select(
            condition, t.cast(on_true, DType.INT32), t.cast(on_false, DType.INT32)
        )
        wide.range = selection.outputs[0].range
        return t.cast(wide, on_true.dtype)
    bound = _number(on_false)
    low, high = range_of(on_true)
    # no selected element is beyond ``bound``: a MINIMUM or MAXIMUM with limits
    # that hold where it is not
    if bound is not None and bound <= low:
        return t.minimum(on_true, t.select(condition, INT32[1], on_false))
    if bound is not None and bound >= high:
        return t.maximum(on_true, t.select(condition, INT32[0], on_false))
    chosen = t.cast(condition, DType.INT32)
    return t.add(t.mul(on_true, chosen), t.mul(on_false, t.sub(1, chosen)))


def _number(constant: Value) -> int | None:
    """Return the integer of a constant with one element in memory.

    None for other values.
    """
    array = constant.constant.array if isinstance(constant.constant, Literal) else None
    return int(array.item()) if array is not None and array.size == 1 else None

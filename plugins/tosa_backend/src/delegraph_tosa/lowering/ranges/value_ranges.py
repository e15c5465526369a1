"""Ranges of integers: the smallest and the largest element that a value can have.

TOSA 1.0 has no int64, so torch's int64 is computed as int32 where every element is
proven to fit. The proof is interval arithmetic: ``RANGES`` has a rule for each
operator; the result of an operator without a rule has the range of its type.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, reduce
from operator import add, lshift, rshift, sub

import numpy as np

from ...ir import dynamic_sizes
from ...ir import operators as tosa
from ...ir.graph import Deferred, Literal, Operator, Value
from ...ir.types import ARRAY_DTYPES, BYTES, INTEGERS, DType

Range = tuple[int, int]
"""(smallest, largest), both included."""

COUNTED = INTEGERS | {DType.BOOL}
"""Types of values that have a range."""


@cache
def range_of_type(dtype: DType) -> Range:
    """Return the smallest and the largest number of an integer type or BOOL."""
    if dtype is DType.BOOL:
        return 0, 1
    limits = np.iinfo(ARRAY_DTYPES[dtype])
    return int(limits.min), int(limits.max)


INT32 = range_of_type(DType.INT32)

READ = (DType.INT32, DType.INT64)
"""Types of constants with elements worth reading: indices, positions, zero points."""


def inside(inner: Range, outer: Range) -> bool:
    """Return whether ``outer`` contains ``inner``."""
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def meet(first: Range, second: Range) -> Range:
    """Return the intersection of both ranges, or ``second`` if it is empty.

    It is empty only in a program that always raises.
    """
    low = max(first[0], second[0])
    high = min(first[1], second[1])
    if low > high:
        return second
    return low, high


def union(first: Range, second: Range) -> Range:
    """Return the smallest range that contains both."""
    return min(first[0], second[0]), max(first[1], second[1])


def range_of(value: Value) -> Range:
    """Return the range of an integer value, cached in ``value.range``.

    The elements of int32 and int64 constants are read for it, even of weights: the
    range of their type is too wide.
    """
    if value.range is None:
        value.range = _range_of_elements(value) or range_of_type(value.dtype)
    return value.range


def _range_of_elements(value: Value) -> Range | None:
    """Return the range of a constant's elements, which are read.

    Returns None for a computed value, and for a weight of a type that is not in
    ``READ``.
    """
    constant = value.constant
    is_read_weight = isinstance(constant, Deferred) and value.dtype in READ
    if not is_read_weight and not isinstance(constant, Literal):
        return None
    elements = constant.materialize()  # type: ignore[union-attr]
    return int(elements.min()), int(elements.max())


def result_range(operator: Operator, dtype: DType) -> Range:
    """Return the range of an operator's integer result of type ``dtype``.

    It is the range of the type if the operator has no rule, or if its results do not
    fit and wrap around.
    """
    type_range = range_of_type(dtype)
    rule = RANGES.get(type(operator))
    if rule is None:
        return type_range
    range = rule(operator)
    if not inside(range, type_range):
        return type_range
    return range


# ---- rows of ``RANGES``: each gives the range of an operator's result


def _operands(operator: Operator) -> list[Range]:
    """Return the ranges of the operands that are integers or bools."""
    return [range_of(value) for value in operator.inputs if value.dtype in COUNTED]


def _first_operand(operator: Operator) -> Range:
    """Return the first operand's range, for operators that move elements."""
    return range_of(operator.inputs[0])


def _union_of(*positions: int) -> Callable[[Operator], Range]:
    """Return the rule for results with elements of the operands at ``positions``."""

    def joined(operator: Operator) -> Range:
        """Return the union of the ranges of the operands at ``positions``."""
        ranges = [range_of(operator.inputs[position]) for position in positions]
        return reduce(union, ranges)

    return joined


def _union_of_all(operator: Operator) -> Range:
    """Return the union of the ranges of all operands, for CONCAT."""
    return reduce(union, map(range_of, operator.inputs))


def range_of_corners(
    combine: Callable[[int, int], int], left: Range, right: Range
) -> Range:
    """Return the range of a function that is monotonic in both operands.

    Its extremes are at the ends of the operands' ranges.
    """
    low, high = left
    results = [combine(low, end) for end in right]
    results += [combine(high, end) for end in right]
    return min(results), max(results)


def _corners(combine: Callable[[int, int], int]) -> Callable[[Operator], Range]:
    """Return the rule for a function that is monotonic in both operands."""

    def spanned(operator: Operator) -> Range:
        """Return the range of ``combine`` from the ends of two ranges."""
        left, right = _operands(operator)[:2]
        return range_of_corners(combine, left, right)

    return spanned


def _product(operator: Operator) -> Range:
    """MUL. The third operand shifts the product right, and rounds half up."""
    left, right, shift = operator.inputs
    bits = 0
    if isinstance(shift.constant, Literal):
        bits = int(shift.constant.array.item())
    half = 1 << bits >> 1

    def product(x: int, y: int) -> int:
        return (x * y + half) >> bits

    return range_of_corners(product, range_of(left), range_of(right))


def _abs(operator: Operator) -> Range:
    """ABS."""
    low, high = range_of(operator.inputs[0])
    nearest = min(abs(low), abs(high))
    if low <= 0 <= high:
        nearest = 0
    return nearest, max(abs(low), abs(high))


def _negated(operator: Operator) -> Range:
    """NEGATE."""
    low, high = range_of(operator.inputs[0])
    return -high, -low


def _size_range(size: int) -> Range:
    """Return the range of a size, at least 1 if it is dynamic.

    torch assumes at least 2, but at run time it may be 1.
    """
    low, high = dynamic_sizes.range_of(size)
    if dynamic_sizes.is_dynamic(size):
        low = min(low, 1)
    return low, high


def _size_of_axis(operator: Operator) -> Range:
    """Return the range of the size of the axis that a reduction removes."""
    axis: int = operator.attribute_values()["axis"]
    return _size_range(operator.inputs[0].shape[axis])


def _sum(operator: Operator) -> Range:
    """REDUCE_SUM: the extreme elements times the size of the axis.

    The size may lie in a range itself.
    """
    shortest, longest = _size_of_axis(operator)
    low, high = range_of(operator.inputs[0])
    least = min(low * shortest, low * longest)
    most = max(high * shortest, high * longest)
    return least, most


def _position(operator: Operator) -> Range:
    """ARGMAX: a position along the axis."""
    _, longest = _size_of_axis(operator)
    return 0, longest - 1


def _cast(operator: Operator) -> Range:
    """CAST: the operand's range if it has integers or bools; unlimited for floats.

    An unlimited range does not fit into the result's type, for which ``result_range``
    returns the range of the type.
    """
    value = operator.inputs[0]
    if value.dtype not in COUNTED:
        return -math.inf, math.inf  # type: ignore[return-value]
    return range_of(value)


def _quotient(operator: Operator) -> Range:
    """INTDIV rounds towards zero, so a result is at most as large as the dividend."""
    dividend, divisor = operator.inputs
    low, high = range_of(dividend)
    smallest_divisor, _ = range_of(divisor)
    if smallest_divisor > 0:
        return min(low, 0), max(high, 0)
    most = max(abs(low), abs(high))
    return -most, most


def _bits(operator: Operator) -> Range:
    """BITWISE_OR and BITWISE_XOR: as many bits as the longer operand.

    The result is negative only if an operand may be.
    """
    ranges = _operands(operator)
    # ~low has the bits of a negative ``low`` without the sign
    bits = max(max(high, ~low).bit_length() for low, high in ranges)
    most = 1 << bits
    smallest = min(low for low, _ in ranges)
    least = 0 if smallest >= 0 else -most
    return least, most - 1


def _masked(operator: Operator) -> Range:
    """BITWISE_AND: from 0 to the largest integer of an operand that is never negative.

    Without one as ``_bits``.
    """
    masks = [high for low, high in _operands(operator) if low >= 0]
    if not masks:
        return _bits(operator)
    return 0, min(masks)


def _inverted(operator: Operator) -> Range:
    """BITWISE_NOT: ~x is -x - 1."""
    low, high = range_of(operator.inputs[0])
    return ~high, ~low


def _bits_shifted(operator: Operator) -> Range:
    """Return the range of a LOGICAL_RIGHT_SHIFT.

    Shifted by 1 to 31 bits, no integer is negative. For other amounts, the range is that
    of the type.
    """
    bits, amount = operator.inputs
    fewest, most = range_of(amount)
    low, high = range_of_type(bits.dtype)
    if fewest < 1 or most > 31:
        return low, high
    return 0, (high - low) >> fewest


def _shifted(combine: Callable[[int, int], int], operator: Operator) -> Range:
    """Return the range of a shift of the first operand by the second.

    ``combine`` computes it. By up to 31 bits int32 and int64 give the same result. By
    more, only int64 is defined: the result may be any number of the type.
    """
    shifted, amount = operator.inputs
    if not inside(range_of(amount), (0, 31)):
        return range_of_type(shifted.dtype)
    return range_of_corners(combine, range_of(shifted), range_of(amount))


def _left_shifted(operator: Operator) -> Range:
    """LOGICAL_LEFT_SHIFT."""
    return _shifted(lshift, operator)


def _right_shifted(operator: Operator) -> Range:
    """ARITHMETIC_RIGHT_SHIFT, which rounds down, or with ``round`` half up."""
    if operator.attribute_values()["round"]:
        return _shifted(_rounding_right_shift, operator)
    return _shifted(rshift, operator)


def _rounding_right_shift(number: int, bits: int) -> int:
    """Return number / 2**bits, rounded half up."""
    half = 1 << bits >> 1
    return (number + half) >> bits


def _leading_zeros(operator: Operator) -> Range:
    """CLZ: at most the bits of the type."""
    return 0, 8 * BYTES[operator.inputs[0].dtype]


RANGES: dict[type[Operator], Callable[..., Range]] = {
    tosa.RESHAPE: _first_operand,
    tosa.TRANSPOSE: _first_operand,
    tosa.SLICE: _first_operand,
    tosa.TILE: _first_operand,
    tosa.REVERSE: _first_operand,
    tosa.IDENTITY: _first_operand,
    tosa.REDUCE_MAX: _first_operand,
    tosa.REDUCE_MIN: _first_operand,
    tosa.GATHER: _first_operand,
    tosa.CONCAT: _union_of_all,
    tosa.PAD: _union_of(0, 2),
    tosa.SELECT: _union_of(1, 2),
    tosa.SCATTER: _union_of(0, 2),
    tosa.MAXIMUM: _corners(max),
    tosa.MINIMUM: _corners(min),
    tosa.ADD: _corners(add),
    tosa.SUB: _corners(sub),
    tosa.MUL: _product,
    tosa.CLZ: _leading_zeros,
    tosa.INTDIV: _quotient,
    tosa.ABS: _abs,
    tosa.NEGATE: _negated,
    tosa.REDUCE_SUM: _sum,
    tosa.ARGMAX: _position,
    tosa.CAST: _cast,
    tosa.LOGICAL_LEFT_SHIFT: _left_shifted,
    tosa.ARITHMETIC_RIGHT_SHIFT: _right_shifted,
    tosa.LOGICAL_RIGHT_SHIFT: _bits_shifted,
    tosa.BITWISE_NOT: _inverted,
    tosa.BITWISE_AND: _masked,
    tosa.BITWISE_OR: _bits,
    tosa.BITWISE_XOR: _bits,
}
"""Operator -> the range of its result."""

"""Ranges of integers: the least and the greatest element that a value can have.

TOSA 1.0 has no int64, so torch's int64 runs as int32 where every element is proven to fit. The proof is interval
arithmetic: ``RANGES`` has one row for each operator, and an operator without a row proves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, reduce

import numpy as np

from ...ir import operators as tosa
from ...ir import sizes
from ...ir.graph import Deferred, Literal, Operator, Value
from ...ir.types import ARRAY_DTYPES, BYTES, INTEGERS, DType

Range = tuple[int, int]
"""(least, greatest), both included."""

COUNTED = INTEGERS | {DType.BOOL}
"""Types whose values have a range."""


@cache
def range_of_type(dtype: DType) -> Range:
    """Everything that an integer type can hold."""
    if dtype is DType.BOOL:
        return 0, 1
    limits = np.iinfo(ARRAY_DTYPES[dtype])
    return int(limits.min), int(limits.max)


INT32 = range_of_type(DType.INT32)

READ = (DType.INT32, DType.INT64)
"""Types of constants whose elements are read for their range: indices, positions, zero points."""


def inside(inner: Range, outer: Range) -> bool:
    """Whether ``outer`` contains ``inner``."""
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def meet(first: Range, second: Range) -> Range:
    """The numbers in both ranges; ``second`` where they have none in common, as in code that always fails."""
    low, high = max(first[0], second[0]), min(first[1], second[1])
    return (low, high) if low <= high else second


def union(first: Range, second: Range) -> Range:
    """The smallest range that contains both."""
    return min(first[0], second[0]), max(first[1], second[1])


def range_of(value: Value) -> Range:
    """The range of an integer value, kept in ``value.range``.

    Constants of int32 and int64 are read for it, even weights: the range of such a type says too little.
    """
    if value.range is None:
        value.range = _range_read(value) or range_of_type(value.dtype)
    return value.range


def _range_read(value: Value) -> Range | None:
    """The range of a constant's elements.

    None for what is computed at run time, and for weights of types not in ``READ``.
    """
    weight = isinstance(value.constant, Deferred) and value.dtype in READ
    if not weight and not isinstance(value.constant, Literal):
        return None
    elements = value.constant.materialize()  # type: ignore[union-attr]
    return int(elements.min()), int(elements.max())


def result_range(operator: Operator, dtype: DType) -> Range:
    """The range of an operator's integer result.

    If its type cannot hold all of that, it wraps around and may be anything.
    """
    rule, whole = RANGES.get(type(operator)), range_of_type(dtype)
    found = whole if rule is None else rule(operator)
    return found if inside(found, whole) else whole


# ---- rows of ``RANGES``: each gives the range of an operator's result


def _operands(operator: Operator) -> list[Range]:
    """The ranges of those operands that have one."""
    return [range_of(value) for value in operator.inputs if value.dtype in COUNTED]


def _first_operand(operator: Operator) -> Range:
    """The first operand's range: its elements only move, or some are dropped."""
    return range_of(operator.inputs[0])


def _union_of(*positions: int) -> Callable[[Operator], Range]:
    """The union of the ranges of the operands at ``positions``; of all operands if none is given."""

    def joined(operator: Operator) -> Range:
        values = [operator.inputs[p] for p in positions] if positions else operator.inputs
        return reduce(union, map(range_of, values))

    return joined


def _corners(combine: Callable[[int, int], int]) -> Callable[[Operator], Range]:
    """For a function of two operands that rises or falls in each of them: its extremes are where theirs are."""

    def spanned(operator: Operator) -> Range:
        left, right = _operands(operator)[:2]
        found = [combine(x, y) for x in left for y in right]
        return min(found), max(found)

    return spanned


def _product(operator: Operator) -> Range:
    """MUL, whose third operand says by how many bits the product is shifted right, rounding half up."""
    shift = operator.inputs[2].constant
    bits = int(shift.array.item()) if isinstance(shift, Literal) else 0
    half = 1 << bits >> 1
    return _corners(lambda x, y: (x * y + half) >> bits)(operator)


def _abs(operator: Operator) -> Range:
    low, high = range_of(operator.inputs[0])
    return (0 if low <= 0 <= high else min(abs(low), abs(high))), max(abs(low), abs(high))


def _negated(operator: Operator) -> Range:
    low, high = range_of(operator.inputs[0])
    return -high, -low


def _size_range(size: int) -> Range:
    """The range of a size. torch takes a dynamic size to be at least 2, but at run time it may be 1."""
    low, high = sizes.range_of(size)
    return (min(low, 1), high) if sizes.is_dynamic(size) else (low, high)


def _sum(operator: Operator) -> Range:
    """REDUCE_SUM: as many times the least and the greatest element as the axis is long."""
    least, most = _size_range(operator.inputs[0].shape[operator.axis])  # type: ignore[attr-defined]
    low, high = range_of(operator.inputs[0])
    return min(low * least, low * most), max(high * least, high * most)


def _position(operator: Operator) -> Range:
    """ARGMAX: a position along the axis."""
    return 0, _size_range(operator.inputs[0].shape[operator.axis])[1] - 1  # type: ignore[attr-defined]


def _cast(operator: Operator) -> Range:
    """CAST: of integers and truth values their own range; of floats nothing is known, so without end."""
    value = operator.inputs[0]
    return range_of(value) if value.dtype in COUNTED else (-math.inf, math.inf)  # type: ignore[return-value]


def _quotient(operator: Operator) -> Range:
    """INTDIV, which rounds towards zero: the result is no larger than the dividend."""
    low, high = range_of(operator.inputs[0])
    if range_of(operator.inputs[1])[0] > 0:
        return min(low, 0), max(high, 0)
    return -max(abs(low), abs(high)), max(abs(low), abs(high))


def _bits(operator: Operator) -> Range:
    """BITWISE_OR and BITWISE_XOR: no more bits than the longer operand, negative only if an operand may be."""
    ranges = _operands(operator)
    most = 1 << max(max(high, ~low).bit_length() for low, high in ranges)
    return (0 if min(low for low, _ in ranges) >= 0 else -most), most - 1


def _masked(operator: Operator) -> Range:
    """BITWISE_AND: not more than an operand that is never negative; else as ``_bits``."""
    masks = [high for low, high in _operands(operator) if low >= 0]
    return (0, min(masks)) if masks else _bits(operator)


def _inverted(operator: Operator) -> Range:
    low, high = range_of(operator.inputs[0])
    return ~high, ~low


def _shifted(combine: Callable[[int, int], int]) -> Callable[[Operator], Range]:
    """A rule for the range of a shift: by 0 to 31 bits ``combine`` gives it, because int32 and int64 do the same.

    Of any other shift nothing is known.
    """

    def spanned(operator: Operator) -> Range:
        amounts = range_of(operator.inputs[1])
        return _corners(combine)(operator) if inside(amounts, (0, 31)) else range_of_type(operator.inputs[0].dtype)

    return spanned


RANGES: dict[type[Operator], Callable[..., Range]] = {
    **dict.fromkeys((tosa.RESHAPE, tosa.TRANSPOSE, tosa.SLICE, tosa.TILE, tosa.REVERSE, tosa.IDENTITY), _first_operand),
    **dict.fromkeys((tosa.REDUCE_MAX, tosa.REDUCE_MIN, tosa.GATHER), _first_operand),
    tosa.CONCAT: _union_of(),
    tosa.PAD: _union_of(0, 2),
    tosa.SELECT: _union_of(1, 2),
    tosa.SCATTER: _union_of(0, 2),
    tosa.MAXIMUM: _corners(max),
    tosa.MINIMUM: _corners(min),
    tosa.ADD: _corners(lambda x, y: x + y),
    tosa.SUB: _corners(lambda x, y: x - y),
    tosa.MUL: _product,
    tosa.CLZ: lambda operator: (0, 8 * BYTES[operator.inputs[0].dtype]),
    tosa.INTDIV: _quotient,
    tosa.ABS: _abs,
    tosa.NEGATE: _negated,
    tosa.REDUCE_SUM: _sum,
    tosa.ARGMAX: _position,
    tosa.CAST: _cast,
    tosa.LOGICAL_LEFT_SHIFT: _shifted(lambda x, y: x << y),
    tosa.ARITHMETIC_RIGHT_SHIFT: _shifted(lambda x, y: x >> y),
    tosa.BITWISE_NOT: _inverted,
    tosa.BITWISE_AND: _masked,
    **dict.fromkeys((tosa.BITWISE_OR, tosa.BITWISE_XOR), _bits),
}
"""Operator -> the range of its result."""

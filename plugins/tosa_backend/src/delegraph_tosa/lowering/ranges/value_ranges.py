"""Ranges of integers: the smallest and the largest element that a value can have.

TOSA 1.0 has no int64, so torch's int64 is computed as int32 where every element is
proven to fit. The proof is interval arithmetic: ``RANGES`` has a rule for each
operator; the result of an operator without a rule has the range of its type.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, reduce

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
    """Return the smallest and the largest number of an integer type.

    (0, 1) for BOOL.
    """
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
    """Return the intersection of both ranges.

    ``second`` if it is empty, as in a program that always raises.
    """
    low = max(first[0], second[0])
    high = min(first[1], second[1])
    return (low, high) if low <= high else second


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

    None for a computed value. Elements of weights are read only for types in ``READ``,
    those of other constants for every type.
    """
    is_read_weight = isinstance(value.constant, Deferred) and value.dtype in READ
    if not is_read_weight and not isinstance(value.constant, Literal):
        return None
    elements = value.constant.materialize()  # type: ignore[union-attr]
    return int(elements.min()), int(elements.max())


def result_range(operator: Operator, dtype: DType) -> Range:
    """Return the range of an operator's integer result of type ``dtype``.

    It is the range of the type if the operator has no rule, or if its results do not
    fit and wrap around.
    """
    rule = RANGES.get(type(operator))
    type_range = range_of_type(dtype)
    range = type_range if rule is None else rule(operator)
    return range if inside(range, type_range) else type_range


# ---- rows of ``RANGES``: each gives the range of an operator's result


def _operands(operator: Operator) -> list[Range]:
    """Return the ranges of the operands that are integers or bools."""
    return [range_of(value) for value in operator.inputs if value.dtype in COUNTED]


def _first_operand(operator: Operator) -> Range:
    """Return the first operand's range, for operators that move elements."""
    return range_of(operator.inputs[0])


def _union_of(*positions: int) -> Callable[[Operator], Range]:
    """Return the rule for results with elements of the operands at ``positions``.

    No position means all.
    """

    def joined(operator: Operator) -> Range:
        """Return the union of the ranges of the operands at ``positions``."""
        values = (
            [operator.inputs[p] for p in positions] if positions else operator.inputs
        )
        return reduce(union, map(range_of, values))

    return joined


def _corners(combine: Callable[[int, int], int]) -> Callable[[Operator], Range]:
    """Return the rule for a function that is monotonic in both operands.

    Its extremes are at the ends of their ranges.
    """

    def spanned(operator: Operator) -> Range:
        """Return the range of ``combine`` from the ends of two ranges."""
        left, right = _operands(operator)[:2]
        results = [combine(x, y) for x in left for y in right]
        return min(results), max(results)

    return spanned


def _product(operator: Operator) -> Range:
    """MUL. The third operand shifts the product right, and rounds half up."""
    shift = operator.inputs[2].constant
    bits = int(shift.array.item()) if isinstance(shift, Literal) else 0
    half = 1 << bits >> 1
    return _corners(lambda x, y: (x * y + half) >> bits)(operator)


def _abs(operator: Operator) -> Range:
    """ABS."""
    low, high = range_of(operator.inputs[0])
    return (0 if low <= 0 <= high else min(abs(low), abs(high))), max(
        abs(low), abs(high)
    )


def _negated(operator: Operator) -> Range:
    """NEGATE."""
    low, high = range_of(operator.inputs[0])
    return -high, -low


def _size_range(size: int) -> Range:
    """Return the range of a size, at least 1 if it is dynamic.

    torch assumes at least 2, but at run time it may be 1.
    """
    low, high = dynamic_sizes.range_of(size)
    return (min(low, 1), high) if dynamic_sizes.is_dynamic(size) else (low, high)


def _sum(operator: Operator) -> Range:
    """REDUCE_SUM: the extreme elements times the size of the axis.

    The size may lie in a range itself.
    """
    shortest, longest = _size_range(operator.inputs[0].shape[operator.axis])  # type: ignore[attr-defined]
    low, high = range_of(operator.inputs[0])
    return min(low * shortest, low * longest), max(high * shortest, high * longest)


def _position(operator: Operator) -> Range:
    """ARGMAX: a position along the axis."""
    return 0, _size_range(operator.inputs[0].shape[operator.axis])[1] - 1  # type: ignore[attr-defined]


def _cast(operator: Operator) -> Range:
    """CAST: the operand's range if it has integers or bools; unlimited for floats.

    An unlimited range does not fit into the result's type, for which ``result_range``
    returns the range of the type.
    """
    value = operator.inputs[0]
    return range_of(value) if value.dtype in COUNTED else (-math.inf, math.inf)  # type: ignore[return-value]


def _quotient(operator: Operator) -> Range:
    """INTDIV rounds towards zero, so a result is at most as large as the dividend."""
    low, high = range_of(operator.inputs[0])
    if range_of(operator.inputs[1])[0] > 0:
        return min(low, 0), max(high, 0)
    return -max(abs(low), abs(high)), max(abs(low), abs(high))


def _bits(operator: Operator) -> Range:
    """BITWISE_OR and BITWISE_XOR: as many bits as the longer operand.

    The result is negative only if an operand may be.
    """
    ranges = _operands(operator)
    # ~low has the bits of a negative ``low`` without the sign
    most = 1 << max(max(high, ~low).bit_length() for low, high in ranges)
    return (0 if min(low for low, _ in ranges) >= 0 else -most), most - 1


def _masked(operator: Operator) -> Range:
    """BITWISE_AND: from 0 to the largest integer of an operand that is never negative.

    Without one as ``_bits``.
    """
    masks = [high for low, high in _operands(operator) if low >= 0]
    return (0, min(masks)) if masks else _bits(operator)


def _inverted(operator: Operator) -> Range:
    """BITWISE_NOT: ~x is -x - 1."""
    low, high = range_of(operator.inputs[0])
    return ~high, ~low


def _bits_shifted(operator: Operator) -> Range:
    """LOGICAL_RIGHT_SHIFT by at least one bit leaves no sign.

    The range of the type for other amounts.
    """
    fewest, most = range_of(operator.inputs[1])
    low, high = range_of_type(operator.inputs[0].dtype)
    return (0, (high - low) >> fewest) if fewest > 0 and most < 32 else (low, high)


def _shifted(combine: Callable[[int, int], int]) -> Callable[[Operator], Range]:
    """Return the rule for a shift by 0 to 31 bits, computed by ``combine``.

    Other shifts may give any number of the type. By up to 31 bits int32 and int64 give
    the same result. By more, only int64 is defined.
    """

    def shifted(operator: Operator) -> Range:
        """Return the range of the shifted operand, the first.

        The second operand is the amount.
        """
        amounts = range_of(operator.inputs[1])
        # by more than 31 bits, int32 and int64 differ
        return (
            _corners(combine)(operator)
            if inside(amounts, (0, 31))
            else range_of_type(operator.inputs[0].dtype)
        )

    return shifted


def _right_shifted(operator: Operator) -> Range:
    """ARITHMETIC_RIGHT_SHIFT, which rounds down, or with ``round`` half up."""
    rounds = operator.attribute_values()["round"]
    return _shifted(lambda x, y: (x + (1 << y >> 1 if rounds else 0)) >> y)(operator)


RANGES: dict[type[Operator], Callable[..., Range]] = {
    **dict.fromkeys(
        (
            tosa.RESHAPE,
            tosa.TRANSPOSE,
            tosa.SLICE,
            tosa.TILE,
            tosa.REVERSE,
            tosa.IDENTITY,
        ),
        _first_operand,
    ),
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
    tosa.ARITHMETIC_RIGHT_SHIFT: _right_shifted,
    tosa.LOGICAL_RIGHT_SHIFT: _bits_shifted,
    tosa.BITWISE_NOT: _inverted,
    tosa.BITWISE_AND: _masked,
    **dict.fromkeys((tosa.BITWISE_OR, tosa.BITWISE_XOR), _bits),
}
"""Operator -> the range of its result."""

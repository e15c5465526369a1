"""Computes sizes that are known only at run time as tensors of one element.

TOSA has no operator that returns an element of a shape as a tensor. But TILE can repeat
a 1 as many times as a size, and the sum of these ones is the size.
"""

from __future__ import annotations

from typing import Any

from ...ir.dynamic_sizes import Size, Symbol, is_dynamic, products
from ...ir.formulas import Formula, Relation
from ...ir.graph import Value
from ...ir.types import DType
from .division import rounded_quotient
from .operators import Operators

Number = Any
"""A number, a size or a ``Formula`` of them."""


def computed(t: Operators, number: Number, dtype: DType) -> Value:
    """Return ``number`` as a tensor [1] of ``dtype``, int32 or fp32.

    A formula is computed in fp32; as int32 it is rounded towards zero, as torch does.
    """
    if is_dynamic(number):
        return _size_as_number(t, number, dtype)
    if not isinstance(number, Formula):
        return t.constant(number, dtype)
    function = _FUNCTIONS[number.function]
    result: Value = function(t, number.left, number.right)
    if dtype is DType.FP32:
        return result
    is_positive = t.greater_equal(result, 0)
    down = t.floor(result)
    up = t.ceil(result)
    return t.cast(t.select(is_positive, down, up), dtype)


def truth(t: Operators, relation: Relation) -> Value:
    """Return ``relation``, a comparison of sizes, as a tensor [1] of BOOL."""
    comparisons = {">": t.greater, ">=": t.greater_equal, "==": t.equal}
    left = computed(t, relation.left, DType.INT32)
    right = computed(t, relation.right, DType.INT32)
    result = comparisons[relation.function](left, right)
    if relation.not_:
        return t.logical_not(result)
    return result


def _size_as_number(t: Operators, size: int, dtype: DType) -> Value:
    """Return the size as a tensor [1], exact up to 2**24 if ``dtype`` is fp32.

    A size known at run time only is a sum of products count * factor, where ``count``
    is a product of symbols and ``factor`` an int.
    """
    total: Value | None = None
    for count, factor in products(size):
        part = t.mul(_ones(t, count, dtype), factor)
        total = part if total is None else t.add(total, part)
    assert total is not None
    return total


def _ones(t: Operators, count: int, dtype: DType) -> Value:
    """Return ``count`` as a tensor [1]: the sum of ``count`` ones.

    TOSA has no empty tensors. So if ``count`` may be 0, one more is summed, and 1 is
    subtracted.
    """
    one = t.constant(1, dtype)
    if not _may_be_zero(count):
        return t.reduce_sum(t.tile(one, (count,)), axis=0)
    total = t.reduce_sum(t.tile(one, (count + 1,)), axis=0)
    return t.sub(total, 1)


def _may_be_zero(product: int) -> bool:
    """Return whether a product of sizes may be 0 at run time.

    A symbol is a size of an input, which is at least 1. Another factor, such as ``n //
    2``, may be 0.
    """
    if not isinstance(product, Size):
        return False
    for monomial in product.terms:
        if not all(isinstance(factor, Symbol) for factor in monomial):
            return True
    return False


def _as_fp32(t: Operators, number: Number) -> Value:
    """Return ``number`` as a tensor [1] of fp32."""
    return computed(t, number, DType.FP32)


def _quotient(t: Operators, left: Number, right: Number) -> Value:
    """Return left / right, rounded to the nearest float as torch does.

    The last bit may decide which pixel is the nearest.
    """
    divisor = _as_fp32(t, right)
    inverse = t.reciprocal(divisor)
    if left == 1:
        return inverse
    dividend = _as_fp32(t, left)
    estimate = t.mul(dividend, inverse)
    return rounded_quotient(t, dividend, divisor, estimate)


def _power(t: Operators, base: Number, exponent: Number) -> Value:
    """Return base ** exponent.

    An exponent of 0.5 or -0.5 is computed by RSQRT, which is more exact than POW.
    """
    if exponent == -0.5:
        return t.rsqrt(_as_fp32(t, base))
    if exponent == 0.5:
        return t.reciprocal(t.rsqrt(_as_fp32(t, base)))
    return t.pow(_as_fp32(t, base), _as_fp32(t, exponent))


def _sum(t: Operators, left: Number, right: Number) -> Value:
    """Return left + right."""
    return t.add(_as_fp32(t, left), _as_fp32(t, right))


def _product(t: Operators, left: Number, right: Number) -> Value:
    """Return left * right."""
    return t.mul(_as_fp32(t, left), _as_fp32(t, right))


_FUNCTIONS = {"+": _sum, "*": _product, "/": _quotient, "**": _power}
"""The functions of a ``Formula``, on its two operands."""

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
    result: Value = _FUNCTIONS[number.function](t, number.left, number.right)
    if dtype is DType.FP32:
        return result
    return t.cast(
        t.select(t.greater_equal(result, 0), t.floor(result), t.ceil(result)), dtype
    )


def truth(t: Operators, relation: Relation) -> Value:
    """Return ``relation``, a comparison of sizes, as a tensor [1] of BOOL."""
    compare = {">": t.greater, ">=": t.greater_equal, "==": t.equal}[relation.function]
    left, right = (
        computed(t, size, DType.INT32) for size in (relation.left, relation.right)
    )
    result = compare(left, right)
    return t.logical_not(result) if relation.not_ else result


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
    extra = 1 if _may_be_zero(count) else 0
    total = t.reduce_sum(t.tile(t.constant(1, dtype), (count + extra,)), 0)
    return t.sub(total, 1) if extra else total


def _may_be_zero(product: int) -> bool:
    """Return whether a product of sizes may be 0 at run time.

    A symbol is a size of an input, which is at least 1. Another factor, such as ``n //
    2``, may be 0.
    """
    if not isinstance(product, Size):
        return False
    return not all(
        isinstance(factor, Symbol) for monomial in product.terms for factor in monomial
    )


def _as_fp32(t: Operators, number: Number) -> Value:
    """Return ``number`` as a tensor [1] of fp32."""
    return computed(t, number, DType.FP32)


def _quotient(t: Operators, left: Number, right: Number) -> Value:
    """Return left / right, rounded to the nearest float as torch does.

    The last bit may decide which pixel is the nearest.
    """
    divisor = _as_fp32(t, right)
    inverse = t.reciprocal(divisor)
    # RECIPROCAL returns 1 / right
    if left == 1:
        return inverse
    dividend = _as_fp32(t, left)
    return rounded_quotient(t, dividend, divisor, t.mul(dividend, inverse))


def _power(t: Operators, base: Number, exponent: Number) -> Value:
    """base ** exponent.

    An exponent of 0.5 or -0.5 is computed by RSQRT, which is more exact than POW.
    """
    if exponent in (0.5, -0.5):
        root = t.rsqrt(_as_fp32(t, base))
        return root if exponent < 0 else t.reciprocal(root)
    return t.pow(_as_fp32(t, base), _as_fp32(t, exponent))


_FUNCTIONS = {
    "+": lambda t, left, right: t.add(_as_fp32(t, left), _as_fp32(t, right)),
    "*": lambda t, left, right: t.mul(_as_fp32(t, left), _as_fp32(t, right)),
    "/": _quotient,
    "**": _power,
}
"""The functions of a ``Formula``, on its two operands."""

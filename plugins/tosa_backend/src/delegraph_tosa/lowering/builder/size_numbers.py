"""Sizes as numbers: tensors of one element, computed of sizes that are known at run time only.

TOSA makes no tensor of a shape. But a tensor can be as long as a size says: so many ones are added up.
"""

from __future__ import annotations

from typing import Any

from ...ir.formulas import Formula, Relation
from ...ir.graph import Value
from ...ir.sizes import Size, Symbol, is_dynamic, products
from ...ir.types import DType
from .division import rounded_quotient
from .operators import Operators

Number = Any
"""A number, a size or a formula."""


def computed(t: Operators, number: Number, dtype: DType) -> Value:
    """[1] of ``dtype``, int32 or fp32; a formula is computed in fp32, and cut to an integer as torch does."""
    if is_dynamic(number):
        return _counted(t, number, dtype)
    if not isinstance(number, Formula):
        return t.constant(number, dtype)
    found: Value = _FUNCTIONS[number.function](t, number.left, number.right)
    if dtype is DType.FP32:
        return found
    return t.cast(t.select(t.greater_equal(found, 0), t.floor(found), t.ceil(found)), dtype)


def truth(t: Operators, relation: Relation) -> Value:
    """[1] BOOL"""
    compare = {">": t.greater, ">=": t.greater_equal, "==": t.equal}[relation.function]
    left, right = (computed(t, size, DType.INT32) for size in (relation.left, relation.right))
    found = compare(left, right)
    return t.logical_not(found) if relation.not_ else found


def _counted(t: Operators, size: int, dtype: DType) -> Value:
    """Floats count up to 2**24."""
    total: Value | None = None
    for count, factor in products(size):
        part = t.mul(_ones(t, count, dtype), factor)
        total = part if total is None else t.add(total, part)
    assert total is not None
    return total


def _ones(t: Operators, count: int, dtype: DType) -> Value:
    """The sum of so many ones, [1]. Of what may be 0 there is one more, since no tensor of TOSA is empty."""
    more = 1 if _may_be_zero(count) else 0
    total = t.reduce_sum(t.tile(t.constant(1, dtype), (count + more,)), 0)
    return t.sub(total, 1) if more else total


def _may_be_zero(product: int) -> bool:
    """Whether a product has a factor that is not the size of a tensor, such as ``n // 2``."""
    if not isinstance(product, Size):
        return False
    return not all(isinstance(one, Symbol) for monomial in product.terms for one in monomial)


def _float(t: Operators, number: Number) -> Value:
    return computed(t, number, DType.FP32)


def _quotient(t: Operators, left: Number, right: Number) -> Value:
    """As torch rounds it: which element is the nearest may depend on the last bit of a ratio of sizes."""
    divisor = _float(t, right)
    inverse = t.reciprocal(divisor)
    if left == 1:
        return inverse
    dividend = _float(t, left)
    return rounded_quotient(t, dividend, divisor, t.mul(dividend, inverse))


def _power(t: Operators, base: Number, exponent: Number) -> Value:
    if exponent in (0.5, -0.5):
        root = t.rsqrt(_float(t, base))
        return root if exponent < 0 else t.reciprocal(root)
    return t.pow(_float(t, base), _float(t, exponent))


_FUNCTIONS = {
    "+": lambda t, left, right: t.add(_float(t, left), _float(t, right)),
    "*": lambda t, left, right: t.mul(_float(t, left), _float(t, right)),
    "/": _quotient,
    "**": _power,
}

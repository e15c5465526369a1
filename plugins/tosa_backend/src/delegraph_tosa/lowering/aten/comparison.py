"""Comparisons, logical operators, and selection by a condition."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ...ir.dynamic_sizes import is_dynamic
from ...ir.graph import Literal, Value
from ...ir.types import ARRAY_DTYPES, DType
from ..builder import Operand, Tosa
from ..lazy.lazy_values import Joined, trial
from ..promotion import converted, promoted
from ..registry import lowers
from ..torch_values.tensor_types import dtype_of, dtype_of_number

aten = torch.ops.aten


@lowers(aten.eq.Tensor, aten.eq.Scalar)
def eq(t: Tosa, self: Value, other: Operand) -> Value:
    """[*S], [*S] -> [*S]; bool"""
    left, right = promoted(t, self, other)
    if isinstance(left, Value) and left.dtype is DType.BOOL:
        return t.logical_not(t.logical_xor(left, right))
    return t.equal(left, right)


@lowers(aten.ne.Tensor, aten.ne.Scalar)
def ne(t: Tosa, self: Value, other: Operand) -> Value:
    """[*S], [*S] -> [*S]; bool; NaN differs from every number and from NaN"""
    return t.logical_not(eq(t, self, other))


@lowers(aten.gt.Tensor, aten.gt.Scalar)
def gt(t: Tosa, self: Value, other: Operand) -> Value:
    """[*S], [*S] -> [*S]; bool"""
    left, right = promoted(t, self, other)
    return t.greater(left, right)


@lowers(aten.ge.Tensor, aten.ge.Scalar)
def ge(t: Tosa, self: Value, other: Operand) -> Value:
    """[*S], [*S] -> [*S]; bool"""
    left, right = promoted(t, self, other)
    return t.greater_equal(left, right)


@lowers(aten.lt.Tensor, aten.lt.Scalar)
def lt(t: Tosa, self: Value, other: Operand) -> Value:
    """[*S], [*S] -> [*S]; bool; GREATER with the operands exchanged"""
    left, right = promoted(t, self, other)
    return t.greater(right, left)


@lowers(aten.le.Tensor, aten.le.Scalar)
def le(t: Tosa, self: Value, other: Operand) -> Value:
    """[*S], [*S] -> [*S]; bool; GREATER_EQUAL with the operands exchanged"""
    left, right = promoted(t, self, other)
    return t.greater_equal(right, left)


@lowers(aten.logical_and.default)
def logical_and(t: Tosa, self: Value, other: Value) -> Value:
    """[*S], [*S] -> [*S]; bool; a number is true unless it is 0"""
    left = converted(t, self, DType.BOOL)
    right = converted(t, other, DType.BOOL)
    return t.logical_and(left, right)


@lowers(aten.logical_or.default)
def logical_or(t: Tosa, self: Value, other: Value) -> Value:
    """[*S], [*S] -> [*S]; bool; a number is true unless it is 0"""
    left = converted(t, self, DType.BOOL)
    right = converted(t, other, DType.BOOL)
    return t.logical_or(left, right)


@lowers(aten.logical_xor.default)
def logical_xor(t: Tosa, self: Value, other: Value) -> Value:
    """[*S], [*S] -> [*S]; bool; a number is true unless it is 0"""
    left = converted(t, self, DType.BOOL)
    right = converted(t, other, DType.BOOL)
    return t.logical_xor(left, right)


@lowers(aten.logical_not.default)
def logical_not(t: Tosa, self: Value) -> Value:
    """[*S] -> [*S]; bool; a number is true unless it is 0"""
    return t.logical_not(converted(t, self, DType.BOOL))


@lowers(aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther)
def where(t: Tosa, condition: Value, self: Operand, other: Operand) -> Value:
    """[*S], [*S], [*S] -> [*S]"""
    on_true, on_false = promoted(t, self, other)
    mask = converted(t, condition, DType.BOOL)
    return chosen(t, mask, on_true, on_false)


@lowers(aten.where.Scalar)
def where_of_numbers(t: Tosa, condition: Value, self: float, other: float) -> Value:
    """condition [*S] -> [*S] of the type to which torch promotes the two numbers"""
    dtype = dtype_of(torch.promote_types(dtype_of_number(self), dtype_of_number(other)))
    shape = (1,) * condition.rank
    on_true = t.constant(self, dtype, shape)
    on_false = t.constant(other, dtype, shape)
    mask = converted(t, condition, DType.BOOL)
    return chosen(t, mask, on_true, on_false)


def chosen(t: Tosa, condition: Value, on_true: Operand, on_false: Operand) -> Value:
    """Return ``on_true`` where ``condition`` is true, else ``on_false``, by SELECT.

    On a target without floats, a choice between two float constants is a lazy value. It
    is quantized when it is added to quantized values. An example is a mask of 0 and
    -inf.
    """
    # with a constant condition, SELECT folds to a constant by itself
    if "FP" in t.spec.profiles or condition.constant is not None:
        return t.select(condition, on_true, on_false)
    parts = [_value_of(t, on_true), _value_of(t, on_false)]
    for part in parts:
        if part.constant is None or part.dtype is not DType.FP32:
            return t.select(condition, on_true, on_false)

    def join(t: Tosa, parts: list[Value]) -> Value:
        """Return SELECT of both ``parts``, after they were quantized."""
        return t.select(condition, *parts)

    # the trial builder discards its operators: only the shape of its result is used
    tried = join(trial(), [Value(part.type) for part in parts])
    return Joined(parts, join, tried.shape)


def _value_of(t: Tosa, operand: Operand) -> Value:
    """Return a number as an fp32 constant []. Return a value as it is."""
    if isinstance(operand, Value):
        return operand
    return t.constant(operand, DType.FP32, ())


@lowers(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(t: Tosa, self: Value, mask: Value, value: Operand) -> Value:
    """self [*S], mask bool [*S], value [] -> [*S]"""
    if isinstance(value, Value):
        value = converted(t, value, self.dtype)
    return chosen(t, mask, value, self)


# ---- triangles: a mask of the last two axes, constant if their sizes are known


def triangle(t: Tosa, x: Value, kept: Value) -> Value:
    """Return x [*S,H,W] where the bool mask ``kept`` [H,W] is true, 0 elsewhere"""
    mask = t.ranked(kept, x.rank)
    if kept.constant is None:
        # with a constant mask the result folds to a constant, which needs all elements
        x = _as_one_number(t, x)
    if x.dtype is DType.BOOL:
        return t.logical_and(mask, x)
    return t.select(mask, x, 0)


def _as_one_number(t: Tosa, x: Value) -> Value:
    """Return a constant x of equal elements as one element, to keep the file small.

    Other x are returned unchanged.
    """
    if x.dtype not in (DType.BOOL, DType.FP32, DType.INT32):
        return x
    if not isinstance(x.constant, Literal):
        return x
    elements = x.constant.materialize()
    if elements.size == 0:
        return x
    number = elements.flat[0]
    if not (elements == number).all():
        return x
    return t.constant(number.item(), x.dtype, (1,) * x.rank)


def lower_triangle(t: Tosa, shape: Sequence[int], diagonal: int = 0) -> Value:
    """Return a mask bool [H,W] for a tensor of ``shape`` (*S,H,W).

    It is true where row + diagonal >= column. If H and W are known, GREATER_EQUAL folds
    to a constant, unless the constant would be too large for the file.
    """
    rows, columns = shape[-2:]
    if is_dynamic(rows) or is_dynamic(columns):
        row = t.reshape(t.numbers(rows, DType.FP32), (rows, 1))
        return t.greater_equal(t.add(row, diagonal), t.numbers(columns, DType.FP32))
    dtype = DType.FP32 if "FP" in t.spec.profiles else DType.INT32
    array_dtype = ARRAY_DTYPES[dtype]
    row_numbers = np.arange(rows)[:, None] + diagonal
    column_numbers = np.arange(columns)[None]
    row = t.literal(row_numbers.astype(array_dtype), dtype)
    column = t.literal(column_numbers.astype(array_dtype), dtype)
    return t.greater_equal(row, column)


@lowers(aten.tril.default)
def tril(t: Tosa, self: Value, diagonal: int) -> Value:
    """[*S,H,W] -> [*S,H,W]; 0 above the diagonal"""
    return triangle(t, self, lower_triangle(t, self.shape, diagonal))


@lowers(aten.triu.default)
def triu(t: Tosa, self: Value, diagonal: int) -> Value:
    """[*S,H,W] -> [*S,H,W]; 0 below the diagonal"""
    below = lower_triangle(t, self.shape, diagonal - 1)
    return triangle(t, self, t.logical_not(below))

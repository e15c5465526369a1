"""Promotes the operands of an operator to one type, and casts, as torch does."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from ..ir.dynamic_sizes import is_dynamic, waits
from ..ir.graph import Value
from ..ir.operators import CAST
from ..ir.types import FLOAT8, FLOATS, DType
from .builder import Operand, Tosa
from .float8 import rounded, widened
from .torch_values.tensor_types import TORCH_DTYPES, dtype_of


def converted(t: Tosa, x: Value, dtype: DType) -> Value:
    """x [*S] -> [*S] of ``dtype``, cast as in torch

    torch truncates floats to integers; CAST rounds to nearest.
    """
    if x.dtype is dtype:
        return x
    # TOSA casts fp8 from and to floats alone
    if x.dtype in FLOAT8 and dtype in FLOATS:
        return widened(t, x, dtype)
    if x.dtype in FLOAT8:
        return converted(t, widened(t, x), dtype)
    if dtype in FLOAT8:
        return rounded(t, floating_value(t, x), dtype)
    from_float = x.dtype in FLOATS
    # TOSA 1.0 has no CAST between floats and bools (1.1 has): EQUAL and SELECT replace
    # it
    if from_float and dtype is DType.BOOL:
        if t.takes(CAST, (x,), dtype=dtype):
            return t.cast(x, dtype)
        return t.logical_not(t.equal(x, 0))
    if x.dtype is DType.BOOL and dtype in FLOATS:
        if t.takes(CAST, (x,), dtype=dtype):
            return t.cast(x, dtype)
        one = t.constant(1, dtype, (1,) * x.rank)
        return t.select(x, one, 0)
    if from_float and dtype not in FLOATS:
        return _truncated_to_integer(t, x, dtype)
    return t.cast(x, dtype)


def _truncated_to_integer(t: Tosa, x: Value, dtype: DType) -> Value:
    """Return floats truncated to integers of the type ``dtype``.

    For infinities, NaN and numbers beyond int32 torch's result is undefined. On most
    processors it is the lowest int32, and for smaller types the low bits of that; this
    does the same.
    """
    # only floats that ``interpret.saturation`` clamped have a range, which fits into
    # int32
    if x.range is not None:
        narrow = t.cast(truncated(t, x), DType.INT32)
        narrow.range = x.range
        return t.cast(narrow, dtype)
    # numbers from 2**31 on and NaN do not fit: they become -2**31. CAST saturates
    # numbers below -2**31 to the same
    fits = t.greater(2.0**31, x)
    whole = t.select(fits, truncated(t, x), -(2.0**31))
    if dtype is not DType.INT64:
        # smaller types keep the low bits of the int32
        whole = t.cast(whole, DType.INT32)
    return t.cast(whole, dtype)


def truncated(t: Tosa, x: Value) -> Value:
    """x [*S] -> [*S], each element rounded towards zero."""
    return t.select(t.greater_equal(x, 0), t.floor(x), t.ceil(x))


def promoted(t: Tosa, left: Operand, right: Operand) -> tuple[Operand, Operand]:
    """Return both operands of an operator in their common type.

    A Python number stays a number, but may promote the tensor: an integer tensor plus
    0.5 is computed in floats.
    """
    if isinstance(left, Value) and isinstance(right, Value):
        if left.dtype is right.dtype:
            return left, right
        common = _common(left.dtype, left.rank > 0, right.dtype, right.rank > 0)
        return converted(t, left, common), converted(t, right, common)
    if isinstance(left, Value):
        assert not isinstance(right, Value)
        return _promoted_by_number(t, left, right), right
    assert isinstance(right, Value)
    return left, _promoted_by_number(t, right, left)


def common_type(values: Sequence[Value]) -> DType:
    """Return the type to which torch promotes several tensors, as ``cat`` does."""
    dtype = values[0].dtype
    ranked = values[0].rank > 0
    for value in values[1:]:
        if value.dtype is not dtype:
            dtype = _common(dtype, ranked, value.dtype, value.rank > 0)
        # torch lets a tensor without axes promote less than one with axes
        ranked = ranked or value.rank > 0
    return dtype


def floating(t: Tosa, operand: Operand) -> Operand:
    """Return a tensor of integers or bools as fp32, torch's default type.

    Returns floats and Python numbers as they are.
    """
    if isinstance(operand, Value):
        return floating_value(t, operand)
    return operand


def floating_value(t: Tosa, value: Value) -> Value:
    """As ``floating``, for an operand that is never a Python number."""
    if value.dtype in FLOATS:
        return value
    return converted(t, value, DType.FP32)


def _promoted_by_number(t: Tosa, value: Value, number: float) -> Value:
    """Cast ``value`` to the type in which torch combines it with ``number``."""
    if value.dtype in FLOATS:
        return value
    # a number that is known at run time only has no Python type: a size counts as int,
    # others as float
    kind: Any = type(number)
    if is_dynamic(number):
        kind = int
    elif waits(number):
        kind = float
    return converted(t, value, _with_number(value.dtype, kind))


@cache
def _with_number(dtype: DType, kind: Any) -> DType:
    """Return torch's result type for a tensor and a Python number of type ``kind``."""
    common = torch.result_type(_sample(dtype, ranked=True), kind(1))
    return dtype_of(common)


@cache
def _common(left: DType, left_ranked: bool, right: DType, right_ranked: bool) -> DType:
    """Return torch's result type for tensors of the types ``left`` and ``right``.

    ``left_ranked`` and ``right_ranked`` are false for a tensor without axes.
    """
    common = torch.result_type(_sample(left, left_ranked), _sample(right, right_ranked))
    return dtype_of(common)


def _sample(dtype: DType, ranked: bool) -> torch.Tensor:
    """Return a tensor of ``dtype`` for ``torch.result_type``.

    It is [1] if ``ranked``, else [], which promotes less.
    """
    shape = (1,) if ranked else ()
    return torch.empty(shape, dtype=TORCH_DTYPES[dtype])

"""Torch's type promotion: what the operands of one operator are computed in."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from ..ir.graph import Value
from ..ir.operators import CAST
from ..ir.sizes import is_dynamic, waits
from ..ir.types import FLOATS, DType
from .builder import Operand, Tosa
from .torch_values.types import TORCH_DTYPES, dtype_of


def converted(t: Tosa, x: Value, dtype: DType) -> Value:
    """x [*S] -> [*S] of ``dtype``. torch cuts a float to an integer where CAST takes the nearest one."""
    if x.dtype is dtype:
        return x
    if dtype is DType.BOOL and x.dtype in FLOATS and not t.takes(CAST, (x,), dtype=dtype):  # TOSA 1.1 does
        return t.logical_not(t.equal(x, 0))
    if x.dtype is DType.BOOL and dtype in FLOATS and not t.takes(CAST, (x,), dtype=dtype):
        return t.select(x, t.constant(1, dtype, (1,) * x.rank), 0)
    if x.dtype in FLOATS and dtype not in FLOATS and dtype is not DType.BOOL:
        return _cut(t, x, dtype)
    return t.cast(x, dtype)


def _cut(t: Tosa, x: Value, dtype: DType) -> Value:
    """Floats as integers, cut towards zero.

    CAST takes the nearest integer of its type. What int32 does not hold, infinities and NaN are left open by torch,
    which gives the lowest int32 on most processors; smaller types have the low bits of that.
    """
    if x.range is not None:
        narrow = t.cast(truncated(t, x), DType.INT32)
        narrow.range = x.range
        return t.cast(narrow, dtype)
    fits = t.greater(2.0**31, x)
    whole = t.select(fits, truncated(t, x), -(2.0**31))
    return t.cast(whole, dtype) if dtype is DType.INT64 else t.cast(t.cast(whole, DType.INT32), dtype)


def truncated(t: Tosa, x: Value) -> Value:
    """x [*S] -> [*S], towards zero."""
    return t.select(t.greater_equal(x, 0), t.floor(x), t.ceil(x))


def promoted(t: Tosa, left: Operand, right: Operand) -> tuple[Operand, Operand]:
    """Both operands in their common type; numbers stay numbers, but may ask for another type of the value."""
    if isinstance(left, Value) and isinstance(right, Value):
        if left.dtype is right.dtype:
            return left, right
        common = _common(left.dtype, left.rank > 0, right.dtype, right.rank > 0)
        return converted(t, left, common), converted(t, right, common)
    if isinstance(left, Value):
        return _beside(t, left, right), right  # type: ignore[arg-type]
    return left, _beside(t, right, left)  # type: ignore[arg-type]


def common_type(values: Sequence[Value]) -> DType:
    """The type in which values are joined."""
    dtype, ranked = values[0].dtype, values[0].rank > 0
    for value in values[1:]:
        dtype = dtype if value.dtype is dtype else _common(dtype, ranked, value.dtype, value.rank > 0)
        ranked = ranked or value.rank > 0
    return dtype


def floating(t: Tosa, operand: Operand) -> Operand:
    """Integers and truth values as fp32, torch's default type; floats and numbers as they are."""
    if isinstance(operand, Value) and operand.dtype not in FLOATS:
        return converted(t, operand, DType.FP32)
    return operand


def floating_value(t: Tosa, value: Value) -> Value:
    """As ``floating``, of what is a value for sure."""
    return value if value.dtype in FLOATS else converted(t, value, DType.FP32)


def _beside(t: Tosa, value: Value, number: float) -> Value:
    """``value`` in the type that torch computes in when its other operand is a Python number."""
    if value.dtype in FLOATS:
        return value
    kind: Any = int if is_dynamic(number) else float if waits(number) else type(number)
    return converted(t, value, _with_number(value.dtype, kind))


@cache
def _with_number(dtype: DType, kind: Any) -> DType:
    return dtype_of(torch.result_type(torch.empty(1, dtype=TORCH_DTYPES[dtype]), kind(1)))


@cache
def _common(left: DType, left_ranked: bool, right: DType, right_ranked: bool) -> DType:
    return dtype_of(torch.result_type(_sample(left, left_ranked), _sample(right, right_ranked)))


def _sample(dtype: DType, ranked: bool) -> torch.Tensor:
    """A tensor of that type; one without axes promotes less."""
    return torch.empty((1,) if ranked else (), dtype=TORCH_DTYPES[dtype])

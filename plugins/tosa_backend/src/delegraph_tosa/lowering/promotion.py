"""torch's type promotion: the type in which the operands of an operator are computed.

And casts as torch has them.
"""

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
    if x.dtype in FLOAT8:
        return (
            widened(t, x, dtype)
            if dtype in FLOATS
            else converted(t, widened(t, x), dtype)
        )
    if dtype in FLOAT8:
        return rounded(
            t, x if x.dtype in FLOATS else converted(t, x, DType.FP32), dtype
        )
    # TOSA 1.0 has no CAST between floats and bools (1.1 has): EQUAL and SELECT replace
    # it
    if (
        dtype is DType.BOOL
        and x.dtype in FLOATS
        and not t.takes(CAST, (x,), dtype=dtype)
    ):
        return t.logical_not(t.equal(x, 0))
    if (
        x.dtype is DType.BOOL
        and dtype in FLOATS
        and not t.takes(CAST, (x,), dtype=dtype)
    ):
        return t.select(x, t.constant(1, dtype, (1,) * x.rank), 0)
    if x.dtype in FLOATS and dtype not in FLOATS and dtype is not DType.BOOL:
        return _cut_to_integer(t, x, dtype)
    return t.cast(x, dtype)


def _cut_to_integer(t: Tosa, x: Value, dtype: DType) -> Value:
    """Floats truncated to integers of the type ``dtype``.

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
    # false from 2**31 on and for NaN, which become -2**31; CAST saturates a number
    # below -2**31 to the same
    fits = t.greater(2.0**31, x)
    truncated_x = t.select(fits, truncated(t, x), -(2.0**31))
    # smaller types keep the low bits of the int32
    return (
        t.cast(truncated_x, dtype)
        if dtype is DType.INT64
        else t.cast(t.cast(truncated_x, DType.INT32), dtype)
    )


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
        return _beside_number(t, left, right), right  # type: ignore[arg-type]
    return left, _beside_number(t, right, left)  # type: ignore[arg-type]


def common_type(values: Sequence[Value]) -> DType:
    """Return the type to which torch promotes several tensors, as ``cat`` does."""
    dtype = values[0].dtype
    ranked = values[0].rank > 0
    for value in values[1:]:
        dtype = (
            dtype
            if value.dtype is dtype
            else _common(dtype, ranked, value.dtype, value.rank > 0)
        )
        # torch lets a tensor without axes promote less than one with axes
        ranked = ranked or value.rank > 0
    return dtype


def floating(t: Tosa, operand: Operand) -> Operand:
    """Return a tensor of integers or bools as fp32, torch's default type.

    Floats and Python numbers as they are.
    """
    if isinstance(operand, Value) and operand.dtype not in FLOATS:
        return converted(t, operand, DType.FP32)
    return operand


def floating_value(t: Tosa, value: Value) -> Value:
    """As ``floating``, for an operand that is never a Python number."""
    return value if value.dtype in FLOATS else converted(t, value, DType.FP32)


def _beside_number(t: Tosa, value: Value, number: float) -> Value:
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
    return dtype_of(
        torch.result_type(torch.empty(1, dtype=TORCH_DTYPES[dtype]), kind(1))
    )


@cache
def _common(left: DType, left_ranked: bool, right: DType, right_ranked: bool) -> DType:
    """torch's result type for two tensors.

    ``left_ranked``: whether the left one has axes.
    """
    return dtype_of(
        torch.result_type(_sample(left, left_ranked), _sample(right, right_ranked))
    )


def _sample(dtype: DType, ranked: bool) -> torch.Tensor:
    """Return a tensor of ``dtype`` for ``torch.result_type``.

    It is [1] if ``ranked``, else [], which promotes less.
    """
    return torch.empty((1,) if ranked else (), dtype=TORCH_DTYPES[dtype])

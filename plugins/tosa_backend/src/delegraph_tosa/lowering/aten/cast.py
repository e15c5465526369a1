"""Conversions between element types as torch has them."""

from __future__ import annotations

from typing import Any

import torch

from ...ir.graph import Value
from ...ir.types import FLOATS, DType
from ..builder import Tosa
from ..registry import lowers
from ..torch_types import dtype_of

aten = torch.ops.aten


def converted(t: Tosa, x: Value, dtype: DType) -> Value:
    """x [*S] -> [*S] of ``dtype``. torch cuts a float to an integer where CAST takes the nearest one."""
    if x.dtype is dtype:
        return x
    if dtype is DType.BOOL:
        return t.logical_not(t.equal(x, 0)) if x.dtype in FLOATS else t.cast(x, dtype)
    if x.dtype is DType.BOOL and dtype in FLOATS:
        return t.select(x, t.constant(1, dtype, (1,) * x.rank), 0)
    if x.dtype in FLOATS and dtype not in FLOATS:
        return t.cast(truncated(t, x), dtype)
    return t.cast(x, dtype)


def truncated(t: Tosa, x: Value) -> Value:
    """x [*S] -> [*S], towards zero."""
    return t.select(t.greater_equal(x, 0), t.floor(x), t.ceil(x))


def to_torch(t: Tosa, x: Value, dtype: torch.dtype | None) -> Value:
    """x as ``dtype``; as it is if that is None."""
    return x if dtype is None else converted(t, x, dtype_of(dtype))


@lowers(aten.to.dtype)
def to_dtype(t: Tosa, self: Value, dtype: torch.dtype, non_blocking: bool, copy: bool, memory_format: Any) -> Value:
    """[*S] -> [*S]"""
    return to_torch(t, self, dtype)


@lowers(aten.to.dtype_layout)
def to_dtype_layout(
    t: Tosa,
    self: Value,
    dtype: torch.dtype | None,
    layout: Any,
    device: Any,
    pin_memory: Any,
    non_blocking: bool,
    copy: bool,
    memory_format: Any,
) -> Value:
    """[*S] -> [*S]"""
    return to_torch(t, self, dtype)


@lowers(aten._to_copy.default)
def _to_copy(
    t: Tosa,
    self: Value,
    dtype: torch.dtype | None,
    layout: Any,
    device: Any,
    pin_memory: Any,
    non_blocking: bool,
    memory_format: Any,
) -> Value:
    """[*S] -> [*S]"""
    return to_torch(t, self, dtype)


@lowers(aten.to.device)
def to_device(
    t: Tosa, self: Value, device: Any, dtype: torch.dtype, non_blocking: bool, copy: bool, memory_format: Any
) -> Value:
    """[*S] -> [*S]"""
    return to_torch(t, self, dtype)


@lowers(aten.to.other)
def to_other(t: Tosa, self: Value, other: Value, non_blocking: bool, copy: bool, memory_format: Any) -> Value:
    """[*S] -> [*S] of the other's type"""
    return converted(t, self, other.dtype)


@lowers(aten.type_as.default)
def type_as(t: Tosa, self: Value, other: Value) -> Value:
    """[*S] -> [*S] of the other's type"""
    return converted(t, self, other.dtype)

"""Conversions between element types as torch has them."""

from __future__ import annotations

from typing import Any

import torch

from ...ir.graph import Value
from ...ir.types import Type
from ..builder import Tosa
from ..promotion import converted
from ..registry import lowers
from ..torch_types import dtype_of

aten = torch.ops.aten


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
def to_other(t: Tosa, self: Value, other: Type, non_blocking: bool, copy: bool, memory_format: Any) -> Value:
    """[*S] -> [*S] of the other's type"""
    return converted(t, self, other.dtype)


@lowers(aten.type_as.default)
def type_as(t: Tosa, self: Value, other: Type) -> Value:
    """[*S] -> [*S] of the other's type"""
    return converted(t, self, other.dtype)

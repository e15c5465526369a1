"""Tensors from nothing: constants, whatever their operands are. What is large is tiled from one element."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ...ir.graph import Literal, Value
from ...ir.types import ARRAY_DTYPES, DType, Type
from ..builder import FOLDED_BYTES, Shape, Tosa
from ..registry import lowers
from ..torch_types import TORCH_DTYPES, dtype_of

aten = torch.ops.aten


def filled(t: Tosa, shape: Sequence[int], number: float, dtype: torch.dtype | None) -> Value:
    """A tensor of ``number``; without a dtype, of the one that torch gives such a number."""
    if dtype is None:
        dtype = torch.tensor(number).dtype
    return t.tile(t.constant(number, dtype_of(dtype), (1,) * len(shape)), shape)


def _like(t: Tosa, x: Value, number: float, dtype: torch.dtype | None) -> Value:
    return filled(t, x.shape, number, TORCH_DTYPES[x.dtype] if dtype is None else dtype)


@lowers(aten.full.default)
def full(
    t: Tosa, size: Shape, fill_value: float, dtype: torch.dtype | None, layout: Any, device: Any, pin_memory: Any
) -> Value:
    """-> [*size]"""
    return filled(t, size, fill_value, dtype)


@lowers(aten.ones.default)
def ones(t: Tosa, size: Shape, dtype: torch.dtype | None, layout: Any, device: Any, pin_memory: Any) -> Value:
    """-> [*size]"""
    return filled(t, size, 1.0, dtype)


@lowers(aten.zeros.default)
def zeros(t: Tosa, size: Shape, dtype: torch.dtype | None, layout: Any, device: Any, pin_memory: Any) -> Value:
    """-> [*size]"""
    return filled(t, size, 0.0, dtype)


@lowers(aten.scalar_tensor.default)
def scalar_tensor(t: Tosa, s: float, dtype: torch.dtype | None, layout: Any, device: Any, pin_memory: Any) -> Value:
    """-> []"""
    return filled(t, (), float(s) if dtype is None else s, dtype)


@lowers(aten.full_like.default)
def full_like(
    t: Tosa,
    self: Value,
    fill_value: float,
    dtype: torch.dtype | None,
    layout: Any,
    device: Any,
    pin_memory: Any,
    memory_format: Any,
) -> Value:
    """[*S] -> [*S]"""
    return _like(t, self, fill_value, dtype)


@lowers(aten.ones_like.default)
def ones_like(
    t: Tosa, self: Value, dtype: torch.dtype | None, layout: Any, device: Any, pin_memory: Any, memory_format: Any
) -> Value:
    """[*S] -> [*S]"""
    return _like(t, self, 1, dtype)


@lowers(aten.zeros_like.default)
def zeros_like(
    t: Tosa, self: Value, dtype: torch.dtype | None, layout: Any, device: Any, pin_memory: Any, memory_format: Any
) -> Value:
    """[*S] -> [*S]"""
    return _like(t, self, 0, dtype)


def counted(t: Tosa, start: float, end: float, step: float, dtype: torch.dtype | None) -> Value:
    """start, start + step, ... before ``end``; whole numbers make int64, which folds away or is refused"""
    made = torch.arange(start, end, step, dtype=dtype)
    element = dtype_of(made.dtype)
    t.require(_small(made.numel(), element), f"arange of {made.numel()} elements is too large for a constant")
    return Value(Type(tuple(made.shape), element), Literal(made.numpy()))


def _small(count: int, dtype: DType) -> bool:
    return count * np.dtype(ARRAY_DTYPES[dtype]).itemsize <= FOLDED_BYTES


@lowers(aten.arange.default)
def arange(t: Tosa, end: float, dtype: torch.dtype | None, layout: Any, device: Any, pin_memory: Any) -> Value:
    """-> [N]"""
    return counted(t, 0, end, 1, dtype)


@lowers(aten.arange.start)
def arange_start(
    t: Tosa, start: float, end: float, dtype: torch.dtype | None, layout: Any, device: Any, pin_memory: Any
) -> Value:
    """-> [N]"""
    return counted(t, start, end, 1, dtype)


@lowers(aten.arange.start_step)
def arange_start_step(
    t: Tosa,
    start: float,
    end: float,
    step: float,
    dtype: torch.dtype | None,
    layout: Any,
    device: Any,
    pin_memory: Any,
) -> Value:
    """-> [N]"""
    return counted(t, start, end, step, dtype)

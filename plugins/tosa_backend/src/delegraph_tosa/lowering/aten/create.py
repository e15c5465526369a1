"""Operators that create a tensor from numbers: full, zeros, arange and others.

The result is a constant. If all elements are equal, the constant has one element, and
TILE repeats it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch

from ...ir.dynamic_sizes import Range, is_dynamic, waits
from ...ir.dynamic_sizes import range_of as size_range
from ...ir.graph import Value
from ...ir.types import Type
from ..builder import Shape, Tosa
from ..registry import lowers
from ..torch_values.hints import by_size, too_large
from ..torch_values.tensor_types import (
    TORCH_DTYPES,
    array_of,
    dtype_of,
    dtype_of_number,
    refused,
)

aten = torch.ops.aten

LARGEST = 1 << 20
"""The most elements of a constant that a rule makes, unless they are all equal."""


def filled(
    t: Tosa, shape: Sequence[int], number: float, dtype: torch.dtype | None
) -> Value:
    """Return a tensor of ``shape`` filled with ``number``.

    A ``dtype`` of None is torch's default type for ``number``.
    """
    if dtype is None:
        dtype = dtype_of_number(number)
    element = t.constant(number, dtype_of(dtype), (1,) * len(shape))
    return t.tile(element, shape)


@lowers(aten.full.default)
def full(t: Tosa, size: Shape, fill_value: float, dtype: torch.dtype | None) -> Value:
    """-> [*size]"""
    return filled(t, size, fill_value, dtype)


@lowers(aten.ones.default)
def ones(t: Tosa, size: Shape, dtype: torch.dtype | None) -> Value:
    """-> [*size]"""
    return filled(t, size, 1.0, dtype)


@lowers(aten.zeros.default, aten.empty.memory_format)
def zeros(t: Tosa, size: Shape, dtype: torch.dtype | None) -> Value:
    """-> [*size]; torch leaves the elements of ``empty`` undefined"""
    return filled(t, size, 0.0, dtype)


@lowers(aten.scalar_tensor.default)
def scalar_tensor(t: Tosa, s: float, dtype: torch.dtype | None) -> Value:
    """-> []; fp32 if no dtype is given"""
    if dtype is None:
        dtype = torch.float32
    return filled(t, (), s, dtype)


@lowers(aten.full_like.default, aten.new_full.default)
def full_like(
    t: Tosa,
    self: Type,
    fill_value: float,
    dtype: torch.dtype | None,
    size: Shape | None = None,
) -> Value:
    """[*S] -> [*size]; S where the operator has no ``size``; a ``dtype`` of None is the
    type of ``self``
    """
    shape = self.shape if size is None else size
    if dtype is None:
        dtype = TORCH_DTYPES[self.dtype]
    return filled(t, shape, fill_value, dtype)


@lowers(aten.ones_like.default, aten.new_ones.default)
def ones_like(
    t: Tosa, self: Type, dtype: torch.dtype | None, size: Shape | None = None
) -> Value:
    """[*S] -> [*size]; S where the operator has no ``size``"""
    return full_like(t, self, 1, dtype, size)


@lowers(
    aten.zeros_like.default,
    aten.new_zeros.default,
    aten.empty_like.default,
    aten.new_empty.default,
)
def zeros_like(
    t: Tosa, self: Type, dtype: torch.dtype | None, size: Shape | None = None
) -> Value:
    """[*S] -> [*size]; S where the operator has no ``size``; torch leaves the elements
    of empty tensors undefined
    """
    return full_like(t, self, 0, dtype, size)


# ---- different elements


@lowers(aten.eye.default, aten.eye.m)
def eye(t: Tosa, n: int, dtype: torch.dtype | None, m: int | None = None) -> Value:
    """-> [n,m]; n x n where the operator has no ``m``"""
    columns = n if m is None else m
    numbers = torch.eye(int(n), int(columns), dtype=dtype)
    return _literal(t, numbers, "eye")


@lowers(aten.linspace.default)
def linspace(
    t: Tosa, start: float, end: float, steps: int, dtype: torch.dtype | None
) -> Value:
    """-> [steps]"""
    numbers = torch.linspace(float(start), float(end), int(steps), dtype=dtype)
    return _literal(t, numbers, "linspace")


def _literal(t: Tosa, tensor: torch.Tensor, name: str) -> Value:
    """Return ``tensor`` as a constant.

    Raises Unsupported, with the operator's ``name``, for more elements than LARGEST.
    """
    count = tensor.numel()
    if count > LARGEST:
        why = (
            f"{name} of {count} elements is too large for a constant that is made here"
        )
        raise refused(too_large(why))
    return t.literal(array_of(tensor), dtype_of(tensor.dtype))


@lowers(aten.arange.default, aten.arange.start, aten.arange.start_step)
def arange(
    t: Tosa, end: float, dtype: torch.dtype | None, start: float = 0, step: float = 1
) -> Value:
    """-> [N]; start, start + step, .., without ``end``"""
    if waits(start) or waits(end) or waits(step):
        return _arange_at_run_time(t, start, end, step, dtype)
    numbers = torch.arange(start, end, step, dtype=dtype)
    return _literal(t, numbers, "arange")


def _arange_at_run_time(
    t: Tosa, start: float, end: float, step: float, dtype: torch.dtype | None
) -> Value:
    """Return ``arange`` with a dynamic ``start`` or ``end``: (0, 1, ..) * step + start.

    Raises Unsupported unless ``start`` and ``end`` are sizes or ints and ``step`` is an
    int.
    """
    have_whole_bounds = all(
        is_dynamic(number) or type(number) is int for number in (start, end)
    )
    why = "the steps of an arange that ends at run time have to be whole numbers"
    t.refuse_unless(
        have_whole_bounds and type(step) is int,
        by_size(why, "torch.arange(count) * step"),
    )
    count = -((start - end) // step)  # ceil((end - start) / step)
    element_type = dtype_of(torch.int64 if dtype is None else dtype)
    row = t.numbers(cast(int, count), element_type)
    if step != 1:
        row = t.mul(row, step)
    if start == 0:
        return row
    # int64 is computed as int32 only if its range fits. The result lies between start
    # and end; the sum of the ranges of row and start would be wider.
    start_range = size_range(cast(int, start))
    end_range = size_range(cast(int, end))
    with t.proven(_between(start_range, end_range, step)):
        return t.add(row, start)


def _between(start: Range, end: Range, step: float) -> Range:
    """Return the range of an arange, from the ranges of ``start`` and ``end``.

    ``step`` is an int. An arange never contains its end.
    """
    if step > 0:
        return (start[0], end[1] - 1)
    return (end[0] + 1, start[1])

"""Fourier transforms of small sizes, as products with the matrix of the transform.

FFT2D and RFFT2D are not used: they need the extension EXT-FFT and take powers of two
only. A complex tensor [*S] is a ``Complex``: its ``parts`` [*S,2] are the real and the
imaginary parts. Other operators on complex tensors are here too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch._ops import OpOverload

from ...ir.graph import Value
from ...ir.types import DType
from ..builder import Operand, Tosa
from ..geometry.layout import axis_of
from ..lazy.complex_numbers import Complex
from ..registry import lowers
from . import shape
from .elementwise import sqrt
from .linear import affine
from .shape import slice_axis
from .trigonometry import atan2

aten = torch.ops.aten

LARGEST = 1 << 21
"""The most elements of a transform's matrix: 1024 real or 724 complex numbers."""


def _cosine_and_sine(size: int, count: int) -> tuple[Any, Any]:
    """Return cos and sin of 2 pi j k / size, for j < size and k < count.

    Both are numpy arrays [size,count].
    """
    turns = np.outer(np.arange(size), np.arange(count)) % size / size
    angles = 2 * math.pi * turns
    # rounding makes cos(pi / 2) 0 instead of 6e-17
    cosine = np.round(np.cos(angles), 15)
    sine = np.round(np.sin(angles), 15)
    return cosine, sine


def _times_matrix(t: Tosa, x: Value, matrix: Any, scale: float) -> Value:
    """x [*S,K], numpy ``matrix`` [K,M] -> x @ (matrix * scale) [*S,M].

    Raises Unsupported for a matrix of more than LARGEST elements.
    """
    t.refuse_unless(
        matrix.size <= LARGEST,
        f"a Fourier transform of {len(matrix)} numbers is too large for a matrix",
    )
    weight = (matrix.T * scale).astype(np.float32)
    return affine(t, x, t.literal(weight, DType.FP32), bias=None)


def _axis_last(rank: int, axis: int) -> list[int]:
    """Return the permutation of ``rank`` axes that makes ``axis`` the last one."""
    others = [other for other in range(rank) if other != axis]
    return [*others, axis]


def _inverse_permutation(perms: Sequence[int]) -> list[int]:
    """Return the permutation that undoes the permutation ``perms``."""
    return [perms.index(axis) for axis in range(len(perms))]


def _transform_of_real(t: Tosa, x: Value, axis: int, count: int, scale: float) -> Value:
    """x [*A,N,*B] -> [*A,count,*B,2], the first terms of its transform along ``axis``.

    The last axis has real and imaginary part.
    """
    size = x.shape[axis]
    axis_last = _axis_last(x.rank, axis)
    cosine, sine = _cosine_and_sine(size, count)
    # term k is the sum of x[j] * (cos - i sin): the matrix [N, count * 2] has the
    # columns cos and -sin for each k. 0 - sine, unlike -sine, has no -0.0
    matrix = np.stack((cosine, 0 - sine), axis=-1).reshape(size, 2 * count)
    rows = _times_matrix(t, t.transpose(x, axis_last), matrix, scale)
    parts = t.reshape(rows, (*rows.shape[:-1], count, 2))
    return t.transpose(parts, [*_inverse_permutation(axis_last), x.rank])


def _transform_of_complex(
    t: Tosa, parts: Value, axis: int, forward: bool, scale: float
) -> Value:
    """[*A,N,*B,2] -> [*A,N,*B,2], the transform along ``axis`` or its inverse.

    The last axis has real and imaginary part.
    """
    rank = parts.rank - 1
    size = parts.shape[axis]
    axis_last = [*_axis_last(rank, axis), rank]
    cosine, sine = _cosine_and_sine(size, size)
    if not forward:
        sine = -sine
    # for input j and output k, the matrix has a 2x2 block, which multiplies a row
    # (real, imaginary) by cos - i sin: [[cos, -sin], [sin, cos]]
    from_real = np.stack((cosine, -sine), axis=-1)
    from_imaginary = np.stack((sine, cosine), axis=-1)
    matrix = np.stack((from_real, from_imaginary), axis=1)
    matrix = matrix.reshape(2 * size, 2 * size)
    moved = t.transpose(parts, axis_last)
    flat = t.reshape(moved, (*moved.shape[:-2], 2 * size))
    rows = _times_matrix(t, flat, matrix, scale)
    return t.transpose(t.reshape(rows, moved.shape), _inverse_permutation(axis_last))


def _inverse_to_real(
    t: Tosa, parts: Value, axis: int, size: int, scale: float
) -> Value:
    """[*A,size/2+1,*B,2], a transform of real numbers -> these numbers [*A,size,*B].

    ``size`` may be odd: then the transform has (size + 1) / 2 terms.
    """
    rank = parts.rank - 1
    count = parts.shape[axis]
    cosine, sine = _cosine_and_sine(size, count)
    # the missing second half of the transform is the conjugate of the first half, so
    # each term counts twice, except the first one and the one in the middle
    term = np.arange(count)
    multiplicity = np.where((term == 0) | (2 * term == size), 1, 2)
    # the matrix [2 * count, size] has two rows for each term: for its real part, and
    # for its imaginary part
    from_real = (cosine * multiplicity).T
    from_imaginary = (-sine * multiplicity).T
    matrix = np.stack((from_real, from_imaginary), axis=1).reshape(2 * count, size)
    # [*A,count,*B,2] -> [*A,*B,count,2] -> [*A,*B,2 * count] -> [*A,*B,size] ->
    # [*A,size,*B]
    axis_last = _axis_last(rank, axis)
    moved = t.transpose(parts, [*axis_last, rank])
    rows = t.reshape(moved, (*moved.shape[:-2], 2 * count))
    numbers = _times_matrix(t, rows, matrix, scale)
    return t.transpose(numbers, _inverse_permutation(axis_last))


def _normalization_factor(sizes: Sequence[int], normalization: int) -> float:
    """Return the factor of a transform over N = prod(sizes) elements.

    ATen's ``normalization`` is 0 for a factor of 1, 1 for 1 / sqrt(N), and 2 for 1 / N.
    """
    return float(math.prod(sizes) ** (-normalization / 2))


# ---- transforms


@lowers(aten._fft_r2c.default, lazy=True)
def _fft_r2c(
    t: Tosa, self: Value, dim: Sequence[int], normalization: int, onesided: bool
) -> Complex:
    """real [*S] -> complex [*S']; if ``onesided``, the last of ``dim`` has only N / 2 +
    1 elements
    """
    axes = [axis_of(d, self.rank) for d in dim]
    last = axes[-1]
    size = self.shape[last]
    count = size // 2 + 1 if onesided else size
    scale = _normalization_factor([self.shape[axis] for axis in axes], normalization)
    # the last axis has real numbers; the result, and so all other axes, complex ones
    parts = _transform_of_real(t, self, last, count, scale)
    for axis in axes[:-1]:
        parts = _transform_of_complex(t, parts, axis, forward=True, scale=1)
    return Complex(parts)


@lowers(aten._fft_c2c.default, on=Complex)
@lowers(aten._fft_c2c.default, lazy=True)
def _fft_c2c(
    t: Tosa, self: Value, dim: Sequence[int], normalization: int, forward: bool
) -> Complex:
    """complex [*S] -> complex [*S]"""
    assert isinstance(self, Complex)
    axes = [axis_of(d, self.rank) for d in dim]
    parts = self.parts
    scale = _normalization_factor([self.shape[axis] for axis in axes], normalization)
    for axis in axes:
        parts = _transform_of_complex(t, parts, axis, forward, scale)
        scale = 1  # the first transform has scaled the numbers
    return Complex(parts)


@lowers(aten._fft_c2r.default, on=Complex)
@lowers(aten._fft_c2r.default)
def _fft_c2r(
    t: Tosa, self: Value, dim: Sequence[int], normalization: int, last_dim_size: int
) -> Value:
    """complex [*S] -> real [*S'], an inverse transform of ``last_dim_size`` numbers"""
    assert isinstance(self, Complex)
    *complex_axes, last = [axis_of(d, self.rank) for d in dim]
    parts = self.parts
    for axis in complex_axes:
        parts = _transform_of_complex(t, parts, axis, forward=False, scale=1)
    sizes = [self.shape[axis] for axis in complex_axes]
    scale = _normalization_factor([*sizes, last_dim_size], normalization)
    return _inverse_to_real(t, parts, last, last_dim_size, scale)


def _normalization(norm: str | None, forward: bool) -> int:
    """Return torch.fft's ``norm`` as a number for ``_normalization_factor``.

    "ortho" is 1, for both directions. "forward" and "backward" name the direction that
    is divided by N, which gets 2; the other direction gets 0. None means "backward".
    """
    if norm == "ortho":
        return 1
    is_forward_divided = norm == "forward"
    return 2 if is_forward_divided == forward else 0


def _complex(t: Tosa, x: Value) -> Complex:
    """Return x as a complex value; a real x has imaginary parts 0."""
    if isinstance(x, Complex):
        return x
    part_shape = (*x.shape, 1)
    real = t.reshape(x, part_shape)
    imaginary = t.constant(0, x.dtype, part_shape)
    return Complex(t.concat([real, imaginary], x.rank))


def _expect_size(t: Tosa, sizes: Any) -> None:
    """Raise Unsupported unless ``sizes`` is None: torch would pad or cut the input."""
    t.refuse_unless(
        sizes is None, "only a Fourier transform of the size of its input is lowered"
    )


@lowers(aten.fft_rfft.default, lazy=True)
def fft_rfft(
    t: Tosa, self: Value, n: int | None, dim: int, norm: str | None
) -> Complex:
    """real [*S] -> complex [*S'], N / 2 + 1 elements along ``dim``"""
    _expect_size(t, n)
    normalization = _normalization(norm, forward=True)
    return _fft_r2c(t, self, [dim], normalization, onesided=True)


def _register_transform(overload: OpOverload, forward: bool) -> None:
    """Register a complex transform over one or two axes, or its inverse."""

    @lowers(overload, on=Complex)
    @lowers(overload, lazy=True)
    def transform(
        t: Tosa,
        self: Value,
        dim: Sequence[int] | int,
        norm: str | None,
        n: int | None = None,
        s: Sequence[int] | None = None,
    ) -> Complex:
        """real or complex [*S] -> complex [*S]"""
        _expect_size(t, n)
        _expect_size(t, s)
        x = _complex(t, self)
        dims = [dim] if isinstance(dim, int) else dim
        return _fft_c2c(t, x, dims, _normalization(norm, forward), forward)


_register_transform(aten.fft_fft.default, forward=True)
_register_transform(aten.fft_fft2.default, forward=True)
_register_transform(aten.fft_ifft.default, forward=False)
_register_transform(aten.fft_ifft2.default, forward=False)


@lowers(aten.fft_irfft.default, on=Complex)
@lowers(aten.fft_irfft.default)
def fft_irfft(t: Tosa, self: Value, n: int | None, dim: int, norm: str | None) -> Value:
    """complex [*S] -> real [*S']; an axis of N / 2 + 1 elements becomes one of N"""
    count = self.shape[dim]
    even = 2 * (count - 1)
    # the transforms of 4 and of 5 real numbers both have 3 elements
    t.refuse_unless(
        n in (None, even, even + 1),
        f"an inverse of {count} to {n} elements is not lowered",
    )
    size = even if n is None else n
    normalization = _normalization(norm, forward=False)
    return _fft_c2r(t, _complex(t, self), [dim], normalization, size)


# ---- complex numbers and their parts


@lowers(aten.view_as_complex.default, lazy=True)
def view_as_complex(t: Tosa, self: Value) -> Complex:
    """real [*S,2] -> complex [*S]"""
    return Complex(self)


@lowers(aten.view_as_real.default, on=Complex)
@lowers(aten.view_as_real.default)
def view_as_real(t: Tosa, self: Value) -> Value:
    """complex [*S] -> real [*S,2]"""
    assert isinstance(self, Complex)
    return self.parts


@lowers(aten.abs.default, on=Complex)
def abs(t: Tosa, self: Complex) -> Value:
    """[*S] -> [*S]; overflows where the real or imaginary part is above 1e19, because
    both are squared
    """
    squares = t.mul(self.parts, self.parts)
    square_sum = t.reduce_sum(squares, self.rank)
    return sqrt(t, t.reshape(square_sum, self.shape))


@lowers(aten.angle.default, on=Complex)
def angle(t: Tosa, self: Complex) -> Value:
    """[*S] -> [*S]; radians"""
    imaginary = _imaginary(t, self)
    real = _real(t, self)
    return atan2(t, imaginary, real)


def _real(t: Tosa, x: Complex) -> Value:
    """Return the real part [*S] of x [*S]."""
    part = slice_axis(t, x.parts, axis=x.rank, start=0, length=1)
    return t.reshape(part, x.shape)


def _imaginary(t: Tosa, x: Complex) -> Value:
    """Return the imaginary part [*S] of x [*S]."""
    part = slice_axis(t, x.parts, axis=x.rank, start=1, length=1)
    return t.reshape(part, x.shape)


@lowers(aten.permute.default, on=Complex)
def permute(t: Tosa, self: Complex, dims: Sequence[int]) -> Complex:
    """[*S] -> [*S']"""
    perms = [axis_of(d, self.rank) for d in dims]
    return Complex(t.transpose(self.parts, [*perms, self.rank]))


@lowers(aten.transpose.int, on=Complex)
def transpose(t: Tosa, self: Complex, dim0: int, dim1: int) -> Complex:
    """[..,A,..,B,..] -> [..,B,..,A,..]"""
    first = axis_of(dim0, self.rank)
    second = axis_of(dim1, self.rank)
    return Complex(shape.transpose(t, self.parts, first, second))


@lowers(aten.slice.Tensor, on=Complex)
def slice(
    t: Tosa, self: Complex, dim: int, start: int | None, end: int | None, step: int
) -> Complex:
    """[*A,N,*B] -> [*A,N',*B]"""
    axis = axis_of(dim, self.rank)
    return Complex(shape.slice(t, self.parts, axis, start, end, step))


@lowers(aten.mul.Tensor, on=Complex)
def mul(t: Tosa, self: Operand, other: Operand) -> Complex:
    """[*S], [*S] -> [*S]; one operand may be real"""
    if isinstance(self, Complex) and isinstance(other, Complex):
        return _complex_product(t, self, other)
    if isinstance(self, Complex):
        return _times_real(t, self, other)
    assert isinstance(other, Complex)
    return _times_real(t, other, self)


def _times_real(t: Tosa, x: Complex, factor: Operand) -> Complex:
    """Return x [*S] * factor, which is a real tensor [*S] or a number."""
    t.refuse_unless(
        not isinstance(factor, complex), "a complex number as a factor is not lowered"
    )
    if isinstance(factor, Value):
        factor = t.reshape(factor, (*factor.shape, 1))
    return Complex(t.mul(x.parts, factor))


def _complex_product(t: Tosa, x: Complex, y: Complex) -> Complex:
    """Return the product of x and y: (a + ib) (c + id) = (ac - bd) + i (ad + bc)."""
    a = _real(t, x)
    b = _imaginary(t, x)
    c = _real(t, y)
    d = _imaginary(t, y)
    real = t.sub(t.mul(a, c), t.mul(b, d))
    imaginary = t.add(t.mul(a, d), t.mul(b, c))
    part_shape = (*real.shape, 1)
    parts = [t.reshape(real, part_shape), t.reshape(imaginary, part_shape)]
    return Complex(t.concat(parts, real.rank))

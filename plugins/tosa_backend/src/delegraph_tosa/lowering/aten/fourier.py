"""Fourier transforms of small sizes, as products with the matrix of the transform.

And operators on complex tensors. FFT2D and RFFT2D are not used: they need the extension
EXT-FFT and take powers of two only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ...ir.graph import Value
from ...ir.types import DType
from ..builder import Operand, Tosa
from ..geometry.layout import axis_of
from ..lazy.complex_numbers import Complex
from ..registry import lowers
from . import shape
from .elementwise import sqrt
from .linear import affine
from .trigonometry import atan2

aten = torch.ops.aten

LARGEST = 1 << 21
"""The most elements of a transform's matrix: 1024 real or 724 complex numbers."""


def _waves(size: int, count: int) -> tuple[Any, Any]:
    """cos and sin of 2 pi j k / size, j < size, k < count: two arrays [size,count]"""
    turns = np.outer(np.arange(size), np.arange(count)) % size / size
    # rounding makes cos(pi / 2) 0 instead of 6e-17
    cosine, sine = (
        np.round(wave(2 * math.pi * turns), 15) for wave in (np.cos, np.sin)
    )
    return cosine, sine


def _times_matrix(t: Tosa, x: Value, matrix: Any, scale: float) -> Value:
    """x [*S,K], numpy ``matrix`` [K,M] -> x @ (matrix * scale) [*S,M].

    Unsupported above LARGEST elements.
    """
    t.require(
        matrix.size <= LARGEST,
        f"a Fourier transform of {len(matrix)} numbers is too large for a matrix",
    )
    return affine(
        t, x, t.literal((matrix.T * scale).astype(np.float32), DType.FP32), None
    )


def _axis_last(rank: int, axis: int) -> list[int]:
    """Return the permutation of ``rank`` axes that makes ``axis`` the last one."""
    return [*(a for a in range(rank) if a != axis), axis]


def _transform_of_real(t: Tosa, x: Value, axis: int, count: int, scale: float) -> Value:
    """x [*A,N,*B] -> ``count`` terms of its transform along ``axis`` [*A,count,*B,2]"""
    order = _axis_last(x.rank, axis)
    cosine, sine = _waves(x.shape[axis], count)
    # the transform sums x * (cos - i sin): the matrix has columns for real and
    # imaginary parts by turns, [N, count * 2]. 0 - sine, unlike -sine, has no -0.0
    rows = _times_matrix(
        t,
        t.transpose(x, order),
        np.stack((cosine, 0 - sine), -1).reshape(len(cosine), -1),
        scale,
    )
    parts = t.reshape(rows, (*rows.shape[:-1], count, 2))
    return t.transpose(parts, [*(order.index(a) for a in range(x.rank)), x.rank])


def _transform_of_complex(
    t: Tosa, parts: Value, axis: int, forward: bool, scale: float
) -> Value:
    """[*A,N,*B,2] -> the transform along ``axis`` [*A,N,*B,2], or its inverse

    The last axis has real and imaginary part.
    """
    rank = parts.rank - 1
    size = parts.shape[axis]
    order = _axis_last(rank, axis)
    cosine, sine = _waves(size, size)
    sine = sine if forward else -sine
    # rows and columns are real and imaginary parts by turns. So for input j and output
    # k there is a 2x2 block, which multiplies a row (real, imaginary) by cos - i sin:
    # [[cos, -sin], [sin, cos]]
    matrix = np.stack(
        (np.stack((cosine, -sine), -1), np.stack((sine, cosine), -1)), 1
    ).reshape(2 * size, 2 * size)
    moved = t.transpose(parts, [*order, rank])
    rows = _times_matrix(
        t, t.reshape(moved, (*moved.shape[:-2], 2 * size)), matrix, scale
    )
    return t.transpose(
        t.reshape(rows, moved.shape), [*(order.index(a) for a in range(rank)), rank]
    )


def _inverse_to_real(
    t: Tosa, parts: Value, axis: int, size: int, scale: float
) -> Value:
    """[*A,size/2+1,*B,2], a transform of real numbers -> these numbers [*A,size,*B]"""
    rank = parts.rank - 1
    count = parts.shape[axis]
    cosine, sine = _waves(size, count)
    # the missing second half of the transform is the conjugate of the first half, so
    # each term counts twice, except the first one and the one in the middle
    term = np.arange(count)
    multiplicity = np.where((term == 0) | (2 * term == size), 1, 2)
    # [2 * count, size], for rows of real and imaginary parts in turn
    matrix = np.stack(((cosine * multiplicity).T, (-sine * multiplicity).T), 1).reshape(
        2 * count, size
    )
    # [*A,count,*B,2] -> [*A,*B,count,2] -> [*A,*B,2 * count] -> [*A,*B,size] ->
    # [*A,size,*B]
    order = _axis_last(rank, axis)
    moved = t.transpose(parts, [*order, rank])
    rows = t.reshape(moved, (*moved.shape[:-2], 2 * count))
    numbers = _times_matrix(t, rows, matrix, scale)
    return t.transpose(numbers, [order.index(a) for a in range(rank)])


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
    size = self.shape[axes[-1]]
    scale = _normalization_factor([self.shape[a] for a in axes], normalization)
    # the last axis has real numbers; the result, and so all other axes, complex ones
    parts = _transform_of_real(
        t, self, axes[-1], size // 2 + 1 if onesided else size, scale
    )
    for axis in axes[:-1]:
        parts = _transform_of_complex(t, parts, axis, True, 1)
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
    scale = _normalization_factor([self.shape[a] for a in axes], normalization)
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
    axes = [axis_of(d, self.rank) for d in dim]
    parts = self.parts
    for axis in axes[:-1]:
        parts = _transform_of_complex(t, parts, axis, False, 1)
    scale = _normalization_factor(
        [*(self.shape[a] for a in axes[:-1]), last_dim_size], normalization
    )
    return _inverse_to_real(t, parts, axes[-1], last_dim_size, scale)


def _normalization(norm: str | None, forward: bool) -> int:
    """Return torch.fft's ``norm`` as a number for ``_normalization_factor``.

    None means "backward". "forward" and "backward" name the direction that is divided
    by N; the other one gets 0.
    """
    # the transform is divided by N (2) if ``norm`` names its own direction, else not
    # (0)
    return 1 if norm == "ortho" else 2 * ((norm == "forward") == forward)


def _complex(t: Tosa, x: Value) -> Complex:
    """Return x as a complex value; a real x has imaginary parts 0."""
    if isinstance(x, Complex):
        return x
    return Complex(
        t.concat(
            [t.reshape(x, (*x.shape, 1)), t.constant(0, x.dtype, (*x.shape, 1))], x.rank
        )
    )


def _expect_size(t: Tosa, sizes: Any) -> None:
    """Raise Unsupported unless ``sizes`` is None: torch would pad or cut the input."""
    t.require(
        sizes is None, "only a Fourier transform of the size of its input is lowered"
    )


@lowers(aten.fft_rfft.default, lazy=True)
def fft_rfft(
    t: Tosa, self: Value, n: int | None, dim: int, norm: str | None
) -> Complex:
    """real [*S] -> complex [*S'], N / 2 + 1 elements along ``dim``"""
    _expect_size(t, n)
    return _fft_r2c(t, self, [dim], _normalization(norm, True), True)


def _register_transforms() -> None:
    """Register complex transforms over one and two axes, and their inverses."""
    transforms = (
        (aten.fft_fft.default, True),
        (aten.fft_fft2.default, True),
        (aten.fft_ifft.default, False),
        (aten.fft_ifft2.default, False),
    )
    for overload, forward in transforms:

        @lowers(overload, on=Complex)
        @lowers(overload, lazy=True)
        def transform(
            t: Tosa,
            self: Value,
            dim: Sequence[int] | int,
            norm: str | None,
            n: int | None = None,
            s: Sequence[int] | None = None,
            forward: bool = forward,
        ) -> Complex:
            """real or complex [*S] -> complex [*S]"""
            _expect_size(t, n)
            _expect_size(t, s)
            dims = [dim] if isinstance(dim, int) else dim
            return _fft_c2c(
                t, _complex(t, self), dims, _normalization(norm, forward), forward
            )


_register_transforms()


@lowers(aten.fft_irfft.default, on=Complex)
@lowers(aten.fft_irfft.default)
def fft_irfft(t: Tosa, self: Value, n: int | None, dim: int, norm: str | None) -> Value:
    """complex [*S] -> real [*S']; an axis of N / 2 + 1 elements becomes one of N"""
    even = 2 * (self.shape[dim] - 1)
    # the transforms of ``even`` and of ``even + 1`` real numbers have the same size
    t.require(
        n in (None, even, even + 1),
        f"an inverse of {self.shape[dim]} to {n} elements is not lowered",
    )
    return _fft_c2r(
        t,
        _complex(t, self),
        [dim],
        _normalization(norm, False),
        even if n is None else n,
    )


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
    square = t.reduce_sum(t.mul(self.parts, self.parts), self.rank)
    return sqrt(t, t.reshape(square, self.shape))


@lowers(aten.angle.default, on=Complex)
def angle(t: Tosa, self: Complex) -> Value:
    """[*S] -> [*S]; radians"""
    return atan2(t, _part(t, self, 1), _part(t, self, 0))


def _part(t: Tosa, x: Complex, which: int) -> Value:
    """Return the real (``which`` is 0) or imaginary (1) part of x [*S], as [*S]."""
    return t.reshape(t.slice(x.parts, [0] * x.rank + [which], [*x.shape, 1]), x.shape)


@lowers(aten.permute.default, on=Complex)
def permute(t: Tosa, self: Complex, dims: Sequence[int]) -> Complex:
    """[*S] -> [*S']"""
    return Complex(
        t.transpose(self.parts, [*(axis_of(d, self.rank) for d in dims), self.rank])
    )


@lowers(aten.transpose.int, on=Complex)
def transpose(t: Tosa, self: Complex, dim0: int, dim1: int) -> Complex:
    """[..,A,..,B,..] -> [..,B,..,A,..]"""
    return Complex(
        shape.transpose(
            t, self.parts, axis_of(dim0, self.rank), axis_of(dim1, self.rank)
        )
    )


@lowers(aten.slice.Tensor, on=Complex)
def slice(
    t: Tosa, self: Complex, dim: int, start: int | None, end: int | None, step: int
) -> Complex:
    """[*A,N,*B] -> [*A,N',*B]"""
    return Complex(
        shape.slice(t, self.parts, axis_of(dim, self.rank), start, end, step)
    )


@lowers(aten.mul.Tensor, on=Complex)
def mul(t: Tosa, self: Operand, other: Operand) -> Complex:
    """[*S], [*S] -> [*S]; one operand may be real"""
    x, y = (self, other) if isinstance(self, Complex) else (other, self)
    assert isinstance(x, Complex)
    if not isinstance(y, Complex):
        t.require(
            not isinstance(y, complex), "a complex number as a factor is not lowered"
        )
        return Complex(
            t.mul(x.parts, t.reshape(y, (*y.shape, 1)) if isinstance(y, Value) else y)
        )
    (a, b), (c, d) = ((_part(t, v, 0), _part(t, v, 1)) for v in (x, y))
    # (a + ib) (c + id) = (ac - bd) + i (ad + bc)
    parts = t.sub(t.mul(a, c), t.mul(b, d)), t.add(t.mul(a, d), t.mul(b, c))
    return Complex(
        t.concat([t.reshape(v, (*v.shape, 1)) for v in parts], parts[0].rank)
    )

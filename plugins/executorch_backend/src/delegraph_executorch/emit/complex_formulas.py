"""Decompose operators on complex numbers into kernels that support them.

Few kernels support complex numbers (``kernels.limits``). Only the kernels of Fourier
transforms make complex numbers from real ones. Formulas call all other kernels with real
and imaginary parts. Each formula has the arguments of its operator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch.utils import _pytree as pytree

aten = torch.ops.aten
Formula = Callable[..., Any]
_broadcast_shapes: Any = torch.broadcast_shapes


def complex_from(real: Tensor, imaginary: Tensor) -> Tensor:
    """Join real and imaginary parts of one shape.

    No kernel joins them, so this uses a Fourier transform: that of ``[a, 0, 0, b]`` has
    the exact value ``a + ib`` at index 1.
    """
    zero = torch.zeros_like(real)
    four = torch.stack([real, zero, zero, imaginary], -1)
    result: Tensor = aten._fft_r2c.default(four, [real.dim()], 0, True).select(-1, 1)
    return result


def is_complex(value: Any) -> bool:
    """Return whether a value is a complex tensor or number."""
    return isinstance(value, complex) or (
        isinstance(value, Tensor) and value.is_complex()
    )


def only_complex(formula: Formula, otherwise: Formula | None = None) -> Formula:
    """Return a formula for complex arguments; real ones go to ``otherwise``.

    Without ``otherwise``, they are refused.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        if any(map(is_complex, pytree.tree_leaves((args, kwargs)))):
            return formula(*args, **kwargs)
        if otherwise is None:
            raise NotImplementedError("only complex numbers are supported")
        return otherwise(*args, **kwargs)

    return call


def _parts(value: Any) -> tuple[Any, Any]:
    """Return the real and the imaginary part."""
    if isinstance(value, Tensor):
        parts = torch.view_as_real(value)
        return parts.select(-1, 0), parts.select(-1, 1)
    return value.real, value.imag


def _as_complex(value: Any, like: Tensor) -> Tensor:
    """Convert a tensor or number to a tensor of the complex type of ``like``."""
    if is_complex(value) and isinstance(value, Tensor):
        if value.dtype != like.dtype:
            raise NotImplementedError(
                "operands of different complex types are not supported"
            )
        return value
    wanted = like.dtype.to_real()
    if isinstance(value, Tensor):
        real = value.to(wanted)
        return complex_from(real, torch.zeros_like(real))
    parts = [torch.full([], float(part), dtype=wanted) for part in _parts(value)]
    return complex_from(*parts)


def arithmetic(target: Any) -> Formula:
    """Return a formula for add, sub, mul or div.

    Their kernels need two complex operands with the shape of the result.
    """

    def call(self: Any, other: Any, alpha: Any = 1) -> Tensor:
        like = self if is_complex(self) else other
        if not isinstance(like, Tensor):
            raise NotImplementedError(
                "an operation of a real tensor and a complex number is not supported"
            )
        operands = [_as_complex(value, like) for value in (self, other)]
        known = [value.shape for value in (self, other) if isinstance(value, Tensor)]
        shape = _broadcast_shapes(*known)
        left, right = (value.expand(shape) for value in operands)
        # mul and div have no ``alpha``
        if alpha == 1:
            result: Tensor = target(left, right)
        else:
            result = target(left, right, alpha=alpha)
        return result

    return call


def by_parts(target: Any) -> Formula:
    """Return a formula that calls ``target`` for the real and the imaginary parts."""

    def call(*args: Any, **kwargs: Any) -> Any:
        # an argument that is not complex is passed to both calls
        pairs = [
            _parts(value) if is_complex(value) else (value, value) for value in args
        ]
        real = target(*(pair[0] for pair in pairs), **kwargs)
        imaginary = target(*(pair[1] for pair in pairs), **kwargs)
        if isinstance(real, Tensor):
            return complex_from(real, imaginary)
        return [complex_from(a, b) for a, b in zip(real, imaginary, strict=True)]

    return call


def view_as_complex(self: Tensor) -> Tensor:
    """Join the pairs in the last dimension of a real tensor."""
    return complex_from(self.select(-1, 0), self.select(-1, 1))


def complex_of(real: Tensor, imag: Tensor) -> Tensor:
    """Join real and imaginary parts, which are broadcast to one shape."""
    shape = _broadcast_shapes(real.shape, imag.shape)
    return complex_from(real.expand(shape), imag.expand(shape))


def polar(abs: Tensor, angle: Tensor) -> Tensor:
    """Return the complex numbers of these lengths and angles."""
    return complex_of(abs * angle.cos(), abs * angle.sin())


def to_copy(self: Tensor, *, dtype: torch.dtype | None = None, **kwargs: Any) -> Tensor:
    """Cast to complex numbers. Other casts use PyTorch's decomposition."""
    if dtype is None or not dtype.is_complex:
        result: Tensor = decomposition_table[aten._to_copy.default](
            self, dtype=dtype, **kwargs
        )
        return result
    if self.is_complex():
        raise NotImplementedError("casts between complex types are not supported")
    real = self.to(dtype.to_real())
    return complex_from(real, torch.zeros_like(real))


def full(
    size: Sequence[Any], fill_value: Any, *, dtype: torch.dtype | None = None, **_: Any
) -> Tensor:
    """Return a tensor with the complex number ``fill_value`` everywhere."""
    if dtype is None:
        dtype = torch.complex64
    if not dtype.is_complex:
        raise NotImplementedError("only complex numbers are supported")
    parts = [
        torch.full(size, float(part), dtype=dtype.to_real())
        for part in _parts(fill_value)
    ]
    return complex_from(*parts)


def full_like(
    self: Tensor, fill_value: Any, *, dtype: torch.dtype | None = None, **_: Any
) -> Tensor:
    """Return a tensor of the sizes of ``self`` with ``fill_value`` everywhere."""
    return full(self.shape, fill_value, dtype=dtype or self.dtype)


def constant_pad(self: Tensor, pad: Sequence[Any], value: Any = 0) -> Tensor:
    """Pad the real and the imaginary parts with those of ``value``."""
    real, imaginary = _parts(self)
    real_value, imaginary_value = _parts(value)
    return complex_from(
        aten.constant_pad_nd.default(real, pad, real_value),
        aten.constant_pad_nd.default(imaginary, pad, imaginary_value),
    )


def where(condition: Tensor, self: Tensor, other: Tensor) -> Tensor:
    """Choose real and imaginary parts by ``condition``."""
    like = self if self.is_complex() else other
    real, imaginary = _parts(_as_complex(self, like))
    other_real, other_imaginary = _parts(_as_complex(other, like))
    return complex_from(
        torch.where(condition, real, other_real),
        torch.where(condition, imaginary, other_imaginary),
    )


def mm(self: Tensor, mat2: Tensor) -> Tensor:
    """Multiply matrices by the kernel of bmm, which supports complex numbers."""
    result: Tensor = aten.bmm.default(self.unsqueeze(0), mat2.unsqueeze(0)).squeeze(0)
    return result


def mean(
    self: Tensor,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Return the sum divided by the number of elements."""
    axes = range(self.dim()) if not dim else dim
    count = 1
    for axis in axes:
        count *= self.shape[axis]
    total = self.sum(dim, keepdim=keepdim, dtype=dtype)
    return total / count


def equal(self: Tensor, other: Any) -> Tensor:
    """Return where both the real and the imaginary parts are equal."""
    like = self if self.is_complex() else other
    real, imaginary = _parts(_as_complex(self, like))
    other_real, other_imaginary = _parts(_as_complex(other, like))
    same: Tensor = (real == other_real) & (imaginary == other_imaginary)
    return same


def angle(self: Tensor) -> Tensor:
    """Return the angle of complex numbers."""
    real, imaginary = _parts(self)
    return torch.atan2(imaginary, real)


def two_sided_fft(
    self: Tensor, dim: Sequence[int], normalization: int, onesided: bool
) -> Tensor:
    """Return the whole spectrum of real numbers.

    Its second half mirrors the first one, conjugated.
    """
    if onesided or len(dim) != 1:
        raise NotImplementedError(
            "only two-sided transforms of one dimension are supported"
        )
    axis = dim[0] % self.dim()
    size = self.shape[axis]
    half: Tensor = aten._fft_r2c.default(self, [axis], normalization, True)
    if size < 3:
        return half
    # element size - k is the conjugate of element k
    mirrored = torch.arange((size - 1) // 2, 0, -1)
    second_half = aten._conj_physical.default(half.index_select(axis, mirrored))
    return torch.cat([half, second_half], axis)


MAKE_COMPLEX = frozenset(
    {aten.view_as_complex.default, aten.complex.default, aten.polar.default}
)
"""Operators that make complex numbers from real ones."""
COMPLEX_FORMULAS: dict[Any, Formula] = {
    aten.view_as_complex.default: view_as_complex,
    aten.complex.default: complex_of,
    aten.polar.default: polar,
    aten._to_copy.default: to_copy,
    aten.full.default: full,
    aten.full_like.default: full_like,
    aten._conj.default: lambda self: aten._conj_physical.default(self),
    aten._neg_view.default: lambda self: aten.neg.default(self),
    aten.resolve_conj.default: lambda self: self.clone(),
    aten.resolve_neg.default: lambda self: self.clone(),
    aten._fft_r2c.default: two_sided_fft,
}
"""Formulas of operators that take or make complex numbers only."""
FORMULAS_IF_COMPLEX: dict[Any, Formula] = {
    **{
        p.Tensor: arithmetic(p.Tensor) for p in (aten.add, aten.sub, aten.mul, aten.div)
    },
    **{
        p.Scalar: arithmetic(p.Tensor) for p in (aten.add, aten.sub, aten.mul, aten.div)
    },
    **{
        target: by_parts(target)
        for target in (aten.neg.default, aten.flip.default, aten.gather.default)
    },
    aten.split_with_sizes.default: by_parts(aten.split_with_sizes.default),
    aten.constant_pad_nd.default: constant_pad,
    aten.where.self: where,
    aten.mm.default: mm,
    aten.mean.dim: mean,
    aten.mean.default: mean,
    aten.eq.Tensor: equal,
    aten.angle.default: angle,
}
"""Formulas for complex arguments. For real ones, the operators have other formulas."""

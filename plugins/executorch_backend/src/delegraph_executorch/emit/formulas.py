"""Operators as formulas of simpler ones, where PyTorch has no decomposition of its own,
or none that ends in kernels.

Each is exact, or rounds as often as the operator itself does; what needs another
algorithm to be precise is not here. Those of remainder, add and sub stand for kernels
that are known to be wrong (``kernels.limits``).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table

from .complex_formulas import COMPLEX_FORMULAS, IF_COMPLEX, only_complex

aten = torch.ops.aten
SORTED = 1 << 22
"""Comparisons that sorting may take: it compares all pairs along its dimension, since
no kernel sorts stably.
"""

LARGEST_POWER = 64
_HALVES = (torch.float16, torch.bfloat16)


def remainder(self: Any, other: Any) -> Tensor:
    """The rest of the division, moved to the divisor's side of zero."""
    if (
        isinstance(self, Tensor)
        and not torch.result_type(self, other).is_floating_point
    ):
        return _rest(self, other)
    rest = (
        aten.fmod.Tensor(self, other)
        if isinstance(other, Tensor)
        else aten.fmod.Scalar(self, other)
    )
    wrong = (rest != 0) & ((rest < 0) != (other < 0))
    return torch.where(wrong, rest + other, rest)


def fmod(self: Tensor, other: Any) -> Tensor:
    if torch.result_type(self, other).is_floating_point:
        raise NotImplementedError("only integers are put together from others")
    rest = _rest(self, other)
    moved: Tensor = torch.where(
        (rest != 0) & ((rest < 0) != (self < 0)), rest - other, rest
    )
    return moved


def rounded_division(self: Tensor, other: Any, *, rounding_mode: str | None) -> Tensor:
    """Towards zero, of integers: one more than the floor where that is negative and not
    exact.
    """
    if torch.result_type(self, other).is_floating_point:
        if rounding_mode != "floor":
            raise NotImplementedError(
                "only floors of floats are put together from others"
            )
        return _floor_of_floats(self, other)
    if rounding_mode is None:
        raise NotImplementedError(
            "only rounded divisions of integers are put together from others"
        )
    floor = _floor(self, other, functools.partial(torch.div, rounding_mode="floor"))
    if rounding_mode == "floor":
        return floor
    quotient: Tensor = floor + ((floor < 0) & (floor * other != self)).to(floor.dtype)
    return quotient


def _floor_of_floats(self: Tensor, other: Any) -> Tensor:
    """By zero it is the quotient itself, which is NaN of zero by zero."""
    if not isinstance(other, Tensor):
        return (
            self / other
            if other == 0
            else torch.div(self, other, rounding_mode="floor")
        )
    return torch.where(
        other == 0, self / other, torch.div(self, other, rounding_mode="floor")
    )


def floor_divide(self: Tensor, other: Any) -> Tensor:
    if torch.result_type(self, other).is_floating_point:
        return torch.div(self, other, rounding_mode="floor")
    return _floor(self, other, torch.floor_divide)


def _floor(self: Tensor, other: Any, divide: Callable[[Any, Any], Tensor]) -> Tensor:
    """The floor of a division of integers: a negation by -1, since kernels end the
    process at the least integer.
    """
    if not isinstance(other, Tensor):
        return divide(self, other) if other != -1 else -self
    by_others = divide(self, torch.where(other == -1, 1, other))
    return torch.where(other == -1, (-self).to(by_others.dtype), by_others)


def _rest(self: Tensor, other: Any) -> Tensor:
    """What the floor of a division leaves: by -1 as by 1, for the least integer divided
    by -1 ends the process.
    """
    if isinstance(other, Tensor):
        other = torch.where(other == -1, 1, other)
    elif other == -1:
        other = 1
    rest: Tensor = self - torch.div(self, other, rounding_mode="floor") * other
    return rest


def whole(self: Tensor) -> Tensor:
    """ceil, floor and trunc of integers."""
    if self.is_floating_point():
        raise NotImplementedError("only integers are put together from others")
    return self.clone()


def summed_in_float32(target: Any) -> Callable[..., Any]:
    """Of float16 and bfloat16: the same of float32, rounded once. Else PyTorch's own
    decomposition.
    """

    def widened(value: Any) -> Any:
        return (
            value.float()
            if isinstance(value, Tensor) and value.dtype in _HALVES
            else value
        )

    def call(*args: Any, **kwargs: Any) -> Any:
        narrow = next(
            (v.dtype for v in args if isinstance(v, Tensor) and v.dtype in _HALVES),
            None,
        )
        if narrow is None:
            decomposition = decomposition_table.get(target)
            if decomposition is None:
                raise NotImplementedError(
                    "only half precision is put together from others"
                )
            return decomposition(*args, **kwargs)
        results = target(
            *map(widened, args),
            **{name: widened(value) for name, value in kwargs.items()},
        )
        several = results if isinstance(results, tuple) else (results,)
        rounded = tuple(
            r.to(narrow) if isinstance(r, Tensor) and r.dtype == torch.float32 else r
            for r in several
        )
        return rounded if isinstance(results, tuple) else rounded[0]

    return call


def promoted(target: Any) -> Callable[..., Any]:
    """The same with the tensor cast first, by the overload that is not being
    decomposed.
    """
    packet = target.overloadpacket
    twin = packet.Scalar if target is packet.Tensor else packet.Tensor

    def call(self: Tensor, other: Any, alpha: Any = 1) -> Any:
        cast = self.to(torch.result_type(self, other))
        return (
            twin(cast, other, alpha)
            if twin is packet.Scalar
            else twin(cast, other, alpha=alpha)
        )

    return call


def sign(self: Tensor) -> Tensor:
    """0 of NaN, as of zero."""
    return (self > 0).to(self.dtype) - (self < 0).to(self.dtype)


def exp2(self: Tensor) -> Tensor:
    return torch.pow(2.0, self)


def signbit(self: Tensor) -> Tensor:
    """Zeros have signs, too: those of their reciprocals. A NaN counts as positive."""
    return (
        (self < 0) | ((self == 0) & (self.reciprocal() < 0))
        if self.is_floating_point()
        else self < 0
    )


def angle(self: Tensor) -> Tensor:
    real = self.to(torch.result_type(self, 1.0))
    return torch.where(
        real.isnan(), real, torch.where(real < 0, math.pi, 0.0).to(real.dtype)
    )


def fmax(self: Tensor, other: Tensor) -> Tensor:
    return torch.where(
        self.isnan(),
        other,
        torch.where(other.isnan(), self, torch.maximum(self, other)),
    )


def fmin(self: Tensor, other: Tensor) -> Tensor:
    return torch.where(
        self.isnan(),
        other,
        torch.where(other.isnan(), self, torch.minimum(self, other)),
    )


def hypot(self: Tensor, other: Tensor) -> Tensor:
    """Scaled by the larger one, so that no square overflows."""
    most = torch.maximum(self.abs(), other.abs())
    least = torch.minimum(self.abs(), other.abs())
    length = torch.where(most == 0, most, most * (1 + (least / most) ** 2).sqrt())
    return torch.where(self.isinf() | other.isinf(), math.inf, length)


def of_scalar(self: Tensor, dim: Sequence[int] = (), keepdim: bool = False) -> Tensor:
    """amax and amin of a tensor without dimensions, or without elements."""
    if not self.dim():
        return self.clone()
    if self.numel():
        raise NotImplementedError(
            "only tensors without dimensions or elements are put together from others"
        )
    return self.sum(list(dim), keepdim=keepdim, dtype=self.dtype)


def softmax_of_nothing(target: Any) -> Callable[..., Tensor]:
    """softmax and log_softmax of a tensor without elements; else PyTorch's own
    decomposition.
    """

    def call(self: Tensor, dim: int, half_to_float: bool) -> Tensor:
        if not self.numel():
            return self.clone()
        result: Tensor = decomposition_table[target](self, dim, half_to_float)
        return result

    return call


def sum_along_one(
    self: Tensor, dim: Any, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    """sum along one dimension: of a tensor that has none, or along another one as well,
    which has one element.
    """
    plain = self.dtype if self.is_floating_point() or self.is_complex() else torch.int64
    if not self.dim():
        return of_scalar(self.to(dtype or plain))
    if not dim or len(dim) > 1:
        raise NotImplementedError(
            "only sums along one dimension are put together from others"
        )
    along = dim[0] % self.dim()
    total: Tensor = self.unsqueeze(0).sum([0, along + 1], keepdim=keepdim, dtype=dtype)
    return total.squeeze(0) if keepdim else total


def sort(
    self: Tensor, dim: int = -1, descending: bool = False, stable: bool | None = True
) -> tuple[Tensor, Tensor]:
    """Stable, NaN last: an element's place is the number of those that come before it."""
    if not self.dim():
        return self.clone(), torch.zeros((), dtype=torch.int64)
    x = self.transpose(dim, -1)
    size = x.shape[-1]
    if not isinstance(self.numel() * size, int) or self.numel() * size > SORTED:
        raise NotImplementedError(
            f"sorting compares all pairs, up to {SORTED}, and these are more"
        )
    mine = x.unsqueeze(-1)
    theirs = x.unsqueeze(-2)
    before = _is_less(mine, theirs) if descending else _is_less(theirs, mine)
    equal = (mine == theirs) | (mine.isnan() & theirs.isnan())
    order = torch.arange(size)
    places = (before | (equal & (order < order.unsqueeze(-1)))).sum(-1)
    indices = torch.zeros_like(places).scatter(-1, places, order.expand(places.shape))
    return x.gather(-1, indices).transpose(dim, -1), indices.transpose(dim, -1)


def _is_less(a: Tensor, b: Tensor) -> Tensor:
    return (a < b) | (b.isnan() & ~a.isnan())


def sort_stable(
    self: Tensor, *, stable: bool | None, dim: int = -1, descending: bool = False
) -> tuple[Tensor, Tensor]:
    return sort(self, dim, descending)


def median(self: Tensor) -> Tensor:
    """The lower one of two; NaN if there is one."""
    ordered = sort(self.reshape(-1))[0]
    return torch.where(
        self.isnan().any(), math.nan, ordered[(self.numel() - 1) // 2]
    ).to(self.dtype)


def searchsorted(
    sequence: Tensor,
    self: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: Any = None,
    sorter: Any = None,
) -> Tensor:
    """The number of boundaries before a value, for which NaN is the largest one."""
    if sorter is not None:
        raise NotImplementedError(
            "a sequence that is sorted by indices is not put together from others"
        )
    bounds = sequence.unsqueeze(-2)
    values = self.unsqueeze(-1)
    if sequence.dim() == 1:
        bounds = sequence
    after = bounds > values if right or side == "right" else bounds >= values
    return (~after).sum(-1).to(torch.int32 if out_int32 else torch.int64)


def bucketize(
    self: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False
) -> Tensor:
    return searchsorted(boundaries, self, out_int32=out_int32, right=right)


def put(
    self: Tensor, index: Tensor, source: Tensor, accumulate: bool = False
) -> Tensor:
    flat = self.reshape(-1).index_put(
        [index.reshape(-1)], source.reshape(-1), accumulate
    )
    return flat.reshape(self.shape)


def addbmm(
    self: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Any = 1, alpha: Any = 1
) -> Tensor:
    """The sum over all batches; that of float16 and bfloat16 is rounded once."""
    if self.dtype in _HALVES:
        wide = addbmm(
            self.float(), batch1.float(), batch2.float(), beta=beta, alpha=alpha
        )
        return wide.to(self.dtype)

    def scale(tensor: Tensor, factor: Any) -> Tensor:
        factor = factor if self.is_floating_point() else int(factor)
        return tensor if factor == 1 else tensor * factor

    product = scale(torch.bmm(batch1, batch2).sum(0, dtype=self.dtype), alpha)
    return product + scale(self, beta) if beta else product


def trilinear(
    i1: Tensor,
    i2: Tensor,
    i3: Tensor,
    expand1: Any,
    expand2: Any,
    expand3: Any,
    sumdim: Any,
    unroll_dim: int = 1,
) -> Tensor:
    def expand(tensor: Tensor, places: Sequence[int]) -> Tensor:
        for place in places:
            tensor = tensor.unsqueeze(place)
        return tensor

    if not i1.is_floating_point():
        raise NotImplementedError(
            "sums of integers in their own width are not put together from others"
        )
    product = expand(i1, expand1) * expand(i2, expand2) * expand(i3, expand3)
    return product.sum(sumdim) if sumdim else product


def upsample_bilinear2d(input: Tensor, *args: Any) -> Tensor:
    """PyTorch's own decomposition, which rounds integers otherwise than eager."""
    if not input.is_floating_point():
        raise NotImplementedError("it rounds integers in another way than eager")
    result: Tensor = decomposition_table[aten.upsample_bilinear2d.vec](input, *args)
    return result


def empty(size: Any, *_: Any, dtype: Any = None, **kwargs: Any) -> Tensor:
    """Every tensor of a program file is dense."""
    return torch.empty(size, dtype=dtype)


def convert_element_type(self: Tensor, dtype: torch.dtype) -> Tensor:
    return self.to(dtype, copy=True)


def scatter_reduce(
    self: Tensor,
    dim: int,
    index: Tensor,
    src: Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> Tensor:
    if reduce != "sum":
        raise NotImplementedError(
            f"the reduction {reduce!r} is not put together from others"
        )
    start = self if include_self else self.scatter(dim, index, 0)
    return start.scatter_add(dim, index, src)


def pow_of_tensor(self: Tensor, exponent: Any) -> Tensor:
    """Of integers: by squaring, which wraps around as eager does."""
    if (
        self.is_floating_point()
        or not isinstance(exponent, int)
        or not 0 <= exponent <= LARGEST_POWER
    ):
        raise NotImplementedError(
            f"only integers to a power of up to {LARGEST_POWER} are put together from"
            " others"
        )
    result = torch.ones_like(self)
    square = self
    while exponent:
        result = result * square if exponent & 1 else result
        square = square * square if exponent > 1 else square
        exponent = exponent >> 1
    return result


def product_over_nothing(self: Tensor, mat2: Tensor) -> Tensor:
    """mm and bmm of matrices with nothing to sum."""
    if self.shape[-1] != 0:
        raise NotImplementedError(
            "only products with nothing to sum are put together from others"
        )
    return torch.zeros([*self.shape[:-1], mat2.shape[-1]], dtype=self.dtype)


def cat_of_nothing(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """cat of tensors without elements."""
    if any(t.numel() for t in tensors):
        raise NotImplementedError(
            "only tensors without elements are put together from others"
        )
    # PyTorch takes tensors of the shape [0] beside any
    shaped = [t for t in tensors if t.dim() > 1] or list(tensors)
    shape = list(shaped[0].shape)
    shape[dim] = sum(t.shape[dim] for t in shaped)
    return torch.empty(
        shape, dtype=functools.reduce(torch.promote_types, [t.dtype for t in tensors])
    )


def narrow_copy(self: Tensor, dim: int, start: Any, length: Any) -> Tensor:
    if isinstance(start, int) and start < 0:
        start += self.shape[dim]
    result: Tensor = aten.slice.Tensor(self, dim, start, start + length)
    return result.clone()


def unbind(self: Tensor, dim: int = 0) -> list[Tensor]:
    return [self.select(dim, k) for k in range(self.shape[dim])]


def crop_and_pad(self: Tensor, pad: Sequence[Any], value: Any = 0) -> Tensor:
    """Negative pads take elements away; the others are the kernel's."""
    for k, (front, back) in enumerate(zip(pad[::2], pad[1::2], strict=True)):
        dim = self.dim() - 1 - k
        start = max(-front, 0)
        end = self.shape[dim] - max(-back, 0)
        self = aten.slice.Tensor(self, dim, start, end)
    rest = [max(p, 0) for p in pad]
    return (
        aten.constant_pad_nd.default(self, rest, value) if any(rest) else self.clone()
    )


def shift(target: Any) -> Callable[..., Any]:
    """``x << n`` and ``x >> n`` of integers by the operator that kernels have."""

    def call(self: Tensor, other: Any) -> Any:
        return (
            target.Tensor_Scalar(self, other)
            if not isinstance(other, Tensor)
            else target.Tensor(self, other)
        )

    return call


def left_shift(self: Tensor, other: Any) -> Tensor:
    """0 by counts below zero and from the width of the type on."""
    bits = self.dtype.itemsize * 8
    if not isinstance(other, Tensor):
        return (
            torch.bitwise_left_shift(self, other)
            if 0 <= other < bits
            else torch.zeros_like(self)
        )
    outside = (other < 0) | (other >= bits)
    shifted = torch.bitwise_left_shift(self, torch.where(outside, 0, other))
    return torch.where(outside, 0, shifted)


def right_shift(self: Tensor, other: Any) -> Tensor:
    """The sign of each number by counts below zero and from the width of the type on."""
    bits = self.dtype.itemsize * 8
    if not isinstance(other, Tensor):
        return (
            torch.bitwise_right_shift(self, other)
            if 0 <= other < bits
            else _signs(self)
        )
    outside = (other < 0) | (other >= bits)
    shifted = torch.bitwise_right_shift(self, torch.where(outside, 0, other))
    return torch.where(outside, _signs(self), shifted)


def _signs(self: Tensor) -> Tensor:
    return -((self < 0).to(self.dtype))


FORMULAS: dict[Any, Callable[..., Any]] = {
    aten.remainder.Scalar: remainder,
    aten.remainder.Tensor: remainder,
    **{
        target: promoted(target)
        for p in (aten.add, aten.sub)
        for target in (p.Scalar, p.Tensor)
    },
    aten.div.Scalar_mode: rounded_division,
    aten.div.Tensor_mode: rounded_division,
    aten.fmod.Scalar: fmod,
    aten.fmod.Tensor: fmod,
    **{target.default: whole for target in (aten.ceil, aten.floor, aten.trunc)},
    **{
        target: summed_in_float32(target)
        for target in (
            aten._native_batch_norm_legit.default,
            aten._native_batch_norm_legit.no_stats,
            aten.avg_pool2d.default,
            aten.convolution.default,
            aten.cumsum.default,
            aten.native_layer_norm.default,
            aten.scatter_add.default,
            aten.var.correction,
            aten.var.dim,
            aten.var_mean.correction,
        )
    },
    aten.pow.Tensor_Scalar: pow_of_tensor,
    aten.cat.default: cat_of_nothing,
    aten.constant_pad_nd.default: crop_and_pad,
    **{
        t: left_shift
        for t in (aten.bitwise_left_shift.Tensor, aten.bitwise_left_shift.Tensor_Scalar)
    },
    **{
        t: right_shift
        for t in (
            aten.bitwise_right_shift.Tensor,
            aten.bitwise_right_shift.Tensor_Scalar,
        )
    },
    **{
        target: shift(aten.bitwise_left_shift)
        for target in (aten.__lshift__.Scalar, aten.__lshift__.Tensor)
    },
    **{
        target: shift(aten.bitwise_right_shift)
        for target in (aten.__rshift__.Scalar, aten.__rshift__.Tensor)
    },
    **{target: product_over_nothing for target in (aten.mm.default, aten.bmm.default)},
    aten.sign.default: sign,
    aten.floor_divide.default: floor_divide,
    aten.narrow_copy.default: narrow_copy,
    aten.unbind.int: unbind,
    aten.exp2.default: exp2,
    aten.signbit.default: signbit,
    torch.ops.prims.signbit.default: signbit,
    aten.angle.default: angle,
    aten.fmax.default: fmax,
    aten.fmin.default: fmin,
    aten.hypot.default: hypot,
    **{
        t: softmax_of_nothing(t)
        for t in (aten._softmax.default, aten._log_softmax.default)
    },
    aten.amax.default: of_scalar,
    aten.amin.default: of_scalar,
    aten.sum.dim_IntList: sum_along_one,
    aten.sort.default: sort,
    aten.sort.stable: sort_stable,
    aten.median.default: median,
    aten.searchsorted.Tensor: searchsorted,
    aten.bucketize.Tensor: bucketize,
    aten.put.default: put,
    aten.addbmm.default: addbmm,
    aten._trilinear.default: trilinear,
    aten.upsample_bilinear2d.vec: upsample_bilinear2d,
    aten.empty_permuted.default: empty,
    aten.empty_strided.default: empty,
    aten.scatter_reduce.two: scatter_reduce,
    torch.ops.prims.convert_element_type.default: convert_element_type,
}
FORMULAS |= COMPLEX_FORMULAS


def _for_real(target: Any) -> Callable[..., Any] | None:
    """What computes an operator of real numbers: its formula, or PyTorch's
    decomposition.
    """
    return FORMULAS.get(target) or decomposition_table.get(target)


FORMULAS |= {
    target: only_complex(formula, _for_real(target))
    for target, formula in IF_COMPLEX.items()
}

"""Decompose operators into simpler ones, if PyTorch's decomposition has no kernels.

A formula has the arguments of its operator, and raises NotImplementedError for those
that it does not support. It is exact, or rounds as often as the operator. The formulas
of remainder, add and sub replace kernels that compute wrong values
(``kernels.limits``).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table

from .complex_formulas import COMPLEX_FORMULAS, FORMULAS_IF_COMPLEX, only_complex

aten = torch.ops.aten
MOST_COMPARISONS = 1 << 22
"""The most comparisons for sorting.

No kernel sorts stably, so the formula compares all pairs of elements.
"""

LARGEST_POWER = 64
"""The largest exponent of ``pow_of_integers``; each of its bits takes two products."""
HALVES = (torch.float16, torch.bfloat16)


def remainder(self: Any, other: Any) -> Tensor:
    """Return the remainder with the sign of the divisor."""
    if (
        isinstance(self, Tensor)
        and not torch.result_type(self, other).is_floating_point
    ):
        return _remainder_of_integers(self, other)
    rest = (
        aten.fmod.Tensor(self, other)
        if isinstance(other, Tensor)
        else aten.fmod.Scalar(self, other)
    )
    # fmod has the sign of the dividend
    has_wrong_sign = (rest != 0) & ((rest < 0) != (other < 0))
    return torch.where(has_wrong_sign, rest + other, rest)


def fmod(self: Tensor, other: Any) -> Tensor:
    """Return the remainder of integers with the sign of the dividend ``self``.

    ``_remainder_of_integers`` has the sign of the divisor: a remainder of the wrong
    sign is one divisor away.
    """
    if torch.result_type(self, other).is_floating_point:
        raise NotImplementedError("only integers are supported")
    rest = _remainder_of_integers(self, other)
    has_wrong_sign = (rest != 0) & ((rest < 0) != (self < 0))
    result: Tensor = torch.where(has_wrong_sign, rest - other, rest)
    return result


def rounded_division(self: Tensor, other: Any, *, rounding_mode: str | None) -> Tensor:
    """Divide with ``rounding_mode``.

    For integers, truncation is the floor, plus one if the floor is negative and not
    exact.
    """
    if torch.result_type(self, other).is_floating_point:
        if rounding_mode != "floor":
            raise NotImplementedError("floats need rounding_mode='floor'")
        return _floor_of_floats(self, other)
    if rounding_mode is None:
        raise NotImplementedError("integers need a rounding_mode")
    divide_down = functools.partial(torch.div, rounding_mode="floor")
    floor = _floor(self, other, divide_down)
    if rounding_mode == "floor":
        return floor
    quotient: Tensor = floor + ((floor < 0) & (floor * other != self)).to(floor.dtype)
    return quotient


def _floor_of_floats(self: Tensor, other: Any) -> Tensor:
    """Return the floor of a quotient of floats.

    Division by zero gives infinity or NaN, as in eager PyTorch. The kernel would give
    infinity for zero divided by zero.
    """
    if isinstance(other, Tensor):
        is_zero = other == 0
        quotient = self / other
        floor = torch.div(self, other, rounding_mode="floor")
        return torch.where(is_zero, quotient, floor)
    if other != 0:
        return torch.div(self, other, rounding_mode="floor")
    infinite: Tensor = self / other
    return infinite


def floor_divide(self: Tensor, other: Any) -> Tensor:
    """Divide and round down."""
    if torch.result_type(self, other).is_floating_point:
        return torch.div(self, other, rounding_mode="floor")
    return _floor(self, other, torch.floor_divide)


def _floor(self: Tensor, other: Any, divide: Callable[[Any, Any], Tensor]) -> Tensor:
    """Return the floor of ``self / other`` for integers; ``divide`` computes it.

    Division by -1 becomes a negation, because the kernel crashes if the least integer
    is divided by -1.
    """
    if not isinstance(other, Tensor):
        return divide(self, other) if other != -1 else -self
    by_others = divide(self, torch.where(other == -1, 1, other))
    return torch.where(other == -1, (-self).to(by_others.dtype), by_others)


def _remainder_of_integers(self: Tensor, other: Any) -> Tensor:
    """Return ``self`` minus the floor of the quotient times ``other``.

    It has the sign of ``other``. Divisors of -1 become 1: the remainder is 0 as well,
    and the kernel does not crash for the least integer.
    """
    if isinstance(other, Tensor):
        other = torch.where(other == -1, 1, other)
    elif other == -1:
        other = 1
    rest: Tensor = self - torch.div(self, other, rounding_mode="floor") * other
    return rest


def round_integers(self: Tensor) -> Tensor:
    """Return a copy: ceil, floor and trunc do not change integers."""
    if self.is_floating_point():
        raise NotImplementedError("only integers are supported")
    return self.clone()


def summed_in_float32(target: Any) -> Callable[..., Any]:
    """Return a formula that computes half precision in float32 and rounds once.

    ``target`` is an operator with one element type for tensors and results. None of its
    tensors is in a list or a keyword argument. For other types, the formula is
    PyTorch's decomposition.
    """

    def widen(value: Any) -> Any:
        if isinstance(value, Tensor) and value.dtype in HALVES:
            return value.float()
        return value

    def call(*args: Any, **kwargs: Any) -> Any:
        types = [v.dtype for v in args if isinstance(v, Tensor)]
        halves = [dtype for dtype in types if dtype in HALVES]
        if not halves:
            decomposition = decomposition_table.get(target)
            if decomposition is None:
                raise NotImplementedError("only half precision are supported")
            return decomposition(*args, **kwargs)

        def narrow(value: Any) -> Any:
            if isinstance(value, Tensor) and value.dtype == torch.float32:
                return value.to(halves[0])
            return value

        results = target(*map(widen, args), **kwargs)
        if isinstance(results, tuple):
            return tuple(map(narrow, results))
        return narrow(results)

    return call


def cast_then_other_overload(target: Any) -> Callable[..., Any]:
    """Return a formula of add or sub for operands of different types.

    It casts the first operand to the type of the result, and adds again. ``target``
    itself cannot be called, since it is being decomposed. So the Tensor overload calls
    Scalar, and the Scalar overload calls Tensor.
    """
    packet = target.overloadpacket
    is_tensor_overload = target is packet.Tensor

    def call(self: Tensor, other: Any, alpha: Any = 1) -> Any:
        cast = self.to(torch.result_type(self, other))
        if is_tensor_overload:
            return packet.Scalar(cast, other, alpha)
        return packet.Tensor(cast, other, alpha=alpha)

    return call


def sign(self: Tensor) -> Tensor:
    """Return the sign; 0 for NaN."""
    return (self > 0).to(self.dtype) - (self < 0).to(self.dtype)


def exp2(self: Tensor) -> Tensor:
    """Return 2 to the power of each element."""
    return torch.pow(2.0, self)


def signbit(self: Tensor) -> Tensor:
    """Return whether numbers are negative. NaN counts as positive."""
    negative: Tensor = self < 0
    if not self.is_floating_point():
        return negative
    # The reciprocal of -0.0 is minus infinity.
    return negative | ((self == 0) & (self.reciprocal() < 0))


def angle(self: Tensor) -> Tensor:
    """Return the angle of real numbers: pi for negative ones, else 0; NaN for NaN."""
    real = self.to(torch.result_type(self, 1.0))
    is_nan = real.isnan()
    angles = torch.where(real < 0, math.pi, 0.0).to(real.dtype)
    return torch.where(is_nan, real, angles)


def ignoring_nan(choose: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """Return a formula of fmax or fmin; ``choose`` is torch.maximum or torch.minimum.

    If one of two elements is NaN, the result is the other one.
    """

    def call(self: Tensor, other: Tensor) -> Tensor:
        chosen = torch.where(other.isnan(), self, choose(self, other))
        return torch.where(self.isnan(), other, chosen)

    return call


def hypot(self: Tensor, other: Tensor) -> Tensor:
    """Return ``sqrt(self**2 + other**2)``, scaled so that squares stay finite."""
    most = torch.maximum(self.abs(), other.abs())
    least = torch.minimum(self.abs(), other.abs())
    length = torch.where(most == 0, most, most * (1 + (least / most) ** 2).sqrt())
    return torch.where(self.isinf() | other.isinf(), math.inf, length)


def amax_of_scalar_or_empty(
    self: Tensor, dim: Sequence[int] = (), keepdim: bool = False
) -> Tensor:
    """Compute amax or amin of a tensor without dimensions or without elements.

    Without elements, the result has no elements either, and ``sum`` has the same shape.
    """
    if not self.dim():
        return self.clone()
    if self.numel():
        raise NotImplementedError(
            "only tensors without dimensions or elements are supported"
        )
    return self.sum(list(dim), keepdim=keepdim, dtype=self.dtype)


def softmax_of_empty(target: Any) -> Callable[..., Tensor]:
    """Return a formula of softmax or log_softmax for tensors without elements.

    Other tensors use PyTorch's decomposition.
    """

    def call(self: Tensor, dim: int, half_to_float: bool) -> Tensor:
        if not self.numel():
            return self.clone()
        result: Tensor = decomposition_table[target](self, dim, half_to_float)
        return result

    return call


def sum_along_one_dim(
    self: Tensor, dim: Any, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    """Sum along one dimension.

    The kernel needs at least two, so the formula adds a dimension with one element. A
    tensor without dimensions is its own sum.
    """
    if not self.dim():
        if dtype is None:
            is_integer = not (self.is_floating_point() or self.is_complex())
            dtype = torch.int64 if is_integer else self.dtype
        return self.to(dtype).clone()
    if not dim or len(dim) > 1:
        raise NotImplementedError("only sums along one dimension are supported")
    axis = dim[0] % self.dim()
    total: Tensor = self.unsqueeze(0).sum([0, axis + 1], keepdim=keepdim, dtype=dtype)
    return total.squeeze(0) if keepdim else total


def sort(
    self: Tensor, dim: int = -1, descending: bool = False, stable: bool | None = True
) -> tuple[Tensor, Tensor]:
    """Sort stably, NaN last, by comparing all pairs of elements.

    The rank of an element, its index in the result, is the number of elements that come
    before it: smaller ones, and equal ones with a lower index. ``stable`` is ignored.
    """
    if not self.dim():
        return self.clone(), torch.zeros((), dtype=torch.int64)
    x = self.transpose(dim, -1)
    size = x.shape[-1]
    comparisons = self.numel() * size
    # a size that is known at run time only is no int
    if not isinstance(comparisons, int) or comparisons > MOST_COMPARISONS:
        raise NotImplementedError(
            f"sorting compares all pairs of elements, at most {MOST_COMPARISONS}"
        )
    # [..., size, size]: entry i, j compares the element i with the other element j
    element = x.unsqueeze(-1)
    other = x.unsqueeze(-2)
    if descending:
        is_before = _is_less(element, other)
    else:
        is_before = _is_less(other, element)
    is_equal = (element == other) | (element.isnan() & other.isnan())
    order = torch.arange(size)
    has_lower_index = order < order.unsqueeze(-1)
    ranks = (is_before | (is_equal & has_lower_index)).sum(-1)
    # invert the permutation: from the rank of each index to the index of each rank
    indices = torch.zeros_like(ranks).scatter(-1, ranks, order.expand(ranks.shape))
    return x.gather(-1, indices).transpose(dim, -1), indices.transpose(dim, -1)


def _is_less(a: Tensor, b: Tensor) -> Tensor:
    """Return where ``a`` sorts before ``b``; NaN is the largest value."""
    return (a < b) | (b.isnan() & ~a.isnan())


def sort_stable(
    self: Tensor, *, stable: bool | None, dim: int = -1, descending: bool = False
) -> tuple[Tensor, Tensor]:
    """Sort stably; the formula of ``sort`` always does."""
    return sort(self, dim, descending)


def median(self: Tensor) -> Tensor:
    """Return the lower median; NaN if an element is NaN."""
    ordered = sort(self.reshape(-1))[0]
    has_nan = self.isnan().any()
    middle = ordered[(self.numel() - 1) // 2]
    return torch.where(has_nan, math.nan, middle).to(self.dtype)


def searchsorted(
    sequence: Tensor,
    self: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: Any = None,
    sorter: Any = None,
) -> Tensor:
    """Return the number of boundaries in ``sequence`` before each value of ``self``.

    NaN is the largest value. A boundary that equals the value counts only with
    ``right``, or a ``side`` of "right".
    """
    if sorter is not None:
        raise NotImplementedError("a sorter is not supported")
    bounds = sequence if sequence.dim() == 1 else sequence.unsqueeze(-2)
    values = self.unsqueeze(-1)
    # count by ``not after``, since no comparison with NaN is true
    if right or side == "right":
        is_after = bounds > values
    else:
        is_after = bounds >= values
    return (~is_after).sum(-1).to(torch.int32 if out_int32 else torch.int64)


def bucketize(
    self: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False
) -> Tensor:
    """Call ``searchsorted``, which has these arguments in another order."""
    return searchsorted(boundaries, self, out_int32=out_int32, right=right)


def put(
    self: Tensor, index: Tensor, source: Tensor, accumulate: bool = False
) -> Tensor:
    """Write to elements by their index in the flattened tensor."""
    flat = self.reshape(-1).index_put(
        [index.reshape(-1)], source.reshape(-1), accumulate
    )
    return flat.reshape(self.shape)


def addbmm(
    self: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Any = 1, alpha: Any = 1
) -> Tensor:
    """Return ``beta * self + alpha * (batch1 @ batch2).sum(0)``.

    Half precision is computed in float32, and rounded once.
    """
    if self.dtype in HALVES:
        wide = addbmm(
            self.float(), batch1.float(), batch2.float(), beta=beta, alpha=alpha
        )
        return wide.to(self.dtype)

    def scale(tensor: Tensor, factor: Any) -> Tensor:
        factor = factor if self.is_floating_point() else int(factor)
        return tensor if factor == 1 else tensor * factor

    product = scale(torch.bmm(batch1, batch2).sum(0, dtype=self.dtype), alpha)
    # with a beta of 0, NaN in ``self`` is ignored
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
    """Return the sum of the product of three tensors over ``sumdim``.

    ``expand1``, ``expand2`` and ``expand3``: the dimensions of size 1 that each tensor
    gets first. ``unroll_dim`` only affects the speed of PyTorch's kernel.
    """

    def expand(tensor: Tensor, dims: Sequence[int]) -> Tensor:
        for dim in dims:
            tensor = tensor.unsqueeze(dim)
        return tensor

    if not i1.is_floating_point():
        raise NotImplementedError("only floats are supported")
    product = expand(i1, expand1) * expand(i2, expand2) * expand(i3, expand3)
    return product.sum(sumdim) if sumdim else product


def upsample_bilinear2d(input: Tensor, *args: Any) -> Tensor:
    """Call PyTorch's decomposition, which is right for floats only."""
    if not input.is_floating_point():
        raise NotImplementedError("it rounds integers differently than eager PyTorch")
    result: Tensor = decomposition_table[aten.upsample_bilinear2d.vec](input, *args)
    return result


def empty(size: Any, *_: Any, dtype: Any = None, **kwargs: Any) -> Tensor:
    """Return a dense tensor; the strides of the call don't matter in a program file."""
    return torch.empty(size, dtype=dtype)


def convert_element_type(self: Tensor, dtype: torch.dtype) -> Tensor:
    """Cast to ``dtype``; the result is a copy even if the type is equal."""
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
    """Add elements of ``src`` at indices along ``dim``; other reductions are refused.

    Without ``include_self``, written elements start from 0 instead of ``self``.
    """
    if reduce != "sum":
        raise NotImplementedError(f"the reduction {reduce!r} is not supported")
    start = self if include_self else self.scatter(dim, index, 0)
    return start.scatter_add(dim, index, src)


def pow_of_integers(self: Tensor, exponent: Any) -> Tensor:
    """Compute powers of integers by squaring: ``x**5 = x * (x**2)**2``.

    Products of integers wrap around as in eager PyTorch.
    """
    if (
        self.is_floating_point()
        or not isinstance(exponent, int)
        or not 0 <= exponent <= LARGEST_POWER
    ):
        raise NotImplementedError(
            f"an integer can only be raised to an integer from 0 to {LARGEST_POWER}"
        )
    result = torch.ones_like(self)
    square = self
    while exponent:
        if exponent & 1:
            result = result * square
        if exponent > 1:
            square = square * square
        exponent = exponent >> 1
    return result


def empty_product(self: Tensor, mat2: Tensor) -> Tensor:
    """Compute mm or bmm of matrices with an inner dimension of 0."""
    if self.shape[-1] != 0:
        raise NotImplementedError(
            "only matrices with an inner dimension of 0 are supported"
        )
    return torch.zeros([*self.shape[:-1], mat2.shape[-1]], dtype=self.dtype)


def cat_of_empty(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Return the concatenation of tensors without elements."""
    if any(t.numel() for t in tensors):
        raise NotImplementedError("only tensors without elements are supported")
    # torch.cat ignores tensors of the shape [0]
    shaped = [t for t in tensors if t.dim() > 1] or list(tensors)
    shape = list(shaped[0].shape)
    shape[dim] = sum(t.shape[dim] for t in shaped)
    dtype = functools.reduce(torch.promote_types, [t.dtype for t in tensors])
    return torch.empty(shape, dtype=dtype)


def narrow_copy(self: Tensor, dim: int, start: Any, length: Any) -> Tensor:
    """Return a copy of ``length`` indices of a dimension, from ``start`` on."""
    if isinstance(start, int) and start < 0:
        start += self.shape[dim]
    result: Tensor = aten.slice.Tensor(self, dim, start, start + length)
    return result.clone()


def unbind(self: Tensor, dim: int = 0) -> list[Tensor]:
    """Return the slices of a dimension, one for each index."""
    return [self.select(dim, k) for k in range(self.shape[dim])]


def crop_and_pad(self: Tensor, pad: Sequence[Any], value: Any = 0) -> Tensor:
    """Pad with ``value``, where negative pads crop: slice first, then call the kernel.

    ``pad``: front and back of the last dimension, then those of the one before it, ...
    """
    for k, (front, back) in enumerate(zip(pad[::2], pad[1::2], strict=True)):
        dim = self.dim() - 1 - k
        start = max(-front, 0)
        end = self.shape[dim] - max(-back, 0)
        self = aten.slice.Tensor(self, dim, start, end)
    positive = [max(p, 0) for p in pad]
    if not any(positive):
        return self.clone()
    padded: Tensor = aten.constant_pad_nd.default(self, positive, value)
    return padded


def shift(target: Any) -> Callable[..., Any]:
    """Return a formula for the operator of ``x << n`` or ``x >> n``.

    The operator has no kernel. So the formula calls ``target``, which has kernels:
    aten.bitwise_left_shift or aten.bitwise_right_shift.
    """

    def call(self: Tensor, other: Any) -> Any:
        if isinstance(other, Tensor):
            return target.Tensor(self, other)
        return target.Tensor_Scalar(self, other)

    return call


def left_shift(self: Tensor, other: Any) -> Tensor:
    """Shift left; counts below 0 or beyond the type's width give 0."""
    bits = self.dtype.itemsize * 8
    if isinstance(other, Tensor):
        is_too_far = (other < 0) | (other >= bits)
        shifted = torch.bitwise_left_shift(self, torch.where(is_too_far, 0, other))
        return torch.where(is_too_far, 0, shifted)
    if 0 <= other < bits:
        return torch.bitwise_left_shift(self, other)
    return torch.zeros_like(self)


def right_shift(self: Tensor, other: Any) -> Tensor:
    """Shift right; counts below 0 or beyond the type's width give 0 or -1."""
    bits = self.dtype.itemsize * 8
    if isinstance(other, Tensor):
        is_too_far = (other < 0) | (other >= bits)
        shifted = torch.bitwise_right_shift(self, torch.where(is_too_far, 0, other))
        return torch.where(is_too_far, _sign_bits(self), shifted)
    if 0 <= other < bits:
        return torch.bitwise_right_shift(self, other)
    return _sign_bits(self)


def _sign_bits(self: Tensor) -> Tensor:
    """Return -1 (all bits set) for negative numbers, else 0."""
    return -((self < 0).to(self.dtype))


FORMULAS: dict[Any, Callable[..., Any]] = {
    aten.remainder.Scalar: remainder,
    aten.remainder.Tensor: remainder,
    **{
        target: cast_then_other_overload(target)
        for target in (
            aten.add.Scalar,
            aten.add.Tensor,
            aten.sub.Scalar,
            aten.sub.Tensor,
        )
    },
    aten.div.Scalar_mode: rounded_division,
    aten.div.Tensor_mode: rounded_division,
    aten.fmod.Scalar: fmod,
    aten.fmod.Tensor: fmod,
    **{
        target.default: round_integers for target in (aten.ceil, aten.floor, aten.trunc)
    },
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
    aten.pow.Tensor_Scalar: pow_of_integers,
    aten.cat.default: cat_of_empty,
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
    **{target: empty_product for target in (aten.mm.default, aten.bmm.default)},
    aten.sign.default: sign,
    aten.floor_divide.default: floor_divide,
    aten.narrow_copy.default: narrow_copy,
    aten.unbind.int: unbind,
    aten.exp2.default: exp2,
    aten.signbit.default: signbit,
    torch.ops.prims.signbit.default: signbit,
    aten.angle.default: angle,
    aten.fmax.default: ignoring_nan(torch.maximum),
    aten.fmin.default: ignoring_nan(torch.minimum),
    aten.hypot.default: hypot,
    **{
        t: softmax_of_empty(t)
        for t in (aten._softmax.default, aten._log_softmax.default)
    },
    aten.amax.default: amax_of_scalar_or_empty,
    aten.amin.default: amax_of_scalar_or_empty,
    aten.sum.dim_IntList: sum_along_one_dim,
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


def _formula_for_reals(target: Any) -> Callable[..., Any] | None:
    """Return the formula or PyTorch's decomposition of an operator on real numbers."""
    return FORMULAS.get(target) or decomposition_table.get(target)


FORMULAS |= {
    target: only_complex(formula, _formula_for_reals(target))
    for target, formula in FORMULAS_IF_COMPLEX.items()
}

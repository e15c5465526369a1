"""Run eager PyTorch with other rounding, or with equal elements in another order.

The results are as right as those of a plain run. Random rounding is known as CESTAC
(https://doi.org/10.1016/0378-4754(93)90003-D).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from delegraph.host import TOLERANCES
from torch._ops import OpOverload
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
_PICKS = {
    aten.topk.default,
    aten.sort.default,
    aten.sort.stable,
    aten.argmax.default,
    aten.argmin.default,
}
_PICKS |= {
    aten.max.dim,
    aten.min.dim,
    aten.kthvalue.default,
    aten.median.dim,
    aten.nanmedian.dim,
}
"""Operators that return positions of elements."""
_MOVES = frozenset(
    """
    _to_copy _unsafe_index abs alias amax amin arange cat ceil clamp clamp_max clamp_min clone constant_pad_nd copy
    diagonal_copy embedding empty expand_copy eye fill flip floor full full_like gather index index_put index_select
    lift_fresh_copy masked_fill masked_scatter masked_select max max_pool2d_with_indices maximum min minimum neg
    new_empty new_full new_ones new_zeros ones ones_like permute_copy pixel_shuffle pixel_unshuffle relu repeat roll
    round scalar_tensor scatter select_scatter slice_scatter stack trunc where zero zeros zeros_like
    """.split()
)
"""Operators without rounding: their results are elements of operands, or exact."""
_LARGEST_WITH_QUARTERS = 2**50
"""The largest integer to which noise of a quarter is added.

In float64, much larger integers plus a quarter are rounded to integers.
"""
_LAST_BITS = {
    torch.float64: (torch.int64, 0xFFFFF),
    torch.float32: (torch.int32, 0xFF),
    torch.float16: (torch.int16, 0x7),
    torch.bfloat16: (torch.int16, 0x3),
}
"""Type -> an integer type of the same width, and a mask of the last bits.

A number with last bits of 0 has few digits, such as a count or a half.
"""


class OtherRounding(TorchDispatchMode):
    """A mode in which eager PyTorch's results are off by a part of their tolerance.

    ``share`` is that part. The ``kind`` "rounding" changes the last digits of each
    result at random. The ``kind`` "order" keeps all values, but ranks later elements
    above earlier ones that are about equal; with ``sign`` -1, below them.
    """

    # results of branches, loops and delegates are not changed
    supports_higher_order_operators = True

    def __init__(
        self, kind: Literal["order", "rounding"], share: float, sign: int
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._share = share
        self._sign = sign
        # the same numbers in each run make a verification reproducible
        self._random: torch.Generator | None = None
        if kind == "rounding":
            self._random = torch.Generator().manual_seed(0)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call ``func``, and change its rounding, or its choice of elements."""
        kwargs = kwargs or {}
        # a stable sort has no choice among equal elements
        if func in _PICKS and not kwargs.get("stable"):
            return self._pick(func, args, kwargs)
        returned = func(*args, **kwargs)
        if self._random is not None and _rounds(func):
            pytree.tree_map_only(torch.Tensor, self._round, returned)
        return returned

    def _round(self, result: torch.Tensor) -> torch.Tensor:
        """Change the last digits of each element of ``result`` in place, and return it.

        Numbers with last bits of 0, such as counts and halves, are mostly exact, and do
        not change. Neither do the largest numbers, which would become infinite: they
        are masks, and softmax of infinities alone is NaN.
        """
        if result.dtype not in _LAST_BITS or result.layout is not torch.strided:
            return result
        integers, mask = _LAST_BITS[result.dtype]
        is_exact = (result.view(integers) & mask) == 0
        is_mask = result.abs() > torch.finfo(result.dtype).max / 2
        factors = 1 + self._relative_noise(result.dtype) * self._noise(result)
        factors = torch.where(is_exact | is_mask, 1.0, factors)
        result.mul_(factors.to(result.dtype))
        return result

    def _pick(
        self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Return the result of a ``func`` in ``_PICKS`` for other ranks of about equal
        elements.

        ``func`` gets a copy of its operand with noise, and picks positions by it. The
        values at these positions are read from the operand itself, without noise.
        """
        schema = func._schema.arguments
        names = [argument.name for argument in schema]
        arguments: dict[str, Any] = {a.name: a.default_value for a in schema}
        arguments.update(zip(names, args, strict=False))
        arguments.update(kwargs)
        source = arguments["self"]
        dim = arguments["dim"]
        returned = func(self._add_noise(source, dim), *args[1:], **kwargs)
        # argmax and argmin return positions only
        if isinstance(returned, torch.Tensor):
            return returned
        _, positions = returned
        if positions.dim() == source.dim():
            return source.gather(dim, positions), positions
        values = source.gather(dim, positions.unsqueeze(dim)).squeeze(dim)
        return values, positions

    def _add_noise(self, source: torch.Tensor, dim: int | None) -> torch.Tensor:
        """Return ``source`` in float64 plus noise that reorders about equal elements.

        The noise of floats is at most ``_relative_noise`` of the largest elements of
        similar magnitude (``_scales``). That of integers is at most a quarter, so only
        equal integers reorder. ``dim``: the dimension along which elements are
        compared; None for all elements. If an integer is too large for noise in
        float64, returns ``source`` itself.
        """
        wide = source.double()
        finite = wide.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).abs()
        largest = float(finite.max()) if finite.numel() else 0.0
        if not source.is_floating_point():
            if largest > _LARGEST_WITH_QUARTERS:
                return source
            return wide + 0.25 * self._noise(wide, dim)
        # Infinity plus noise is infinity, so infinities would not reorder. They become
        # a finite number that is larger than all others.
        limit = min(2 * largest or 1.0, torch.finfo(torch.float64).max)
        bounded = wide.nan_to_num(nan=torch.nan, posinf=limit, neginf=-limit)
        scales = _scales(bounded.nan_to_num().abs())
        noise = self._noise(wide, dim)
        return bounded + self._relative_noise(source.dtype) * scales * noise

    def _noise(self, like: torch.Tensor, dim: int | None = None) -> torch.Tensor:
        """Return factors between -1 and 1 for the elements of ``like``.

        For rounding, they are random, with absolute values of at least 0.5. For order,
        they rise along ``dim`` (None: along all elements), or fall if ``sign`` is -1.
        """
        if self._random is not None:
            wide = torch.float64 if like.dtype is torch.float64 else torch.float32
            # -0.5 to 0.5
            noise = torch.rand(like.shape, generator=self._random, dtype=wide) - 0.5
            # adding a half away from 0 avoids factors too small to change a digit
            return self._sign * (noise + 0.5 * noise.sign()).to(like.device)
        if dim is None or like.dim() == 0:
            size = like.numel()
            shape = list(like.shape)
        else:
            size = like.shape[dim]
            shape = [1] * like.dim()
            shape[dim] = size
        rising = torch.linspace(
            -self._sign, self._sign, size, dtype=torch.float64, device=like.device
        )
        return rising.reshape(shape)

    def _relative_noise(self, dtype: torch.dtype) -> float:
        """Return the largest relative change of a number of this type.

        It is ``share`` of the type's tolerance, but at least one unit of the last
        digit.
        """
        tolerance = TOLERANCES.get(str(dtype).removeprefix("torch."), 0.0)
        return max(self._share * tolerance, torch.finfo(dtype).eps)


def _rounds(func: Any) -> bool:
    """Return whether an operator rounds its results."""
    if not isinstance(func, OpOverload) or func in _PICKS:
        return False
    # a view has the elements of its operand
    for result in func._schema.returns:
        if result.alias_info is not None and not result.alias_info.is_write:
            return False
    # ``add_`` rounds like ``add``
    name = func._schema.name.removeprefix("aten::").removesuffix("_")
    return name not in _MOVES


def _scales(magnitudes: torch.Tensor) -> torch.Tensor:
    """Return for each magnitude the largest one of its group.

    In order of size, a group ends where the next magnitude is over 1,000 times as
    large. So a mask of -3e38 or -1e9 does not make all other scores about equal.
    """
    in_order = magnitudes[magnitudes > 0].sort().values
    if not in_order.numel():
        return torch.ones_like(magnitudes)
    is_last_of_group = torch.ones_like(in_order, dtype=torch.bool)
    is_last_of_group[:-1] = in_order[1:] > 1000 * in_order[:-1]
    largest_of_groups = in_order[is_last_of_group]
    # searchsorted warns about other strides
    groups = torch.searchsorted(largest_of_groups, magnitudes.contiguous())
    scales: torch.Tensor = largest_of_groups[groups]
    return scales

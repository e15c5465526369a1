"""Eager PyTorch with its results rounded otherwise, or with equal elements in another
order.

What it then returns is as right as what it returned at first. Rounding at random is the
method called CESTAC (https://doi.org/10.1016/0378-4754(93)90003-D).
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
"""Operators whose results are elements of their operands, or exact: they round nothing.
"""
_LAST_BITS = {
    torch.float64: (torch.int64, 0xFFFFF),
    torch.float32: (torch.int32, 0xFF),
    torch.float16: (torch.int16, 0x7),
    torch.bfloat16: (torch.int16, 0x3),
}
"""Type -> an integer type of the same width, and a mask of the last bits.

A number whose last bits are 0 has few digits, as a count or a half has.
"""


class OtherRounding(TorchDispatchMode):
    """A mode in which eager PyTorch's results are off by up to ``share`` of the
    tolerance of their type.

    ``what`` "rounding" changes the last digits of each result at random. ``what``
    "order" leaves all values as they are, but lets later elements count as larger than
    earlier ones that are about equal. ``sign`` -1 does the opposite.
    """

    # results of branches, loops and delegates are not changed
    supports_higher_order_operators = True

    def __init__(
        self, what: Literal["order", "rounding"], share: float, sign: int
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._share = share
        self._sign = sign
        # the same numbers in each run, so that a verification gives the same answer
        # again; None for "order"
        self._random = torch.Generator().manual_seed(0) if what == "rounding" else None

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call ``func``, and change its results if it rounds, or the choice if it picks
        elements.
        """
        kwargs = kwargs or {}
        # a stable sort has no choice among equal elements
        if func in _PICKS and not kwargs.get("stable"):
            return self._pick(func, args, kwargs)
        returned = func(*args, **kwargs)
        if (
            self._random is not None
            and isinstance(func, OpOverload)
            and func not in _PICKS
        ):
            # ``add_`` rounds as ``add`` does
            name = func._schema.name.removeprefix("aten::").removesuffix("_")
            returns_view = any(
                r.alias_info is not None and not r.alias_info.is_write
                for r in func._schema.returns
            )
            # a view has the elements of its operand, and rounds nothing
            if not returns_view and name not in _MOVES:
                pytree.tree_map_only(torch.Tensor, self._round, returned)
        return returned

    def _round(self, result: torch.Tensor) -> torch.Tensor:
        """Change the last digits of each element of ``result`` in place, and return it.

        A number whose last bits are 0, such as a count or a half, is mostly exact and
        stays as it is. So do the largest ones, which would become infinite: they are
        masks, and softmax of infinities alone is NaN.
        """
        if result.dtype in _LAST_BITS and result.layout is torch.strided:
            integers, mask = _LAST_BITS[result.dtype]
            is_exact = (result.view(integers) & mask) == 0
            stays = is_exact | (result.abs() > torch.finfo(result.dtype).max / 2)
            factors = torch.where(
                stays, 1.0, 1 + self._size(result.dtype) * self._noise(result)
            )
            result.mul_(factors.to(result.dtype))
        return result

    def _pick(
        self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """The result of ``func``, one of ``_PICKS``, with elements that are about equal
        in another order.

        ``func`` gets a copy of its operand in which these elements differ by a little.
        Values that it returns beside the positions are read from the operand itself,
        which has the exact ones.
        """
        schema = func._schema.arguments
        positional = zip((a.name for a in schema), args, strict=False)
        # all arguments by name: defaults, then those that were passed
        arguments = {
            **{a.name: a.default_value for a in schema},
            **dict(positional),
            **kwargs,
        }
        source = arguments["self"]
        dim = arguments["dim"]
        returned = func(self._reordered(source, dim), *args[1:], **kwargs)
        # argmax and argmin return positions only
        if isinstance(returned, torch.Tensor):
            return returned
        positions = returned[1]  # the others return (values, positions)
        keeps_dim = positions.dim() == source.dim()
        values = source.gather(
            dim, positions if keeps_dim else positions.unsqueeze(dim)
        )
        return values if keeps_dim else values.squeeze(dim), positions

    def _reordered(self, source: torch.Tensor, dim: int | None) -> torch.Tensor:
        """``source`` in float64, changed by so little that only elements that are about
        equal change their order.

        ``dim``: the dimension along which elements are compared; None: all elements are
        compared. Integers that float64 cannot hold are returned as they are.
        """
        wide = source.double()
        finite = wide.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).abs()
        largest = float(finite.max()) if finite.numel() else 0.0
        if not source.is_floating_point():
            # float64 cannot hold a larger integer plus a quarter; changed by less, two
            # that differ stay in order
            return source if largest > 2**50 else wide + 0.25 * self._noise(wide, dim)
        # infinities are equal to each other, too: they become a number beyond all
        # finite ones, which can be changed
        limit = min(2 * largest or 1.0, torch.finfo(torch.float64).max)
        changed = wide.nan_to_num(nan=torch.nan, posinf=limit, neginf=-limit)
        return changed + self._size(source.dtype) * _scales(
            changed.nan_to_num().abs()
        ) * self._noise(wide, dim)

    def _noise(self, like: torch.Tensor, dim: int | None = None) -> torch.Tensor:
        """Factors between -1 and 1 for the elements of ``like``.

        For rounding they are random, with absolute values of at least 0.5. For order
        they rise along ``dim`` (None: along all elements), or fall if ``sign`` is -1.
        """
        if self._random is not None:
            wide = torch.float64 if like.dtype is torch.float64 else torch.float32
            # -0.5 to 0.5
            noise = torch.rand(like.shape, generator=self._random, dtype=wide) - 0.5
            # adding a half away from 0 leaves no factor so small that nothing would be
            # rounded otherwise
            return self._sign * (noise + 0.5 * noise.sign()).to(like.device)
        size = like.numel() if dim is None or like.dim() == 0 else like.shape[dim]
        rising = torch.linspace(
            -self._sign, self._sign, size, dtype=torch.float64, device=like.device
        )
        if dim is None or like.dim() == 0:
            return rising.reshape(like.shape)
        return rising.reshape(
            [-1 if d == dim % like.dim() else 1 for d in range(like.dim())]
        )

    def _size(self, dtype: torch.dtype) -> float:
        """By which share of itself a result of this type may change: that of its
        tolerance, at least one last digit.
        """
        tolerance = TOLERANCES.get(str(dtype).removeprefix("torch."), 0.0)
        return max(self._share * tolerance, torch.finfo(dtype).eps)


def _scales(magnitudes: torch.Tensor) -> torch.Tensor:
    """For each magnitude, what counts as large beside it: the largest one that steps of
    at most a thousandfold lead to.

    So a mask of -3e38 or -1e9 does not make all scores beside it about equal.
    """
    known = magnitudes[magnitudes > 0].sort().values
    if not known.numel():
        return torch.ones_like(magnitudes)
    is_last = torch.ones_like(known, dtype=torch.bool)
    is_last[:-1] = known[1:] > 1000 * known[:-1]
    lasts = known[is_last]
    # it warns of other strides
    scales: torch.Tensor = lasts[torch.searchsorted(lasts, magnitudes.contiguous())]
    return scales

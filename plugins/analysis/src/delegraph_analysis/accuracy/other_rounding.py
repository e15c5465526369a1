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
"""Operators that return positions of elements."""
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
"""Operators that round nothing: their results are elements of operands, or exact."""
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

    ``share`` is that part. ``what`` "rounding" changes the last digits of each result
    at random. ``what`` "order" keeps all values, but ranks later elements above earlier
    ones that are about equal; with ``sign`` -1, below them.
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

        Numbers with last bits of 0, such as counts and halves, are mostly exact and
        stay. The largest numbers stay as well, since they would become infinite: they
        are masks, and softmax of infinities alone is NaN.
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
        """Return the result of a ``func`` in ``_PICKS``, with about equal elements
        reordered.

        ``func`` gets a copy of its operand in which these elements differ a little.
        Returned values are read from the operand itself, which has the exact ones.
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
        """Return ``source`` in float64, changed so that only about equal elements
        reorder.

        ``dim``: the dimension along which elements are compared; None for all elements.
        Integers that float64 cannot represent stay as they are.
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
        """Return factors between -1 and 1 for the elements of ``like``.

        For rounding, they are random, with absolute values of at least 0.5. For order,
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
        """Return the share of itself that a result of this type may change by.

        It is that of the type's tolerance, at least one last digit.
        """
        tolerance = TOLERANCES.get(str(dtype).removeprefix("torch."), 0.0)
        return max(self._share * tolerance, torch.finfo(dtype).eps)


def _scales(magnitudes: torch.Tensor) -> torch.Tensor:
    """Return for each magnitude the largest one that steps of at most 1,000 times
    reach.

    So a mask of -3e38 or -1e9 does not make all other scores about equal.
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

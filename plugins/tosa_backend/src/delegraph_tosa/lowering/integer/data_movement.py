"""Moves or selects quantized elements, by the float rules on integers.

Quantization is monotonic, so the largest integer represents the largest number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from ...ir.graph import Array, Deferred, Value
from ...ir.types import DType, Type
from ..builder import Operand, Tosa
from ..lazy.lazy_values import Joined, Lazy, Scaled, trial
from ..lazy.quantization import Scale
from ..lazy.unsigned import Bytes
from ..registry import has_rule, lowering_of, lowers

aten = torch.ops.aten

MOVES = (
    "_unsafe_view adjoint alias as_strided broadcast_to chunk clone contiguous detach"
    " diagonal dropout expand expand_as feature_dropout flatten flip fliplr flipud"
    " lift_fresh_copy mH mT matrix_H movedim moveaxis narrow numpy_T permute"
    " pixel_unshuffle positive repeat reshape roll rot90 select slice split"
    " split_with_sizes squeeze swapaxes swapdims t tile transpose unbind unflatten"
    " unfold unsqueeze view view_as alias_copy as_strided_copy detach_copy"
    " diagonal_copy expand_copy permute_copy select_copy slice_copy split_copy"
    " split_with_sizes_copy squeeze_copy t_copy transpose_copy unbind_copy unfold_copy"
    " unsqueeze_copy view_copy embedding index_select index gather take take_along_dim"
    " reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d"
    " replication_pad2d replication_pad3d amax amin max min argmax argmin argsort sort"
    " topk msort kthvalue median cummax cummin max_pool1d max_pool2d max_pool3d"
    " max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices"
    " adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d upsample_nearest1d"
    " upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d"
    " _upsample_nearest_exact2d _upsample_nearest_exact3d"
).split()
"""Operators that return elements of their quantized operand, or their positions."""

PUTS = aten.index_put.default, aten._unsafe_index_put.default
"""Writes that add to the present elements if ``accumulate`` is true.

``scatter`` has their rules.
"""
WRITES = (
    aten.scatter.src, aten.slice_scatter.default, aten.select_scatter.default, aten.diagonal_scatter.default,
    aten.index_copy.default, aten.masked_scatter.default, *PUTS,
)  # fmt: skip
"""Operators that write elements of one operand into another, at given positions."""


def _overloads() -> list[Any]:
    """Return the overloads of ``MOVES`` with a float rule.

    The element-wise max and min of two tensors are left out.
    """
    packets = [getattr(aten, name) for name in MOVES]
    overloads = [
        getattr(packet, name) for packet in packets for name in packet.overloads()
    ]
    return [
        one
        for one in overloads
        if has_rule(one) and one not in (aten.max.other, aten.min.other)
    ]


def _moved(overload: Any, t: Tosa, *arguments: Any) -> Any:
    """Return the rule for an operator of ``MOVES``: its float rule, on integers."""
    (x,) = [a for a in arguments if isinstance(a, Lazy)]

    def move(t: Tosa, v: Value) -> Any:
        """Return the rule for floats, applied to ``v`` in place of x."""
        return lowering_of(overload)(t, *[v if a is x else a for a in arguments])

    # three cases are special: a table with a scale for each row, a weight with scales
    # of channels, and a value that no quantize has made integers of yet
    if isinstance(x, Scaled) and x.axis == 0 and overload is aten.embedding.default:
        return _rows_of_table(t, x, move)
    if isinstance(x, Scaled) and x.axis is not None and x.constant is not None:
        return _moved_weight(t, x, overload, move, arguments[1:])
    if isinstance(x, Scaled) and x.is_small:
        results = move(t, x.q)
        wrap = partial(_in_scale_of, x)
        return (
            tuple(map(wrap, results)) if isinstance(results, tuple) else wrap(results)
        )
    return _moved_once_quantized(t, x, move)


def _moved_weight(
    t: Tosa, x: Scaled, overload: Any, move: Any, settings: Sequence[Any]
) -> Value:
    """Return a constant with a scale for each channel, transposed.

    The axis of the scales moves along. ``settings`` are the operator's arguments after
    the tensor. Raises Unsupported for operators that do not transpose.
    """
    axes = list(range(x.rank))
    if overload in (aten.t.default, aten.t_copy.default, aten.numpy_T.default):
        axes.reverse()
    elif overload in (
        aten.transpose.int,
        aten.transpose_copy.int,
        aten.swapaxes.default,
        aten.swapdims.default,
    ):
        first, second = settings
        axes[first], axes[second] = axes[second], axes[first]
    else:
        t.require(
            overload in (aten.permute.default, aten.permute_copy.default),
            "a weight with scales for its channels only changes its axes",
        )
        axes = [axis % x.rank for axis in settings[0]]
    assert x.axis is not None
    return Scaled(move(t, x.q), x.scale, x.zero_point, axes.index(x.axis))


ROW_BITS = 22
"""Bits of a row's scale as an integer: with the bits of int8 they are 30."""


def _rows_of_table(t: Tosa, x: Scaled, move: Any) -> Value:
    """Select rows of an int8 table x [K,C] with a scale for each row.

    They are returned as int32 with one scale. Each integer, without the zero point, is
    multiplied by round(scale of its row / largest scale * 2**ROW_BITS).
    """
    t.require(
        x.q.dtype is DType.INT8,
        "its rows have scales of their own, which is lowered for int8 only",
    )

    def load() -> Array:
        """int32 [K,1]: each row's scale relative to the largest.

        It has ROW_BITS fraction bits.
        """
        scales = x.scale.elements()
        shares: Array = np.rint(scales / scales.max() * (1 << ROW_BITS)).astype(
            np.int32
        )
        return shares.reshape(-1, 1)

    shares = Value(Type((x.shape[0], 1), DType.INT32), Deferred(load))
    shares.range = (0, 1 << ROW_BITS)
    largest = Value(
        Type((1,), DType.FP32),
        Deferred(lambda: np.array([x.scale.elements().max()], np.float32)),
    )
    centred = t.sub(t.cast(move(t, x.q), DType.INT32), x.zero_point)
    return Scaled(t.mul(centred, move(t, shares)), Scale(2.0**-ROW_BITS, (largest,)))


def _in_scale_of(x: Scaled, q: Value | None) -> Value | None:
    """Return the moved integers ``q`` as a value in the quantization of ``x``.

    If ``q`` has another type than the integers of x, it holds positions (as of max) and
    is returned as it is. None, a result that is not lowered, stays None.
    """
    return (
        q if q is None or q.dtype is not x.q.dtype else Scaled(q, x.scale, x.zero_point)
    )


def _moved_once_quantized(t: Tosa, x: Lazy, move: Any) -> Any:
    """Return the results of ``move`` as lazy values, moved once they are quantized.

    A trial run of ``move`` gives their number and shapes. Elements cannot be compared
    before they are quantized, so a result that holds positions (as of topk) cannot be
    lazy. If it is one of several results, it is None (not lowered) on a target without
    floats. Otherwise raises Unsupported, so that the call is computed in floats.
    """
    results = move(trial(), Value(x.type))
    if not isinstance(results, tuple):
        return x.moved(t, move, _shape_of_elements(t, x, results))
    if "FP" not in t.spec.profiles:
        results = [r if r is None or r.dtype is x.dtype else None for r in results]
    moved: list[Lazy | None] = []
    for k, result in enumerate(results):
        if result is None:
            moved.append(None)
        else:
            moved.append(
                x.moved(
                    t, partial(_result_at, move, k), _shape_of_elements(t, x, result)
                )
            )
    return tuple(moved)


def _result_at(move: Any, position: int, t: Tosa, v: Value) -> Value:
    """Return result ``position`` of moving ``v``, for several results."""
    result: Value = move(t, v)[position]
    return result


def _shape_of_elements(t: Tosa, x: Lazy, result: Value) -> tuple[int, ...]:
    """Return the shape of ``result``, one result of moving x.

    Raises Unsupported if it holds positions (as of max or topk): elements cannot be
    compared before they are quantized.
    """
    t.require(
        result.dtype is x.dtype,
        "it returns positions of elements that are not quantized yet",
    )
    return result.shape


def _moved_bytes(overload: Any, t: Tosa, *arguments: Any) -> Any:
    """Return the uint8 rule for an operator of ``MOVES``: its float rule, on int8.

    The int8 integers have the same order.
    """
    results = lowering_of(overload)(
        t, *[a.q if isinstance(a, Bytes) else a for a in arguments]
    )

    def wrapped(result: Value | None) -> Value | None:
        """Return a result of int8 as uint8.

        Positions, and results that are not lowered (None), stay as they are.
        """
        return (
            Bytes(result)
            if result is not None and result.dtype is DType.INT8
            else result
        )

    return (
        tuple(map(wrapped, results)) if isinstance(results, tuple) else wrapped(results)
    )


for overload in _overloads():
    lowers(overload, on=Lazy)(partial(_moved, overload))
    lowers(overload, on=Bytes)(partial(_moved_bytes, overload))


@lowers(aten.cat.default, aten.concat.default, aten.concatenate.default, on=Lazy)
def cat(t: Tosa, tensors: Sequence[Value], dim: int) -> Value:
    """[*A,N,*B], .. -> [*A,sum of N,*B]"""
    return _joined(
        t, tensors, lambda t, parts: lowering_of(aten.cat.default)(t, parts, dim)
    )


@lowers(aten.stack.default, on=Lazy)
def stack(t: Tosa, tensors: Sequence[Value], dim: int) -> Value:
    """[*A,*B], .. -> [*A,N,*B]"""
    return _joined(
        t, tensors, lambda t, parts: lowering_of(aten.stack.default)(t, parts, dim)
    )


def _joined(
    t: Tosa, tensors: Sequence[Value], join: Callable[[Tosa, list[Value]], Value]
) -> Value:
    """Return ``join`` of the integers, or a lazy value that is joined later.

    Integers of equal quantization are joined at once.
    """
    first = tensors[0]
    if (
        isinstance(first, Scaled)
        and first.is_small
        and all(_has_quantization_of(v, first) for v in tensors)
    ):
        parts = [v.q for v in tensors if isinstance(v, Scaled)]
        return Scaled(join(t, parts), first.scale, first.zero_point)
    return Joined(tensors, join, join(trial(), [Value(v.type) for v in tensors]).shape)


def _has_quantization_of(value: Value, first: Scaled) -> bool:
    """Return whether ``value`` has the scale, zero point and type of ``first``."""
    quantization = isinstance(value, Scaled) and (
        value.scale,
        value.zero_point,
        value.q.dtype,
    )
    return quantization == (first.scale, first.zero_point, first.q.dtype)


def written(overload: Any, t: Tosa, *arguments: Any) -> Value:
    """Return the rule for an operator of ``WRITES``: its float rule, on integers.

    All operands get the same quantization.
    """
    # the operands that are quantized: lazy values are fp32 to torch; indices and masks
    # are not
    positions = [
        k
        for k, a in enumerate(arguments)
        if isinstance(a, Value) and a.dtype is DType.FP32
    ]

    def join(t: Tosa, parts: list[Value]) -> Value:
        """Apply the float rule with ``parts`` for the operands at ``positions``."""
        replaced = dict(zip(positions, parts, strict=True))
        result: Value = lowering_of(overload)(
            t, *[replaced.get(k, a) for k, a in enumerate(arguments)]
        )
        return result

    return _joined(t, [arguments[k] for k in positions], join)


for overload in WRITES:
    if overload not in PUTS:
        lowers(overload, on=Lazy)(partial(written, overload))


@lowers(aten.constant_pad_nd.default, on=Lazy)
def constant_pad_nd(t: Tosa, self: Lazy, pad: Sequence[int], value: float) -> Value:
    """[*S] -> [*S']; ``value`` is quantized with the result, unless it is a whole
    number of steps of self
    """
    function = lowering_of(aten.constant_pad_nd.default)
    if isinstance(self, Scaled) and self.is_small:
        # the filling as an integer of self
        number = value / self.scale.factor + self.zero_point
        if math.isfinite(number) and number == round(number):
            return Scaled(
                function(t, self.q, pad, round(number)), self.scale, self.zero_point
            )
    result = function(trial(), Value(self.type), pad, 0.0)
    filling = t.constant(value, self.dtype)
    return Joined(
        [self, filling],
        lambda t, parts: function(t, parts[0], pad, parts[1]),
        result.shape,
    )


@lowers(aten.pad.default, on=Lazy)
def pad_in_mode(
    t: Tosa, self: Lazy, pad: Sequence[int], mode: str, value: float | None
) -> Any:
    """[*S] -> [*S']"""
    if mode == "constant":
        return constant_pad_nd(t, self, pad, value or 0.0)
    return _moved(aten.pad.default, t, self, pad, mode, value)


@lowers(aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther, on=Lazy)
def where(t: Tosa, condition: Value, self: Operand, other: Operand) -> Value:
    """condition [*S], [*S], [*S] -> [*S]"""
    t.require(not isinstance(condition, Lazy), "its condition is quantized")
    parts = [
        v if isinstance(v, Value) else t.constant(v, DType.FP32, ())
        for v in (self, other)
    ]
    # the float rule, on values of the same types, computes the shape of the result
    result = lowering_of(aten.where.self)(
        trial(), Value(condition.type), *[Value(v.type) for v in parts]
    )
    return Joined(
        parts, lambda t, parts: t.select(condition, *_ranked(t, parts)), result.shape
    )


def _ranked(t: Tosa, parts: Sequence[Value]) -> list[Value]:
    """Return all parts with leading axes of size 1 up to the largest rank."""
    rank = max(part.rank for part in parts)
    return [t.ranked(part, rank) for part in parts]


@lowers(aten.masked_fill.Scalar, aten.masked_fill.Tensor, on=Lazy)
def masked_fill(t: Tosa, self: Value, mask: Value, value: Operand) -> Value:
    """self [*S], mask bool [*S], value [] -> [*S]"""
    return where(
        t, mask, value if isinstance(value, Value) else t.like(value, self), self
    )


def _triangle(overload: Any, t: Tosa, self: Lazy, diagonal: int) -> Value:
    """[*B,N,M] -> [*B,N,M]; SELECT by a mask, the triangle of a tensor of true"""
    mask = lowering_of(overload)(
        t, t.constant(1, DType.BOOL, self.shape[-2:]), diagonal
    )
    return where(t, mask, self, t.like(0.0, self))


for overload in (aten.tril.default, aten.triu.default):
    lowers(overload, on=Lazy)(partial(_triangle, overload))

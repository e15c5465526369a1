"""Moves or selects quantized elements, by the float rules on integers.

Quantization is monotonic, so the largest integer represents the largest number.
"""

from __future__ import annotations

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
    aten.scatter.src,
    aten.slice_scatter.default,
    aten.select_scatter.default,
    aten.diagonal_scatter.default,
    aten.index_copy.default,
    aten.masked_scatter.default,
    *PUTS,
)
"""Operators that write elements of one operand into another, at given positions."""


def _overloads() -> list[Any]:
    """Return the overloads of ``MOVES`` with a float rule.

    The element-wise max and min of two tensors are left out.
    """
    of_two_tensors = (aten.max.other, aten.min.other)
    overloads: list[Any] = []
    for move in MOVES:
        packet = getattr(aten, move)
        for name in packet.overloads():
            overload = getattr(packet, name)
            if has_rule(overload) and overload not in of_two_tensors:
                overloads.append(overload)
    return overloads


def _moved(overload: Any, t: Tosa, *arguments: Any) -> Any:
    """Apply the float rule of ``overload``, an operator of ``MOVES``, to integers."""
    (x,) = [a for a in arguments if isinstance(a, Lazy)]

    def move(t: Tosa, v: Value) -> Any:
        """Apply the float rule to ``v`` in place of x."""
        float_rule = lowering_of(overload)
        return float_rule(t, *[v if a is x else a for a in arguments])

    # a value without integers is moved when a quantize operator makes them
    if not isinstance(x, Scaled):
        return _moved_once_quantized(t, x, move)
    if x.axis == 0 and overload is aten.embedding.default:
        return _rows_of_table(t, x, move)
    if x.axis is not None and x.constant is not None:
        return _moved_weight(t, x, overload, move, arguments[1:])
    if not x.is_small:
        return _moved_once_quantized(t, x, move)
    wrap = partial(_in_scale_of, x)
    return _map_results(wrap, move(t, x.q))


def _map_results(function: Callable[[Any], Any], results: Any) -> Any:
    """Apply ``function`` to the result of a rule, or to each of several results."""
    if isinstance(results, tuple):
        return tuple(map(function, results))
    return function(results)


REVERSES_AXES = (aten.t.default, aten.t_copy.default, aten.numpy_T.default)
SWAPS_AXES = (
    aten.transpose.int,
    aten.transpose_copy.int,
    aten.swapaxes.default,
    aten.swapdims.default,
)


def _moved_weight(
    t: Tosa, x: Scaled, overload: Any, move: Any, settings: Sequence[Any]
) -> Value:
    """Transpose a constant x that has a scale for each channel.

    The axis of the scales moves to its new position. ``settings`` are the operator's arguments after
    the tensor. Raises Unsupported for operators that do not transpose.
    """
    axes = list(range(x.rank))
    if overload in REVERSES_AXES:
        axes.reverse()
    elif overload in SWAPS_AXES:
        first, second = settings
        axes[first], axes[second] = axes[second], axes[first]
    else:
        t.refuse_unless(
            overload in (aten.permute.default, aten.permute_copy.default),
            "a weight with scales for its channels only changes its axes",
        )
        axes = [axis % x.rank for axis in settings[0]]
    assert x.axis is not None
    integers = move(t, x.q)
    return Scaled(integers, x.scale, x.zero_point, axis=axes.index(x.axis))


ROW_BITS = 22
"""Bits of a row's scale as an integer: with the bits of int8 they are 30."""


def _rows_of_table(t: Tosa, x: Scaled, move: Any) -> Value:
    """Select rows of an int8 table x [K,C] with a scale for each row.

    They are returned as int32 with one scale. Each integer, without the zero point, is
    multiplied by round(scale of its row / largest scale * 2**ROW_BITS).
    """
    t.refuse_unless(
        x.q.dtype is DType.INT8,
        "its rows have different scales, which is lowered for int8 only",
    )

    def load_shares() -> Array:
        """int32 [K,1]: each row's scale relative to the largest.

        It has ROW_BITS fraction bits.
        """
        scales = x.scale.elements()
        shares = np.rint(scales / scales.max() * (1 << ROW_BITS))
        integers: Array = shares.astype(np.int32)
        return integers.reshape(-1, 1)

    def load_largest() -> Array:
        """fp32 [1]: the largest scale of a row."""
        return np.array([x.scale.elements().max()], np.float32)

    shares = Value(Type((x.shape[0], 1), DType.INT32), Deferred(load_shares))
    shares.range = (0, 1 << ROW_BITS)
    largest = Value(Type((1,), DType.FP32), Deferred(load_largest))
    rows = t.cast(move(t, x.q), DType.INT32)
    centred = t.sub(rows, x.zero_point)
    products = t.mul(centred, move(t, shares))
    return Scaled(products, Scale(2.0**-ROW_BITS, (largest,)))


def _in_scale_of(x: Scaled, q: Value | None) -> Value | None:
    """Return the moved integers ``q`` as a value in the quantization of ``x``.

    If ``q`` has another type than the integers of x, it holds positions (as of max) and
    is returned as it is. None, a result that is not lowered, stays None.
    """
    if q is None or q.dtype is not x.q.dtype:
        return q
    return x.with_integers(q)


def _moved_once_quantized(t: Tosa, x: Lazy, move: Any) -> Any:
    """Return the results of ``move`` as lazy values, moved once they are quantized.

    A trial run of ``move`` gives their number and shapes. Elements cannot be compared
    before they are quantized, so a result that holds positions (as of topk) cannot be
    lazy. On a target without floats it is None (not lowered), if there are other
    results. Otherwise raises Unsupported, so that the call is computed in floats.
    """
    results = move(trial(), Value(x.type))
    if not isinstance(results, tuple):
        return x.moved(t, move, _shape_of_elements(t, x, results))
    has_floats = "FP" in t.spec.profiles
    moved: list[Lazy | None] = []
    for position, result in enumerate(results):
        if result is None or (result.dtype is not x.dtype and not has_floats):
            moved.append(None)
            continue
        shape = _shape_of_elements(t, x, result)
        moved.append(x.moved(t, partial(_result_at, move, position), shape))
    return tuple(moved)


def _result_at(move: Any, position: int, t: Tosa, v: Value) -> Value:
    """Return the result at ``position`` among those of ``move`` for ``v``."""
    result: Value = move(t, v)[position]
    return result


def _shape_of_elements(t: Tosa, x: Lazy, result: Value) -> tuple[int, ...]:
    """Return the shape of ``result``, a result of moving x.

    Raises Unsupported if it holds positions (as of max or topk): elements cannot be
    compared before they are quantized.
    """
    t.refuse_unless(
        result.dtype is x.dtype,
        "it returns positions of elements that are not quantized yet",
    )
    return result.shape


def _moved_bytes(overload: Any, t: Tosa, *arguments: Any) -> Any:
    """Apply the float rule of ``overload``, an operator of ``MOVES``, to uint8.

    It moves the int8 integers that represent the uint8, which have the same order.
    """
    float_rule = lowering_of(overload)
    integers = [a.q if isinstance(a, Bytes) else a for a in arguments]
    results = float_rule(t, *integers)

    def wrapped(result: Value | None) -> Value | None:
        """Return a result of int8 as uint8.

        Positions, and results that are not lowered (None), stay as they are.
        """
        if result is None or result.dtype is not DType.INT8:
            return result
        return Bytes(result)

    return _map_results(wrapped, results)


for overload in _overloads():
    lowers(overload, on=Lazy)(partial(_moved, overload))
    lowers(overload, on=Bytes)(partial(_moved_bytes, overload))


@lowers(aten.cat.default, aten.concat.default, aten.concatenate.default, on=Lazy)
def cat(t: Tosa, tensors: Sequence[Value], dim: int) -> Value:
    """[*A,N,*B], .. -> [*A,sum of N,*B]"""
    return _joined(t, tensors, partial(_joined_along, aten.cat.default, dim))


@lowers(aten.stack.default, on=Lazy)
def stack(t: Tosa, tensors: Sequence[Value], dim: int) -> Value:
    """[*A,*B], .. -> [*A,N,*B]"""
    return _joined(t, tensors, partial(_joined_along, aten.stack.default, dim))


def _joined_along(overload: Any, dim: int, t: Tosa, parts: list[Value]) -> Value:
    """Apply the float rule of ``overload``, cat or stack, to ``parts``."""
    result: Value = lowering_of(overload)(t, parts, dim)
    return result


def _joined(
    t: Tosa, tensors: Sequence[Value], join: Callable[[Tosa, list[Value]], Value]
) -> Value:
    """Return ``join`` of ``tensors``, which it concatenates for example.

    If all have the same quantization, their integers are joined at once. Otherwise the
    result is a lazy value: its parts are joined when they get its quantization.
    """
    first = tensors[0]
    if isinstance(first, Scaled) and first.is_small:
        parts = [
            tensor.q
            for tensor in tensors
            if isinstance(tensor, Scaled) and tensor.has_quantization_of(first)
        ]
        if len(parts) == len(tensors):
            return first.with_integers(join(t, parts))
    tried = join(trial(), [Value(v.type) for v in tensors])
    return Joined(tensors, join, tried.shape)


def float_operands(arguments: Sequence[Any]) -> dict[int, Value]:
    """Return the fp32 operands among ``arguments``, each by its position.

    Lazy values are fp32 to torch. Indices and masks are left out.
    """
    return {
        position: argument
        for position, argument in enumerate(arguments)
        if isinstance(argument, Value) and argument.dtype is DType.FP32
    }


def written(overload: Any, t: Tosa, *arguments: Any) -> Value:
    """Apply the float rule of ``overload``, an operator that writes, to integers.

    All operands get the same quantization.
    """
    operands = float_operands(arguments)

    def join(t: Tosa, parts: list[Value]) -> Value:
        """Apply the float rule with ``parts`` in place of ``operands``."""
        replaced = list(arguments)
        for position, part in zip(operands, parts, strict=True):
            replaced[position] = part
        result: Value = lowering_of(overload)(t, *replaced)
        return result

    return _joined(t, list(operands.values()), join)


for overload in WRITES:
    if overload not in PUTS:
        lowers(overload, on=Lazy)(partial(written, overload))


@lowers(aten.constant_pad_nd.default, on=Lazy)
def constant_pad_nd(t: Tosa, self: Lazy, pad: Sequence[int], value: float) -> Value:
    """[*S] -> [*S']; pads the integers if ``value`` is an integer in the quantization of
    self; otherwise ``value`` gets the quantization of the result
    """
    float_rule = lowering_of(aten.constant_pad_nd.default)
    if isinstance(self, Scaled) and self.is_small:
        filling_of_integers = value / self.scale.factor + self.zero_point
        if float(filling_of_integers).is_integer():
            padded = float_rule(t, self.q, pad, int(filling_of_integers))
            return self.with_integers(padded)

    def join(t: Tosa, parts: Sequence[Value]) -> Value:
        """Pad the first part with the second."""
        elements, filling = parts
        result: Value = float_rule(t, elements, pad, filling)
        return result

    tried = float_rule(trial(), Value(self.type), pad, 0.0)
    filling = t.constant(value, self.dtype)
    return Joined([self, filling], join, tried.shape)


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
    t.refuse_unless(not isinstance(condition, Lazy), "its condition is quantized")
    parts = [
        part if isinstance(part, Value) else t.constant(part, DType.FP32, ())
        for part in (self, other)
    ]

    def join(t: Tosa, parts: Sequence[Value]) -> Value:
        """Select from the two parts, with leading axes of size 1 up to one rank."""
        rank = max(part.rank for part in parts)
        on_true, on_false = [t.ranked(part, rank) for part in parts]
        return t.select(condition, on_true, on_false)

    # a trial run of the float rule gives the shape of the result
    float_rule = lowering_of(aten.where.self)
    stand_ins = [Value(part.type) for part in parts]
    tried = float_rule(trial(), Value(condition.type), *stand_ins)
    return Joined(parts, join, tried.shape)


@lowers(aten.masked_fill.Scalar, aten.masked_fill.Tensor, on=Lazy)
def masked_fill(t: Tosa, self: Value, mask: Value, value: Operand) -> Value:
    """self [*S], mask bool [*S], value [] -> [*S]"""
    filling = value if isinstance(value, Value) else t.like(value, self)
    return where(t, mask, filling, self)


def _triangle(overload: Any, t: Tosa, self: Lazy, diagonal: int) -> Value:
    """[*B,N,M] -> [*B,N,M]; selects by a mask that is true in the triangle"""
    all_true = t.constant(True, DType.BOOL, self.shape[-2:])
    mask = lowering_of(overload)(t, all_true, diagonal)
    return where(t, mask, self, t.like(0.0, self))


for overload in (aten.tril.default, aten.triu.default):
    lowers(overload, on=Lazy)(partial(_triangle, overload))

"""What moves quantized values without changing them, or takes the larger ones: the rules for floats, on integers.

Quantizing keeps the order of numbers, so the largest of some integers is the integer of the largest number.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from ...ir.graph import Value
from ..builder import Tosa
from ..lazy import Joined, Lazy, Scaled, trial
from ..registry import RULES, lowers_quantized

aten = torch.ops.aten

MOVES = (
    "_unsafe_view adjoint alias as_strided broadcast_to chunk clone contiguous detach diagonal dropout expand expand_as"
    " feature_dropout flatten flip fliplr flipud lift_fresh_copy mH mT matrix_H movedim moveaxis narrow numpy_T permute"
    " positive repeat reshape roll rot90 select slice split split_with_sizes squeeze swapaxes swapdims t tile transpose"
    " unbind unflatten unfold unsqueeze view view_as"
    " expand_copy permute_copy select_copy slice_copy squeeze_copy unsqueeze_copy view_copy"
    " embedding index_select index gather take take_along_dim"
    " reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d"
    " amax amin max min argmax argmin max_pool1d max_pool2d max_pool3d max_pool2d_with_indices"
    " upsample_nearest2d"
).split()
"""Operators whose results are elements of their first quantized operand, or their places."""


def _overloads() -> list[Any]:
    packets = [getattr(aten, name) for name in MOVES]
    found = [getattr(packet, name) for packet in packets for name in packet.overloads()]
    return [overload for overload in found if overload in RULES and overload not in (aten.max.other, aten.min.other)]


def _moved(overload: Any, t: Tosa, *arguments: Any) -> Any:
    """The results of the rule for floats, applied to integers."""
    (x,) = [a for a in arguments if isinstance(a, Lazy)]

    def move(t: Tosa, v: Value) -> Any:
        return RULES[overload].function(t, *[v if a is x else a for a in arguments])

    if isinstance(x, Scaled) and x.axis is not None and x.constant is not None:
        return _turned(t, x, overload, move, arguments[1:])
    if isinstance(x, Scaled) and x.is_small:
        results = move(t, x.q)
        wrap = partial(_like, x)
        return tuple(map(wrap, results)) if isinstance(results, tuple) else wrap(results)
    return _later(t, x, move)


def _turned(t: Tosa, x: Scaled, overload: Any, move: Any, settings: Sequence[Any]) -> Value:
    """A weight with scales for channels, whose axes change places."""
    axes = list(range(x.rank))
    if overload in (aten.t.default, aten.numpy_T.default):
        axes.reverse()
    elif overload in (aten.transpose.int, aten.swapaxes.default, aten.swapdims.default):
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


def _like(x: Scaled, q: Value) -> Value:
    """What the rule made of the integers of ``x``; places are no such integers."""
    return Scaled(q, x.scale, x.zero_point) if q.dtype is x.q.dtype else q


def _later(t: Tosa, x: Lazy, move: Any) -> Any:
    """The same for what is quantized afterwards; a trial says how many results there are, and their shapes."""
    results = move(trial(), Value(x.type))
    if not isinstance(results, tuple):
        return x.moved(t, move, _shape(t, x, results))
    return tuple([x.moved(t, partial(_taken, move, k), _shape(t, x, r)) for k, r in enumerate(results)])


def _taken(move: Any, position: int, t: Tosa, v: Value) -> Value:
    result: Value = move(t, v)[position]
    return result


def _shape(t: Tosa, x: Lazy, result: Value) -> tuple[int, ...]:
    t.require(result.dtype is x.dtype, "it takes places of what nothing has quantized yet")
    return result.shape


for overload in _overloads():
    lowers_quantized(overload)(partial(_moved, overload))


@lowers_quantized(aten.cat.default, aten.concat.default, aten.concatenate.default)
def cat(t: Tosa, tensors: Sequence[Value], dim: int) -> Value:
    """[*A,N,*B], .. -> [*A,sum of N,*B]"""
    return _joined(t, aten.cat.default, tensors, dim)


@lowers_quantized(aten.stack.default)
def stack(t: Tosa, tensors: Sequence[Value], dim: int) -> Value:
    """[*A,*B], .. -> [*A,N,*B]"""
    return _joined(t, aten.stack.default, tensors, dim)


def _joined(t: Tosa, overload: Any, tensors: Sequence[Value], dim: int) -> Value:
    function = RULES[overload].function
    first = tensors[0]
    if isinstance(first, Scaled) and first.is_small and all(_in_step(v, first) for v in tensors):
        parts = [v.q for v in tensors if isinstance(v, Scaled)]
        return Scaled(function(t, parts, dim), first.scale, first.zero_point)
    whole = function(trial(), [Value(v.type) for v in tensors], dim)
    return Joined(tensors, lambda t, parts: function(t, parts, dim), whole.shape)


def _in_step(value: Value, first: Scaled) -> bool:
    own = isinstance(value, Scaled) and (value.scale, value.zero_point, value.q.dtype)
    return own == (first.scale, first.zero_point, first.q.dtype)


@lowers_quantized(aten.constant_pad_nd.default)
def constant_pad_nd(t: Tosa, self: Lazy, pad: Sequence[int], value: float) -> Value:
    """[*S] -> [*S']"""
    function = RULES[aten.constant_pad_nd.default].function
    if isinstance(self, Scaled) and self.is_small:
        number = value / self.scale.factor + self.zero_point
        t.require(number == round(number), f"it pads with {value}, which is no multiple of the scale")
        return Scaled(function(t, self.q, pad, round(number)), self.scale, self.zero_point)
    t.require(value == 0, f"it pads with {value} what nothing has quantized yet")
    whole = function(trial(), Value(self.type), pad, 0.0)
    zero = t.constant(0.0, self.dtype)
    return Joined([self, zero], lambda t, parts: function(t, parts[0], pad, parts[1]), whole.shape)


@lowers_quantized(aten.pad.default)
def pad_in_mode(t: Tosa, self: Lazy, pad: Sequence[int], mode: str, value: float | None) -> Any:
    """[*S] -> [*S']"""
    if mode == "constant":
        return constant_pad_nd(t, self, pad, value or 0.0)
    return _moved(aten.pad.default, t, self, pad, mode, value)


@lowers_quantized(aten.where.self)
def where(t: Tosa, condition: Value, self: Value, other: Value) -> Value:
    """condition [*S], [*S], [*S] -> [*S]"""
    t.require(not isinstance(condition, Lazy), "its condition is quantized")
    whole = RULES[aten.where.self].function(trial(), Value(condition.type), Value(self.type), Value(other.type))
    return Joined([self, other], lambda t, parts: t.select(condition, *_ranked(t, parts)), whole.shape)


def _ranked(t: Tosa, parts: Sequence[Value]) -> list[Value]:
    rank = max(part.rank for part in parts)
    return [t.ranked(part, rank) for part in parts]


@lowers_quantized(aten.masked_fill.Scalar)
def masked_fill(t: Tosa, self: Lazy, mask: Value, value: float) -> Value:
    """self [*S], mask bool [*S] -> [*S]"""
    return where(t, mask, t.like(value, self), self)


@lowers_quantized(aten.masked_fill.Tensor)
def masked_fill_tensor(t: Tosa, self: Lazy, mask: Value, value: Value) -> Value:
    """self [*S], mask bool [*S], value [] -> [*S]"""
    return where(t, mask, value, self)

"""Padding: by a number, or by elements of the tensor itself.

A ``frame`` is one pair (before, after) for each axis: the numbers of elements to add at
both ends. A negative number cuts elements off.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...ir.graph import Value
from ..builder import Tosa
from ..geometry.window import framed
from ..registry import lowers
from .conv import concatenated
from .shape import expanded, replace_axis, slice_axis

aten = torch.ops.aten


def _frame(x: Value, pad: Sequence[int]) -> list[tuple[int, int]]:
    """Return the frame of x for ATen's ``pad``.

    ``pad`` is a flat list: the last axis comes first, and leading axes may be missing.
    [1, 2, 3, 4] is the frame [(0, 0), (3, 4), (1, 2)] of three axes.
    """
    before = pad[::2]
    after = pad[1::2]
    frame = list(zip(before, after, strict=True))
    missing_axes = x.rank - len(frame)
    frame += [(0, 0)] * missing_axes
    return frame[::-1]


@lowers(aten.constant_pad_nd.default)
def constant_pad_nd(t: Tosa, self: Value, pad: Sequence[int], value: float) -> Value:
    """[*S] -> [*S']; a negative number in ``pad`` cuts elements off"""
    frame = _frame(self, pad)
    return framed(t, self, frame, value)


def _elements_before(t: Tosa, x: Value, axis: int, count: int, mode: str) -> Value:
    """Return the ``count`` elements that ``mode`` puts before x along ``axis``."""
    if mode == "reflect":
        # the mirror image begins after the outermost element, which is not repeated
        return t.reverse(slice_axis(t, x, axis, 1, count), axis)
    if mode == "replicate":
        outermost = slice_axis(t, x, axis, 0, 1)
        return expanded(t, outermost, replace_axis(x.shape, axis, count))
    # "circular": the end of the axis
    return slice_axis(t, x, axis, x.shape[axis] - count, count)


def _elements_after(t: Tosa, x: Value, axis: int, count: int, mode: str) -> Value:
    """Return the ``count`` elements that ``mode`` puts after x along ``axis``."""
    last = x.shape[axis] - 1
    if mode == "reflect":
        return t.reverse(slice_axis(t, x, axis, last - count, count), axis)
    if mode == "replicate":
        outermost = slice_axis(t, x, axis, last, 1)
        return expanded(t, outermost, replace_axis(x.shape, axis, count))
    # "circular": the start of the axis
    return slice_axis(t, x, axis, 0, count)


def _cut(t: Tosa, x: Value, frame: Sequence[tuple[int, int]]) -> Value:
    """Cut elements off x for each negative number in ``frame``."""
    cuts = [(min(before, 0), min(after, 0)) for before, after in frame]
    return framed(t, x, cuts)


def _padded_with_itself(t: Tosa, x: Value, pad: Sequence[int], mode: str) -> Value:
    """x [*S] -> [*S'], padded with its own elements, one axis after the other.

    ``mode`` is "reflect", "replicate" or "circular". Negative numbers cut elements off
    after the padding, as torch does. In mode "circular" they cut before, so that the
    other end is not padded with elements that were cut off.
    """
    frame = _frame(x, pad)
    if mode == "circular":
        x = _cut(t, x, frame)
        frame = [(max(before, 0), max(after, 0)) for before, after in frame]
    for axis, (before, after) in enumerate(frame):
        parts = [x]
        if before > 0:
            parts.insert(0, _elements_before(t, x, axis, before, mode))
        if after > 0:
            parts.append(_elements_after(t, x, axis, after, mode))
        x = concatenated(t, parts, axis)
    return _cut(t, x, frame)


@lowers(aten.pad.default)
def pad(
    t: Tosa, self: Value, pad: Sequence[int], mode: str, value: float | None
) -> Value:
    """[*S] -> [*S']"""
    if mode == "constant":
        number = 0 if value is None else value
        return constant_pad_nd(t, self, pad, number)
    return _padded_with_itself(t, self, pad, mode)


@lowers(
    aten.reflection_pad1d.default,
    aten.reflection_pad2d.default,
    aten.reflection_pad3d.default,
)
def reflection_pad1d(t: Tosa, self: Value, padding: Sequence[int]) -> Value:
    """[*S] -> [*S']; mirrored at the outermost elements"""
    return _padded_with_itself(t, self, padding, "reflect")


@lowers(
    aten.replication_pad1d.default,
    aten.replication_pad2d.default,
    aten.replication_pad3d.default,
)
def replication_pad1d(t: Tosa, self: Value, padding: Sequence[int]) -> Value:
    """[*S] -> [*S']; the outermost elements repeated"""
    return _padded_with_itself(t, self, padding, "replicate")

"""Padding: by a number, or by elements of the tensor itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ...ir.graph import Value
from ..builder import Tosa
from ..geometry.window import framed
from ..registry import lowers
from .conv import concatenated
from .shape import slice_axis

aten = torch.ops.aten


def _frame(x: Value, pad: Sequence[int]) -> list[tuple[int, int]]:
    """Return (before, after) for each axis of x.

    ATen's ``pad`` is a flat list: the last axis first, leading ones missing.
    """
    pairs = [(pad[k], pad[k + 1]) for k in range(0, len(pad), 2)]
    return [(0, 0)] * (x.rank - len(pairs)) + pairs[::-1]


@lowers(aten.constant_pad_nd.default)
def constant_pad_nd(t: Tosa, self: Value, pad: Sequence[int], value: float) -> Value:
    """[*S] -> [*S']; a negative number in ``pad`` cuts elements off"""
    return framed(t, self, _frame(self, pad), value)


Border = Callable[[Tosa, Value, int, int, int], tuple[Value, Value]]
"""(t, x, axis, before, after) -> the elements to put before and after x along ``axis``.

Where ``before`` or ``after`` is 0, the result for that side is any value: ``bordered``
drops it.
"""


def _mirrored(
    t: Tosa, x: Value, axis: int, before: int, after: int
) -> tuple[Value, Value]:
    """Return the border of "reflect": x mirrored, without repeating the edge."""
    size = x.shape[axis]
    return (
        t.reverse(slice_axis(t, x, axis, 1, max(before, 1)), axis) if before else x,
        (
            t.reverse(slice_axis(t, x, axis, size - 1 - after, max(after, 1)), axis)
            if after
            else x
        ),
    )


def _repeated(
    t: Tosa, x: Value, axis: int, before: int, after: int
) -> tuple[Value, Value]:
    """Return the ``Border`` of "replicate": the outermost elements, repeated."""
    times = [1] * axis, [1] * (x.rank - axis - 1)
    return (
        t.tile(slice_axis(t, x, axis, 0, 1), [*times[0], max(before, 1), *times[1]]),
        t.tile(
            slice_axis(t, x, axis, x.shape[axis] - 1, 1),
            [*times[0], max(after, 1), *times[1]],
        ),
    )


def _wrapped(
    t: Tosa, x: Value, axis: int, before: int, after: int
) -> tuple[Value, Value]:
    """Return the ``Border`` of "circular": elements from the other end of the axis."""
    return slice_axis(
        t, x, axis, x.shape[axis] - max(before, 1), max(before, 1)
    ), slice_axis(t, x, axis, 0, max(after, 1))


BORDERS: dict[str, Border] = {
    "reflect": _mirrored,
    "replicate": _repeated,
    "circular": _wrapped,
}


def bordered(t: Tosa, x: Value, pad: Sequence[int], mode: str) -> Value:
    """x [*S] -> [*S'], padded with its own elements, one axis after the other.

    ``mode`` is a key of BORDERS. A negative number cuts elements off after the padding.
    In mode "circular" it cuts before, so that the other end is not padded with elements
    that were cut off.
    """
    frame = _frame(x, pad)
    if mode == "circular":
        x = framed(t, x, [(min(before, 0), min(after, 0)) for before, after in frame])
        frame = [(max(before, 0), max(after, 0)) for before, after in frame]
    for axis, (before, after) in enumerate(frame):
        if before > 0 or after > 0:
            first, last = BORDERS[mode](t, x, axis, max(before, 0), max(after, 0))
            x = concatenated(
                t,
                [*([first] if before > 0 else []), x, *([last] if after > 0 else [])],
                axis,
            )
    return framed(t, x, [(min(before, 0), min(after, 0)) for before, after in frame])


@lowers(aten.pad.default)
def pad(
    t: Tosa, self: Value, pad: Sequence[int], mode: str, value: float | None
) -> Value:
    """[*S] -> [*S']"""
    if mode == "constant":
        return constant_pad_nd(t, self, pad, 0 if value is None else value)
    return bordered(t, self, pad, mode)


@lowers(
    aten.reflection_pad1d.default,
    aten.reflection_pad2d.default,
    aten.reflection_pad3d.default,
)
def reflection_pad1d(t: Tosa, self: Value, padding: Sequence[int]) -> Value:
    """[*S] -> [*S']; mirrored at the outermost elements"""
    return bordered(t, self, padding, "reflect")


@lowers(
    aten.replication_pad1d.default,
    aten.replication_pad2d.default,
    aten.replication_pad3d.default,
)
def replication_pad1d(t: Tosa, self: Value, padding: Sequence[int]) -> Value:
    """[*S] -> [*S']; the outermost elements repeated"""
    return bordered(t, self, padding, "replicate")

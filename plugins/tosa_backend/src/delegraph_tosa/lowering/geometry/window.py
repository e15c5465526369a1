"""Sliding windows: torch cuts off what does not fill a step, TOSA wants windows that end exactly at the edge."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ...ir.graph import Value
from ...ir.sizes import is_dynamic, largest, smallest
from ...ir.types import FLOATS
from ..builder import Operand, Tosa

Pad = tuple[int, ...]
"""(top, bottom, left, right), or with front and back before them"""
Ints = Sequence[int]


class Window(NamedTuple):
    """A window along one axis, in elements. ``reach`` is from its first to its last element."""

    kernel: int
    stride: int
    before: int
    after: int
    dilation: int = 1
    ceil: bool = False

    @property
    def reach(self) -> int:
        return self.dilation * (self.kernel - 1) + 1

    def count(self, size: int) -> int:
        """How many windows torch makes of ``size`` elements; with ``ceil`` none of them starts behind the input."""
        room = size + self.before + self.after - self.reach
        if not self.ceil:
            return room // self.stride + 1
        count = -(-room // self.stride) + 1
        return count - 1 if (count - 1) * self.stride >= size + self.before else count

    def trailing(self, size: int) -> int:
        """The padding behind ``size`` elements with which the last window ends at the edge; negative: cut off."""
        return (self.count(size) - 1) * self.stride + self.reach - size - self.before


def windows(
    kernel: Ints, stride: Ints, padding: Ints, dilation: Ints | None = None, ceil: bool = False
) -> list[Window]:
    """One window an axis, with torch's symmetric padding."""
    dilation = (1,) * len(kernel) if dilation is None else dilation
    return [Window(k, s, p, p, d, ceil) for k, s, p, d in zip(kernel, stride, padding, dilation, strict=True)]


def exact(t: Tosa, x: Value, axes: Sequence[Window], fill: float | None = None) -> tuple[Value, Pad]:
    """x [N,*S,C] -> (x' [N,*S',C], pad (before, after) an axis), with which TOSA's windows are torch's.

    What torch's rounding ignores is taken off the trailing padding, and what is left of it off the input. Where it is
    known at run time only how much that is, the trailing padding becomes part of the input: floats of ``fill``.
    """
    x, axes = _with_trailing(t, x, axes, fill)
    size, pad = list(x.shape), []
    for axis, window in enumerate(axes, start=1):
        last = (window.count(x.shape[axis]) - 1) * window.stride - window.before
        whole = (is_dynamic(last) and not window.ceil) or last < x.shape[axis]
        t.require(whole, "ceil_mode makes a window of padding only, for which TOSA has no value")
        trailing = window.trailing(x.shape[axis])
        if window.ceil and is_dynamic(trailing):
            x = _with_end(t, x, axis, trailing, fill)
        pad += [window.before, 0 if is_dynamic(trailing) else max(trailing, 0)]
        size[axis] += trailing if is_dynamic(trailing) else min(trailing, 0)
    return t.slice(x, [0] * x.rank, size), tuple(pad)


def _with_trailing(t: Tosa, x: Value, axes: Sequence[Window], fill: float | None) -> tuple[Value, Sequence[Window]]:
    """x and its windows without trailing padding along axes where not all of it may be used."""
    padding, moved = [0] * (2 * x.rank), list(axes)
    for axis, window in enumerate(axes, start=1):
        if window.after and is_dynamic(window.trailing(x.shape[axis])):
            why = f"where windows of stride {window.stride} end in {x.shape[axis]} elements is known at run time only"
            t.require(fill is not None and x.dtype in FLOATS, why)
            padding[2 * axis + 1], moved[axis - 1] = window.after, window._replace(after=0)
    return t.pad(x, padding, fill or 0), moved


def _with_end(t: Tosa, x: Value, axis: int, trailing: int, fill: float | None) -> Value:
    """x with as much of ``fill`` behind ``axis`` as ceil_mode makes windows reach beyond it."""
    why = f"how far ceil_mode reaches behind {x.shape[axis]} elements is known at run time only"
    t.require(fill is not None and x.dtype in FLOATS, why)
    padding = [0] * (2 * x.rank)
    padding[2 * axis + 1] = largest(trailing, 0)
    return t.pad(x, padding, fill or 0)


def framed(t: Tosa, x: Value, frame: Sequence[tuple[int, int]], number: Operand = 0) -> Value:
    """x [*S] with (before, after) elements of ``number`` along each axis; negative ones are cut off."""
    start = [largest(-before, 0) for before, _ in frame]
    size = [n + smallest(before, 0) + smallest(after, 0) for n, (before, after) in zip(x.shape, frame, strict=True)]
    return t.pad(t.slice(x, start, size), [largest(n, 0) for both in frame for n in both], number)


def spread(t: Tosa, x: Value, axis: int, step: int) -> Value:
    """x [*A,N,*B] -> [*A,(N-1)*step+1,*B]; zeros between the elements of ``axis``"""
    size = x.shape[axis]
    if step == 1 or size == 1:
        return x
    before, after = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    apart = t.pad(t.reshape(x, (before, size, 1, after)), (0, 0, 0, 0, 0, step - 1, 0, 0))
    rows = t.slice(t.reshape(apart, (before, size * step, after)), (0, 0, 0), (before, (size - 1) * step + 1, after))
    return t.reshape(rows, (*x.shape[:axis], (size - 1) * step + 1, *x.shape[axis + 1 :]))

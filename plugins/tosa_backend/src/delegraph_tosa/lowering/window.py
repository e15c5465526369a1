"""Sliding windows: torch cuts off what does not fill a step, TOSA wants windows that end exactly at the edge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..ir.graph import Value
from .builder import Tosa
from .layout import Pair

Pad = tuple[int, int, int, int]
"""(top, bottom, left, right)"""


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


def windows(kernel: Pair, stride: Pair, padding: Pair, dilation: Pair = (1, 1), ceil: bool = False) -> list[Window]:
    """One window an axis, with torch's symmetric padding."""
    return [Window(k, s, p, p, d, ceil) for k, s, p, d in zip(kernel, stride, padding, dilation, strict=True)]


def exact(t: Tosa, x: Value, axes: Sequence[Window]) -> tuple[Value, Pad]:
    """x [N,H,W,C] -> (x' [N,H',W',C], pad (top, bottom, left, right)), with which TOSA's windows are torch's.

    What torch's rounding ignores is taken off the trailing padding, and what is left of it off the input.
    """
    size, pad = list(x.shape), []
    for axis, window in enumerate(axes, start=1):
        last = (window.count(x.shape[axis]) - 1) * window.stride - window.before
        t.require(last < x.shape[axis], "ceil_mode makes a window of padding only, for which TOSA has no value")
        trailing = window.trailing(x.shape[axis])
        pad += [window.before, max(trailing, 0)]
        size[axis] += min(trailing, 0)
    top, bottom, left, right = pad
    return t.slice(x, (0, 0, 0, 0), size), (top, bottom, left, right)

"""Sliding windows of convolutions and pools.

torch ignores trailing elements that do not fill a last step. TOSA wants the last window
to end exactly at the edge of the padded input.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ...ir.dynamic_sizes import is_dynamic, largest, smallest
from ...ir.graph import Value
from ...ir.types import FLOATS
from ..builder import Operand, Tosa

Pad = tuple[int, ...]
"""(top, bottom, left, right) of an image; of a volume (front, back) comes first."""
Ints = Sequence[int]


class Window(NamedTuple):
    """A window along one axis: size, step, padding and dilation, in elements.

    The padding lies ``before`` and ``after`` the input. ``ceil``: whether a last window
    may reach beyond the padding (torch's ceil_mode).
    """

    kernel: int
    stride: int
    before: int
    after: int
    dilation: int = 1
    ceil: bool = False

    @property
    def reach(self) -> int:
        """Number of elements that a window spans, with the gaps of dilation."""
        return self.dilation * (self.kernel - 1) + 1

    def count(self, size: int) -> int:
        """Return how many windows torch makes of an axis of ``size`` elements."""
        # elements and padding after the first window
        room = size + self.before + self.after - self.reach
        if not self.ceil:
            return room // self.stride + 1
        count = -(-room // self.stride) + 1
        # as in torch, a window of ceil_mode has to begin inside of the input or of the
        # padding before it
        last = count - 1
        if last * self.stride >= size + self.before:
            return last
        return count

    def start_of_last(self, size: int) -> int:
        """Return the position in the input at which the last window begins.

        A negative one lies in the padding before the input.
        """
        return (self.count(size) - 1) * self.stride - self.before

    def trailing(self, size: int) -> int:
        """Return the padding after ``size`` elements that completes the last window.

        A negative number counts trailing elements that are in no window.
        """
        return self.start_of_last(size) + self.reach - size


def windows(
    kernel: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints | None = None,
    ceil: bool = False,
) -> list[Window]:
    """Return one window for each axis, from torch's arguments.

    The padding is the same on both sides, and ``ceil`` is ceil_mode. A ``dilation`` of
    None is 1 for every axis.
    """
    dilation = (1,) * len(kernel) if dilation is None else dilation
    axes = zip(kernel, stride, padding, dilation, strict=True)
    return [Window(k, s, p, p, d, ceil) for k, s, p, d in axes]


def exact(
    t: Tosa, x: Value, axes: Sequence[Window], fill: float | None = None
) -> tuple[Value, Pad]:
    """x [N,*S,C] -> an input and a padding for which TOSA's windows are ``axes``.

    The padding has (before, after) for each axis. Trailing elements that are in no
    window are removed, first from the padding and then from the input. If their number
    is known at run time only, the trailing padding becomes part of the input, as
    elements ``fill``. Raises Unsupported in that case if ``fill`` is None or x has
    integers, and for a window that has only padding.
    """
    x, axes = _pad_dynamic_trailing(t, x, axes, fill)
    size = list(x.shape)
    pad: list[int] = []
    for axis, window in enumerate(axes, start=1):
        t.refuse_unless(
            _has_elements(window, x.shape[axis]),
            "ceil_mode makes a window of padding only, for which TOSA has no value",
        )
        trailing = window.trailing(x.shape[axis])
        if window.ceil and is_dynamic(trailing):
            x = _pad_ceil_windows(t, x, axis, trailing, fill)
        if is_dynamic(trailing):
            pad += [window.before, 0]
            size[axis] += trailing
        else:
            # a positive ``trailing`` is padding, a negative one cuts elements off the
            # input
            pad += [window.before, max(trailing, 0)]
            size[axis] += min(trailing, 0)
    return t.slice(x, [0] * x.rank, size), tuple(pad)


def _has_elements(window: Window, size: int) -> bool:
    """Return whether the last window has elements of an axis of ``size`` elements.

    A window that begins behind the input has padding only. A start known at run time
    only is compared just for ceil_mode, which may make such a window.
    """
    start = window.start_of_last(size)
    if is_dynamic(start) and not window.ceil:
        return True
    return start < size


def _pad_dynamic_trailing(
    t: Tosa, x: Value, axes: Sequence[Window], fill: float | None
) -> tuple[Value, Sequence[Window]]:
    """Return x padded with ``fill``, and ``axes`` with ``after`` 0 where x was padded.

    Only axes are padded where windows read a number of trailing padding elements that
    is known at run time only. For such an axis, raises Unsupported if ``fill`` is None
    or x has integers.
    """
    padding = [0] * (2 * x.rank)
    windows = list(axes)
    for axis, window in enumerate(axes, start=1):
        if window.after and is_dynamic(window.trailing(x.shape[axis])):
            why = (
                f"where windows of stride {window.stride} end in {x.shape[axis]}"
                " elements is known at run time only"
            )
            t.refuse_unless(fill is not None and x.dtype in FLOATS, why)
            padding[2 * axis + 1] = window.after
            windows[axis - 1] = window._replace(after=0)
    return t.pad(x, padding, fill or 0), windows


def _pad_ceil_windows(
    t: Tosa, x: Value, axis: int, trailing: int, fill: float | None
) -> Value:
    """Append max(trailing, 0) elements ``fill`` to ``axis`` of x.

    Windows of ceil_mode read them beyond x. Raises Unsupported if ``fill`` is None or x
    has integers.
    """
    why = (
        f"how far ceil_mode reaches behind {x.shape[axis]} elements is known at run"
        " time only"
    )
    t.refuse_unless(fill is not None and x.dtype in FLOATS, why)
    padding = [0] * (2 * x.rank)
    padding[2 * axis + 1] = largest(trailing, 0)
    return t.pad(x, padding, fill or 0)


def framed(
    t: Tosa, x: Value, frame: Sequence[tuple[int, int]], number: Operand = 0
) -> Value:
    """Return x [*S] padded with ``number``: (before, after) elements for each axis.

    A negative number cuts elements off.
    """
    # cut first: (-1, 2) on an axis of 5 leaves the elements from 1 on, 4 of them, and
    # then adds 2
    starts: list[int] = []
    sizes: list[int] = []
    padding: list[int] = []
    for size, (before, after) in zip(x.shape, frame, strict=True):
        starts.append(largest(-before, 0))
        sizes.append(size + smallest(before, 0) + smallest(after, 0))
        padding += [largest(before, 0), largest(after, 0)]
    return t.pad(t.slice(x, starts, sizes), padding, number)


def spread(t: Tosa, x: Value, axis: int, step: int) -> Value:
    """x [*A,N,*B] -> [*A,(N-1)*step+1,*B], with step - 1 zeros between elements."""
    size = x.shape[axis]
    if step == 1 or size == 1:
        return x
    sizes_before = x.shape[:axis]
    sizes_after = x.shape[axis + 1 :]
    before = math.prod(sizes_before)
    after = math.prod(sizes_after)
    # [.,N,1,.] is padded with zeros to [.,N,step,.], reshaped to [.,N*step,.], and cut
    # after the last element
    elements = t.reshape(x, (before, size, 1, after))
    padded = t.pad(elements, (0, 0, 0, 0, 0, step - 1, 0, 0))
    with_trailing = t.reshape(padded, (before, size * step, after))
    count = (size - 1) * step + 1
    y = t.slice(with_trailing, (0, 0, 0), (before, count, after))
    return t.reshape(y, (*sizes_before, count, *sizes_after))

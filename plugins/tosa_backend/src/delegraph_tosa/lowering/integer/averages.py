"""Averages of quantized values: pools and means.

If the result has the quantization of the operand, an average is AVG_POOL2D on the
integers, which rounds once. Otherwise AVG_POOL2D and a RESCALE would both round. So the
elements of each window are summed, and the RESCALE of the sums also divides. Windows of
different sizes, or over three axes, are summed by a product with a matrix that has a
column for each window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import torch

from ...evaluate import materialize
from ...ir.dynamic_sizes import is_dynamic
from ...ir.graph import Array, Deferred, Value, literal
from ...ir.types import ARRAY_DTYPES, DType, Type
from ..aten.reduce import axes_of
from ..builder import Shape, Tosa
from ..builder.size_numbers import computed
from ..lazy.lazy_values import Lazy, Scaled, limit, operand, trial
from ..lazy.quantization import Quantization, Scale
from ..registry import lowering_of, lowers
from .arithmetic import summed
from .division import Quotient
from .image_sums import sums_of_images
from .products import WIDE, Accumulating
from .sums import expect_fp32

aten = torch.ops.aten
MOST_ENTRIES = 1 << 20
"""The most elements of the matrix that sums windows: a megabyte in the file."""


class Averaged(Lazy):
    """Averages of windows of ``of``, by the ATen operator ``pool``.

    ``settings`` are the arguments after its input.
    """

    __slots__ = ("of", "pool", "settings", "windows")

    def __init__(self, of: Scaled, pool: Any, settings: tuple[Any, ...]) -> None:
        """Describe a pool: its input ``of``, its operator and its other arguments."""
        self.of = of
        self.pool = pool
        self.settings = settings
        # a trial run of the float rule gives the shape, and ``windows`` notes which
        # operators it needs
        self.windows = Windows()
        super().__init__(self.average(self.windows, Value(of.type)).shape)

    def average(self, t: Tosa, x: Value) -> Value:
        """Return the result of the float rule of ``pool`` for x, on the builder ``t``.

        On ``Accumulating`` these are averages of the integers x, on ``Summing`` the
        sums of each window.
        """
        result: Value = lowering_of(self.pool)(t, x, *self.settings)
        return result

    def integer(self, t: Tosa, to: Quantization) -> Value:
        """Return the averages as integers in the quantization ``to``.

        They are computed by AVG_POOL2D if the quantization stays, by sums of windows if
        these have the same size, else by a product with a matrix (see the module).
        """
        if self.of.is_in(to) and self.windows.are_averages:
            # both zero points of the AVG_POOL2D are the one of ``to``
            builder = Accumulating(t, DType.INT32, to.zero_point, to.zero_point)
            return limit(t, self.average(builder, self.of.q), to.low, to.high)
        sums = self._sums(t) if self.windows.are_equal else self._columns(t)
        return sums.integer(t, to)

    def _sums(self, t: Tosa) -> Lazy:
        """Return the sums of windows of n elements, with a scale divided by n.

        So they represent averages.
        """
        image = self.of.shape[2:]
        if self.of.rank == 4 and self.windows.kernels == [image]:
            total = sums_of_images(t, self.of)
            if total is not None:
                average = Scaled(total.q, total.scale.over(math.prod(image)))
                return average.moved(t, self._reshaped, self.shape)
        builder = Summing(t, WIDE[self.of.q.dtype], self.of.zero_point, 0)
        sums = self.average(builder, self.of.q)
        scale = self.of.scale.times(builder.unit)
        return Scaled(sums, scale.over(builder.count))

    def _reshaped(self, t: Tosa, v: Value) -> Value:
        """Return ``v`` in the shape of the averages."""
        return t.reshape(v, self.shape)

    def _columns(self, t: Tosa) -> Lazy:
        """Compute averages of any windows by a product with a constant matrix.

        Column w of the matrix has a 1 for each element of window w, so the product is
        the sum of the window. Its scale has the factor 1 / (elements of window w).
        """
        x = self.of.q
        axes = 3 if "3d" in str(self.pool) else 2
        images = math.prod(x.shape[:-axes])
        size = x.shape[-axes:]
        elements = math.prod(size)
        windows = math.prod(self.shape[-axes:])
        t.refuse_unless(
            not is_dynamic(elements) and not is_dynamic(windows),
            "the positions of its windows are known at run time only",
        )
        t.refuse_unless(
            elements * windows <= MOST_ENTRIES,
            f"the matrix for {windows} windows in {elements} elements has more than"
            f" {MOST_ENTRIES} entries",
        )
        # equal pools share both constants. The function ``shares`` runs when the file
        # is written, once for both
        key = (self.pool, repr(self.settings), size)
        shares = t.once(("shares", *key), lambda: cache(lambda: self._shares(size)))
        shape = (1, elements, windows)
        ones = t.once(
            ("ones", x.dtype, *key), lambda: _ones_where_shared(shares, shape, x.dtype)
        )
        share = t.once(("share", *key), lambda: _share_of_one(shares, windows))
        builder = Accumulating(t, WIDE[x.dtype], left=self.of.zero_point, right=0)
        rows = t.reshape(x, (1, images, elements))
        # [1, images, windows]
        sums = builder.matmul(rows, ones)
        scale = self.of.scale.times(builder.unit).times(Scale(1.0, (share,)))
        return Scaled(sums, scale, axis=2).moved(t, self._reshaped, self.shape)

    def _shares(self, size: Shape) -> Array:
        """Return the share of each element in each average: [elements, windows].

        ``size`` is that of the pooled axes. Row e has the averages of an input that is
        1 at element e and 0 elsewhere.
        """
        elements = math.prod(size)
        inputs = np.eye(elements).reshape(elements, 1, *size)
        averages = self.average(trial(), literal(inputs, DType.FP32, np.float32))
        return materialize(averages).reshape(elements, -1)

    def real(self, t: Tosa) -> Value:
        """Return the averages of the real numbers of ``of``, by the float rule."""
        return self.average(t, self.of.real(t))


def _ones_where_shared(shares: Any, shape: Shape, dtype: DType) -> Value:
    """Return a constant matrix [elements, windows] in ``shape``.

    It has 1 where the element belongs to the window, else 0. ``shares`` returns the
    share of each element in each window's average, a matrix of the same size. It is
    called when the file is written.
    """

    def ones() -> Any:
        """Return the elements of the constant."""
        return (shares() != 0).astype(ARRAY_DTYPES[dtype]).reshape(shape)

    matrix = Value(Type(shape, dtype), Deferred(ones))
    matrix.range = (0, 1)
    return matrix


def _share_of_one(shares: Any, windows: int) -> Value:
    """fp32 [windows]: the share of one element of each window in its average.

    ``shares`` is that of ``_ones_where_shared``.
    """
    return Value(Type((windows,), DType.FP32), Deferred(lambda: shares().max(0)))


class Windows(Tosa):
    """A builder for a trial run of the float rule of a pool.

    It notes the windows of the pool, and whether averages are multiplied afterwards.
    """

    def __init__(self) -> None:
        """Create a builder as ``trial`` does, with nothing noted."""
        self.__dict__.update(trial().__dict__)
        self.kernels: list[Shape] = []
        """The size of the windows of each AVG_POOL2D."""
        self._pads: list[Shape] = []
        """The padding of each AVG_POOL2D."""
        self._divides = False
        """Whether the rule multiplies the averages."""

    @property
    def are_averages(self) -> bool:
        """Whether one AVG_POOL2D computes the averages, divided by window sizes."""
        return len(self._pads) == 1 and not self._divides

    @property
    def are_equal(self) -> bool:
        """Whether one AVG_POOL2D without padding computes the averages.

        Then all windows have the same size.
        """
        return self.are_averages and not any(self._pads[0])

    def avg_pool2d(self, x: Value, kernel: Shape, stride: Shape, pad: Shape) -> Value:
        """Emit the AVG_POOL2D, and note its window size and padding."""
        self.kernels.append(tuple(kernel))
        self._pads.append(pad)
        return super().avg_pool2d(x, kernel, stride, pad)

    def mul(self, left: Any, right: Any, shift: int = 0) -> Value:
        """Emit the MUL, and note that averages are multiplied for another divisor."""
        self._divides = True
        return super().mul(left, right, shift)


class Summing(Accumulating):
    """Builder with an ``avg_pool2d`` that sums windows by a depthwise convolution.

    ``count`` is the number of elements of a window.
    """

    count = 1

    def avg_pool2d(self, x: Value, kernel: Shape, stride: Shape, pad: Shape) -> Value:
        """Return the sum of each window, in place of its average."""
        self.count = math.prod(kernel)
        channels = x.shape[3]
        shape = (*kernel, channels, 1)
        ones = self.once(
            ("ones", kernel, channels),
            lambda: literal(np.ones(shape), DType.INT8, np.int8),
        )
        no_bias = self.no_bias(x)
        return self.depthwise_conv2d(x, ones, no_bias, pad, stride, dilation=(1, 1))


def _averaged(overload: Any, t: Tosa, self: Lazy, *settings: Any) -> Lazy:
    """[N,C,*S] -> [N,C,*S'], by an average pool.

    The windows of an adaptive pool depend on the size of its input. If this size is
    known at run time only, just an output size of 1 is lowered, by a mean.
    """
    axes = 3 if "3d" in str(overload) else 2
    if "adaptive" in str(overload) and any(map(is_dynamic, self.shape[-axes:])):
        output_size = settings[0]
        t.refuse_unless(
            set(output_size) == {1},
            "its windows depend on a size that is known at run time only",
        )
        all_axes = list(range(-axes, 0))
        return mean(t, self, None, all_axes, keepdim=True)
    return Averaged(operand(t, self, "its input"), overload, settings)


for overload in (
    aten.avg_pool2d.default,
    aten.avg_pool3d.default,
    aten.adaptive_avg_pool2d.default,
    aten._adaptive_avg_pool2d.default,
    aten.adaptive_avg_pool3d.default,
    aten._adaptive_avg_pool3d.default,
):
    lowers(overload, on=Lazy)(partial(_averaged, overload))


@lowers(aten.mean.default, aten.mean.dim, on=Lazy)
def mean(
    t: Tosa,
    self: Lazy,
    dtype: torch.dtype | None,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
) -> Lazy:
    """[*S] -> [*S']; a pool over height and width of images; over other axes a sum
    with a scale divided by the number of elements
    """
    expect_fp32(t, "a mean", dtype)
    if _is_of_images(self, dim):
        return _mean_of_images(t, self, keepdim)
    total, count = summed(t, self, dim, keepdim)
    # the scale has to be known at compile time
    if is_dynamic(count):
        divisor = t.reshape(computed(t, count, DType.INT32), (1,) * total.rank)
        return Quotient(total, Scaled(divisor, Scale(1.0)), total.shape)
    return Scaled(total.q, total.scale.over(count))


def _is_of_images(x: Lazy, dim: Sequence[int] | None) -> bool:
    """Return whether ``dim`` are height and width of x [N,C,H,W], and are known."""
    if x.rank != 4 or axes_of(dim, 4) != [2, 3]:
        return False
    return not any(map(is_dynamic, x.shape[2:]))


def _mean_of_images(t: Tosa, x: Lazy, keepdim: bool) -> Lazy:
    """[N,C,H,W] -> [N,C], or [N,C,1,1] with ``keepdim``; one window for each image"""
    size = x.shape[2:]
    padding = (0, 0)
    ceil_mode = False
    count_include_pad = True
    divisor = None
    settings = (size, size, padding, ceil_mode, count_include_pad, divisor)
    image = operand(t, x, "its input")
    pooled = Averaged(image, aten.avg_pool2d.default, settings)
    if keepdim:
        return pooled
    shape = x.shape[:2]
    return pooled.moved(t, lambda t, v: t.reshape(v, v.shape[:2]), shape)

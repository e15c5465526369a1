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
from functools import cache
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
        before = (self.of.scale, self.of.zero_point, self.of.q.dtype)
        after = (Scale(to.scale), to.zero_point, to.dtype)
        if before == after and self.windows.are_averages:
            # both zero points of the AVG_POOL2D are the one of ``to``
            builder = Accumulating(t, DType.INT32, to.zero_point, to.zero_point)
            return limit(t, self.average(builder, self.of.q), to.low, to.high)
        sums = self._sums(t) if self.windows.are_equal else self._columns(t)
        return sums.integer(t, to)

    def _sums(self, t: Tosa) -> Lazy:
        """Return the sums of windows of n elements, with a scale divided by n.

        So they represent averages.
        """
        is_of_images = self.of.rank == 4 and self.windows.kernels == [self.of.shape[2:]]
        if is_of_images and (total := sums_of_images(t, self.of)) is not None:
            average = Scaled(total.q, total.scale.over(math.prod(self.of.shape[2:])))
            return average.moved(t, lambda t, v: t.reshape(v, self.shape), self.shape)
        builder = Summing(t, WIDE[self.of.q.dtype], self.of.zero_point, 0)
        sums = self.average(builder, self.of.q)
        return Scaled(sums, self.of.scale.times(builder.unit).over(builder.count))

    def _columns(self, t: Tosa) -> Lazy:
        """Computes averages of any windows by a product with a constant matrix.

        The sums of window w have their own scale: the share of one element in the
        average, 1 / its number of elements.
        """
        x = self.of.q
        dtype = self.of.q.dtype
        axes = 3 if "3d" in str(self.pool) else 2
        lead = x.shape[:-axes]
        size = x.shape[-axes:]
        elements = math.prod(size)
        windows = math.prod(self.shape[-axes:])
        are_known = not is_dynamic(elements) and not is_dynamic(windows)
        t.require(are_known, "where its windows lie is known at run time only")
        why = f"{windows} windows in {elements} elements are too large a matrix"
        t.require(elements * windows <= MOST_ENTRIES, why)
        # three things that equal pools share; ``shares()`` computes when the file is
        # written, once for both constants
        key = (self.pool, repr(self.settings), size)
        shares = t.once(("shares", *key), lambda: cache(lambda: self._shares(size)))
        ones = t.once(
            ("ones", dtype, *key),
            lambda: _ones_where_shared(shares, (1, elements, windows), dtype),
        )
        share = t.once(
            ("share", *key),
            lambda: Value(
                Type((windows,), DType.FP32), Deferred(lambda: shares().max(0))
            ),
        )
        builder = Accumulating(t, WIDE[dtype], self.of.zero_point, 0)
        # [1, lead, windows]
        sums = builder.matmul(t.reshape(x, (1, math.prod(lead), elements)), ones)
        scale = self.of.scale.times(builder.unit).times(Scale(1.0, (share,)))
        return Scaled(sums, scale, axis=2).moved(
            t, lambda t, v: t.reshape(v, self.shape), self.shape
        )

    def _shares(self, size: Shape) -> Array:
        """Return the share of each element in each average: [elements, windows].

        The axes have the sizes ``size``. Row e is the average of an input that is 1 at
        element e and 0 elsewhere.
        """
        elements = math.prod(size)
        units = literal(
            np.eye(elements).reshape(elements, 1, *size), DType.FP32, np.float32
        )
        return materialize(self.average(trial(), units)).reshape(elements, -1)

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


class Windows(Tosa):
    """A builder on which the float rule of a pool is tried.

    It notes the padding and a division after the pool.
    """

    def __init__(self) -> None:
        """A builder for a target that has nearly every operator.

        Its operators are discarded.
        """
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
        """Notes size and padding."""
        self.kernels.append(tuple(kernel))
        self._pads.append(pad)
        return super().avg_pool2d(x, kernel, stride, pad)

    def mul(self, left: Any, right: Any, shift: int = 0) -> Value:
        """Records that averages are multiplied later, for another divisor."""
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
        shape = (*kernel, x.shape[3], 1)
        ones = self.once(
            ("ones", kernel, x.shape[3]),
            lambda: literal(np.ones(shape), DType.INT8, np.int8),
        )
        operands = (x, ones, self.no_bias(x), pad, stride, (1, 1))
        return self.depthwise_conv2d(*operands)


def _register_averages(*overloads: Any) -> None:
    """Register the rules of the average pools ``overloads``.

    The windows of an adaptive pool follow from the size of its input. If this size is
    known at run time only, only an output size of 1 is lowered: the average of all
    elements.
    """
    for overload in overloads:

        def averaged(t: Tosa, self: Lazy, *settings: Any, of: Any = overload) -> Lazy:
            """[N,C,*S] -> [N,C,*S']"""
            axes = 3 if "3d" in str(of) else 2
            sizes = self.shape[-axes:] if "adaptive" in str(of) else ()
            # the output size of an adaptive pool
            if any(map(is_dynamic, sizes)) and set(settings[0]) == {1}:
                return mean(t, self, None, list(range(-axes, 0)), True)
            t.require(
                not any(map(is_dynamic, sizes)),
                "its windows depend on a size that is known at run time only",
            )
            return Averaged(operand(t, self, "its input"), of, settings)

        lowers(overload, on=Lazy)(averaged)


_register_averages(
    aten.avg_pool2d.default, aten.avg_pool3d.default, aten.adaptive_avg_pool2d.default,
    aten._adaptive_avg_pool2d.default, aten.adaptive_avg_pool3d.default, aten._adaptive_avg_pool3d.default,
)  # fmt: skip


@lowers(aten.mean.default, aten.mean.dim, on=Lazy)
def mean(
    t: Tosa,
    self: Lazy,
    dtype: torch.dtype | None,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
) -> Lazy:
    """[*S] -> [*S']; a pool over height and width of images; over other axes a sum
    with a scale divided by N
    """
    t.require(dtype in (None, torch.float32), f"a mean in {dtype} is not lowered")
    if (
        self.rank == 4
        and axes_of(dim, 4) == [2, 3]
        and not any(map(is_dynamic, self.shape[2:]))
    ):
        window = (self.shape[2:], self.shape[2:], (0, 0), False, True, None)
        pooled = Averaged(
            operand(t, self, "its input"), aten.avg_pool2d.default, window
        )
        return (
            pooled
            if keepdim
            else pooled.moved(t, lambda t, v: t.reshape(v, v.shape[:2]), self.shape[:2])
        )
    total, count = summed(t, self, dim, keepdim)
    # a number of elements that is known at run time only cannot be part of the scale
    if is_dynamic(count):
        divisor = t.reshape(computed(t, count, DType.INT32), (1,) * total.rank)
        return Quotient(total, Scaled(divisor, Scale(1.0)), total.shape)
    return Scaled(total.q, total.scale.over(count))

"""Lazy values: real numbers between a dequantize and the next quantize.

No operator has computed them. The rule for dequantize emits no operator. It returns a
``Lazy`` value, which is fp32 to torch and knows the integers it represents. Integer
rules take and return lazy values. The rule for quantize calls ``integer`` with the
quantization of the program, and only then the last operators of a chain are emitted:
RESCALE, CLAMP, TABLE. For an operator without an integer rule, ``real`` computes the
real numbers in floats, which a target without PRO-FP refuses.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from copy import copy
from functools import cache
from typing import Any

import numpy as np

from ...evaluate import materialize
from ...ir.graph import Array, Value, literal
from ...ir.types import DType, Type
from ...spec import TosaSpec
from ..builder import Shape, Tosa
from ..ranges.value_ranges import Range, inside, range_of, range_of_type
from ..torch_values.tensor_types import refused
from .lookup_tables import gathered, interpolated, looked_up, table_sums
from .quantization import Quantization, Scale, multipliers

Function = Callable[[Tosa, Value], Value]
"""A function of one tensor, as operators that the builder makes."""
SMALL = (DType.INT8, DType.INT16)
"""Types that activations are quantized to.

Wider integers are sums and products before they are quantized.
"""
BITS = 29
"""The most bits, without sign, of a wider integer.

RESCALE takes values below 2**(shift - 1) only.
"""


class Lazy(Value):
    """A tensor fp32 [*S] for which no operators are emitted yet."""

    __slots__ = ()

    def __init__(self, shape: Shape) -> None:
        """Create a value of this shape; to torch its type is fp32."""
        super().__init__(Type(shape, DType.FP32))

    def integer(self, t: Tosa, to: Quantization) -> Value:
        """Compute the elements as integers in the quantization ``to``.

        Raises Unsupported if that needs floats.
        """
        raise NotImplementedError

    def real(self, t: Tosa) -> Value:
        """Compute the elements as floats.

        Raises Unsupported if the target has no floats.
        """
        raise NotImplementedError

    def reach(self, t: Tosa, least: float = -math.inf) -> float:
        """Return the largest absolute value that an element can have.

        It is inf if it is not known. Elements below ``least`` do not count: they are
        numbers of a mask that hide scores.
        """
        return math.inf

    def pointwise(self) -> Pointwise | None:
        """Return the value as a function of single elements of one quantized value.

        None if it is no such function.
        """
        return None

    def moved(self, t: Tosa, move: Function, shape: Shape) -> Lazy:
        """Return ``move`` of this value, with the result's ``shape``.

        ``move`` reorders, reshapes or selects elements, of integers and of floats.
        """
        return Moved(self, move, shape)


class Scaled(Lazy):
    """The real numbers scale * (q - zero_point), for integers ``q``.

    ``axis`` is the axis of a scale with one number for each channel; None for a scale
    of one number.
    """

    __slots__ = ("axis", "q", "scale", "zero_point")

    def __init__(
        self, q: Value, scale: Scale, zero_point: int = 0, axis: int | None = None
    ) -> None:
        """Create a value with the integers ``q``.

        For a scale of one number, ``axis`` has no meaning and becomes None.
        """
        super().__init__(q.shape)
        self.q = q
        self.scale = scale
        self.zero_point = zero_point
        self.axis = axis if scale.tensors else None
        # rules only check whether this is None: it has the elements of ``q``, not the
        # real numbers
        self.constant = q.constant

    def integer(self, t: Tosa, to: Quantization) -> Value:
        """Return the integers in the quantization ``to``, clamped to its limits."""
        q = self.q
        if not self.is_in(to):
            q = rescale(t, self, to.scale, to.zero_point, to.dtype)
        return limit(t, q, to.low, to.high)

    def is_in(self, to: Quantization) -> bool:
        """Return whether the integers are those of ``to``, but for its limits."""
        return (
            self.scale == Scale(to.scale)
            and self.zero_point == to.zero_point
            and self.q.dtype == to.dtype
        )

    def real(self, t: Tosa) -> Value:
        """Compute scale * (q - zero_point) in floats."""
        floats = t.cast(self.q, DType.FP32)
        product = t.sub(floats, float(self.zero_point))
        # scales of channels get an axis of size 1 for each axis after ``axis``, to
        # broadcast
        axes_after = 0 if self.axis is None else self.rank - 1 - self.axis
        for tensor in self.scale.tensors:
            scales = t.reshape(tensor, (*tensor.shape, *(1,) * axes_after))
            product = t.mul(product, scales)
        # the whole scale is factor * tensors: a factor of 1 needs no MUL
        if self.scale.factor == 1 and self.scale.tensors:
            return product
        return t.mul(product, self.scale.factor)

    def reach(self, t: Tosa, least: float = -math.inf) -> float:
        """Return the largest distance from the zero point (``size``), times the scale.

        It is inf for scales of channels, and for int32 of unknown range.
        """
        if self.scale.tensors or self.size >= 1 << 31:
            return math.inf
        return self.size * self.scale.factor

    def pointwise(self) -> Pointwise | None:
        """Return the identity function of this value if it ``is_small``, else None."""
        return Pointwise(self, _identity) if self.is_small else None

    def moved(self, t: Tosa, move: Function, shape: Shape) -> Lazy:
        """Return ``move`` of the integers, in the same quantization.

        See the base class for the arguments. Integers wider than 16 bits, such as sums,
        are moved later, when they are quantized.
        """
        if not self.is_small:
            return Moved(self, move, shape)
        return self.with_integers(move(t, self.q))

    def with_integers(self, q: Value) -> Scaled:
        """Return other integers ``q`` in the quantization of this value.

        The value has to have one scale for all elements.
        """
        return Scaled(q, self.scale, self.zero_point)

    def has_quantization_of(self, other: Scaled) -> bool:
        """Return whether both have the same scale, zero point and type of integers."""
        return (
            self.scale == other.scale
            and self.zero_point == other.zero_point
            and self.q.dtype is other.q.dtype
        )

    def is_like(self, other: Scaled) -> bool:
        """Return whether both are the same integers in the same quantization."""
        return self.q is other.q and self.has_quantization_of(other)

    @property
    def size(self) -> int:
        """The largest distance of an integer from the zero point, in steps."""
        low, high = range_of(self.q)
        return max(abs(low - self.zero_point), abs(high - self.zero_point))

    @property
    def is_small(self) -> bool:
        """Whether the value is quantized like an activation.

        It is int8 or int16 with one scale for all elements.
        """
        return self.q.dtype in SMALL and not self.scale.tensors


def _identity(t: Tosa, x: Value) -> Value:
    """Return ``x`` itself: the function of a value that no operator has changed yet."""
    return x


class Clamped(Lazy):
    """A lazy value ``of``, clamped to the real numbers ``low`` .. ``high``.

    Quantization is monotonic, so the integers are those of ``of``, clamped to the
    integers of ``low`` and ``high``.
    """

    __slots__ = ("high", "low", "of")

    def __init__(self, of: Lazy, low: float, high: float) -> None:
        """Clamp ``of`` to the numbers ``low`` to ``high``, which may be infinite."""
        super().__init__(of.shape)
        self.of = of
        self.low = low
        self.high = high

    def integer(self, t: Tosa, to: Quantization) -> Value:
        """Return the integers of ``of`` in the quantization ``to``, clamped.

        The limits are the integers of ``low`` and ``high``.
        """
        if to.dtype not in SMALL:
            # int8 and int16 saturate; in int32 the scale of ``to`` may be too fine for
            # elements of ``of``, which are as large as ``most``: these are clamped in a
            # coarser scale first
            most = self.of.reach(t)
            if to.scale * 2.0**30 < most < math.inf:
                step = most / 2.0**BITS
                coarse = Quantization(step, 0, -(1 << BITS), 1 << BITS, to.dtype)
                clamped = self.integer(t, coarse)
                return Scaled(clamped, Scale(step)).integer(t, to)
        low, high = range_of_type(to.dtype)
        q = self.of.integer(t, to._replace(low=low, high=high))
        return limit(t, q, to.nearest(self.low), to.nearest(self.high))

    def real(self, t: Tosa) -> Value:
        """Return the real numbers of ``of``, clamped in floats."""
        return t.clamp(self.of.real(t), self.low, self.high)

    def reach(self, t: Tosa, least: float = -math.inf) -> float:
        """Return the reach of ``of`` or of the limits, whichever is smaller.

        Inf if the reach of ``of`` is not known.
        """
        most = self.of.reach(t, least)
        if math.isinf(most):
            return most
        farthest_limit = max(abs(self.low), abs(self.high))
        return min(most, farthest_limit)

    def on_grid(self, t: Tosa, of: Scaled) -> Scaled:
        """Return the integers of ``of``, clamped, in the quantization of ``of``.

        Raises Unsupported if a limit lies between two integers of this quantization, so
        that it would be rounded.
        """
        least, most = range_of_type(of.q.dtype)
        low = self._limit_on_grid(t, of, self.low, beyond=least)
        high = self._limit_on_grid(t, of, self.high, beyond=most)
        return of.with_integers(limit(t, of.q, low, high))

    def _limit_on_grid(self, t: Tosa, of: Scaled, number: float, beyond: int) -> int:
        """Return a limit as an integer in the quantization of ``of``.

        A limit beyond the range of the type has no effect: the result is the end of the
        range. An infinite limit becomes ``beyond``.
        """
        if math.isinf(number):
            return beyond
        least, most = range_of_type(of.q.dtype)
        scale = of.scale.factor
        place = number / scale + of.zero_point
        t.refuse_unless(
            place == round(place) or not least < place < most,
            f"the limit {number} is no multiple of {scale}",
        )
        return min(max(round(place), least), most)

    def pointwise(self) -> Pointwise | None:
        """Return the function of ``of``, clamped.

        None if ``of`` is no function of one quantized value.
        """
        inner = self.of.pointwise()
        return inner and inner.then(lambda t, x: t.clamp(x, self.low, self.high))


BYTES = range(-128, 128)
SHORTS = range(-32768, 32768)
"""All integers of 8 and of 16 bits."""
KNOTS = range(-32768, 32769, 128)
"""The integers for which a TABLE of int16 has entries.

The last one is beyond int16 (specification: TABLE).
"""
MIDDLES = range(-32704, 32768, 128)
"""The integers halfway between two KNOTS."""


class Pointwise(Lazy):
    """A function of single elements of ``source``, which has 8 or 16 bits.

    ``function`` emits operators of floats that compute it. They are folded for all
    integers of ``source``, and the results are the entries of a TABLE.
    """

    __slots__ = ("function", "source")

    def __init__(self, source: Scaled, function: Function) -> None:
        """Create the value that is ``function`` of each element of ``source``."""
        super().__init__(source.shape)
        self.source = source
        self.function = function
        self.constant = source.constant

    def of(self, function: Function) -> Pointwise:
        """Return ``function`` of the same source, in place of this value's function."""
        return type(self)(self.source, function)

    def then(self, function: Function) -> Pointwise:
        """Return ``function`` applied to this value."""
        return self.of(lambda t, x: function(t, self.function(t, x)))

    def integer(self, t: Tosa, to: Quantization) -> Value:
        """Look up the function's quantized results by the integers of the source."""
        q = self.source.q
        if q.dtype is DType.INT16:
            return self._of_int16(t, to)
        entries = quantized(t, self.entries(t, BYTES), to)
        if to.dtype is DType.INT8:
            return limit(t, t.table(q, entries), *to.range)
        # a TABLE of int8 has entries of int8 only
        wide_entries = materialize(entries).astype(np.int64)
        return t.cast(looked_up(t, q, wide_entries), to.dtype)

    def _of_int16(self, t: Tosa, to: Quantization) -> Value:
        """Return the results for an int16 source, by TABLEs or by a GATHER.

        Uses TABLEs if interpolation is near enough.
        """
        q = self.source.q
        # the exact results for all integers, and the function, in steps of the result,
        # at the entries and between them
        wanted = materialize(quantized(t, self.entries(t, SHORTS), to))
        steps = self._in_steps(t, KNOTS, to)
        middles = self._in_steps(t, MIDDLES, to)
        tables = interpolated(steps, middles, wanted, to.zero_point)
        if tables is None:
            return gathered(t, q, wanted, to.dtype)
        sums, step = table_sums(t, q, tables)
        return Scaled(sums, Scale(to.scale * step)).integer(t, to)

    def _in_steps(self, t: Tosa, domain: range, to: Quantization) -> Array:
        """Return the function at the integers ``domain``, in steps of ``to``."""
        results: Array = materialize(self.entries(t, domain)).astype(np.float64)
        return results / to.scale

    def reach(self, t: Tosa, least: float = -math.inf) -> float:
        """Return the largest absolute value among the results for all integers.

        Those below ``least`` do not count.
        """
        domain = BYTES if self.source.q.dtype is DType.INT8 else SHORTS
        return largest_magnitude(materialize(self.entries(t, domain)), least)

    def truth(self, t: Tosa) -> Value:
        """Return the elements as bools, for a function that returns bools.

        A table returns 0 or 1, which is cast.
        """
        q = self.source.q
        if q.dtype is DType.INT8:
            entries = t.cast(self.entries(t, BYTES), DType.INT8)
            return t.cast(t.table(q, entries), DType.BOOL)
        results = materialize(self.entries(t, SHORTS))
        return t.cast(gathered(t, q, results, DType.INT8), DType.BOOL)

    def entries(self, t: Tosa, domain: range) -> Value:
        """Return a constant [N], fp32 or bool: the function at the integers ``domain``.

        Raises Unsupported if the result of ``function`` does not fold to one constant
        element for each integer.
        """
        dtype = DType.INT8 if domain is BYTES else DType.INT32
        integers = t.once(
            domain, lambda: literal(np.array(domain), dtype, dtype.name.lower())
        )
        # a builder that folds larger constants than files may have, since these
        # constants are never written
        folding = copy(t)
        folding.folded_bytes = 4 * max(len(domain), len(SHORTS))
        source = self.source.with_integers(integers)
        results = self.function(folding, source.real(folding))
        is_folded = results.constant is not None and results.shape == integers.shape
        t.refuse_unless(is_folded, "it is no function of each element alone")
        return results

    def real(self, t: Tosa) -> Value:
        """Return ``function`` of the real numbers of ``source``, computed in floats."""
        return self.function(t, self.source.real(t))

    def pointwise(self) -> Pointwise | None:
        """Return the value itself, which is such a function."""
        return self

    def moved(self, t: Tosa, move: Function, shape: Shape) -> Lazy:
        """Return the same function of the moved source.

        ``move`` reorders or reshapes the integers of the source. Elements may be moved
        before the function, because it is elementwise.
        """
        q = move(t, self.source.q)
        source = self.source.with_integers(q)
        return type(self)(source, self.function)


class Moved(Lazy):
    """``move`` of the lazy value ``of``, applied when ``of`` is quantized."""

    __slots__ = ("move", "of")

    def __init__(self, of: Lazy, move: Function, shape: Shape) -> None:
        """Create a value of ``shape``; ``move`` reorders or selects elements of ``of``."""
        super().__init__(shape)
        self.of = of
        self.move = move

    def integer(self, t: Tosa, to: Quantization) -> Value:
        """Return ``move`` of the integers of ``of``."""
        return self.move(t, self.of.integer(t, to))

    def reach(self, t: Tosa, least: float = -math.inf) -> float:
        """Return the largest absolute value in ``of``; moving keeps it."""
        return self.of.reach(t, least)

    def real(self, t: Tosa) -> Value:
        """Return ``move`` of the real numbers of ``of``."""
        return self.move(t, self.of.real(t))


class Joined(Lazy):
    """``join`` of several values, such as CONCAT or SELECT, on quantized parts.

    It is applied when its result is quantized. Each part is quantized as the result is,
    so that ``join`` only has to move integers.
    """

    __slots__ = ("join", "parts")

    def __init__(
        self,
        parts: Sequence[Value],
        join: Callable[[Tosa, list[Value]], Value],
        shape: Shape,
    ) -> None:
        """Create a value of ``shape``.

        ``join`` makes it of the integers of all parts, or of their floats.
        """
        super().__init__(shape)
        self.parts = parts
        self.join = join

    def integer(self, t: Tosa, to: Quantization) -> Value:
        """Return ``join`` of the parts' integers in the quantization ``to``."""
        return self.join(t, [integer(t, part, to) for part in self.parts])

    def reach(self, t: Tosa, least: float = -math.inf) -> float:
        """Return the largest ``reach`` among the parts.

        Elements below ``least`` do not count.
        """
        return max([reach(t, part, least) for part in self.parts])

    def real(self, t: Tosa) -> Value:
        """Return ``join`` of the real numbers of the parts."""
        return self.join(t, [real(t, part) for part in self.parts])


def trial() -> Tosa:
    """Return a builder on which rules run to learn the shapes of their results.

    Its operators are discarded. Its target supports nearly everything. Nothing that it
    folds goes into a file, so it folds constants of any size.
    """
    builder = Tosa(_any_target())
    builder.folded_bytes = sys.maxsize
    return builder


@cache
def _any_target() -> TosaSpec:
    """Return the target of ``trial``.

    It is parsed when it is first needed, because parsing reads a table.
    """
    return TosaSpec.parse("TOSA-1.1+FP+INT+shape")


def any_lazy(arguments: list[Any], kind: type[Lazy] = Lazy) -> bool:
    """Return whether an argument is, or contains, a lazy value of ``kind``."""
    for argument in arguments:
        if isinstance(argument, kind):
            return True
        if isinstance(argument, list) and any_lazy(argument, kind):
            return True
    return False


def real(t: Tosa, value: Value) -> Value:
    """Return the computed floats of a lazy value; any other value as it is."""
    return value.real(t) if isinstance(value, Lazy) else value


def integer(t: Tosa, value: Value, to: Quantization) -> Value:
    """Return the integers of a lazy value or a constant in the quantization ``to``.

    Raises Unsupported for floats that are computed at run time, except for int32 on a
    target with floats.
    """
    if isinstance(value, Lazy):
        return value.integer(t, to)
    # int32 integers are terms of a sum, to which a target with floats may cast an
    # operand
    is_term = to.dtype is DType.INT32 and "FP" in t.spec.profiles
    t.refuse_unless(
        value.constant is not None or is_term,
        f"the operand {value!r} is computed in floats",
    )
    return quantized(t, value, to)


def reach(t: Tosa, value: Value, least: float) -> float:
    """Return the largest absolute value of an element that is not below ``least``.

    Inf for floats computed at run time. The elements of a constant are read.
    """
    if isinstance(value, Lazy):
        return value.reach(t, least)
    if value.constant is None:
        return math.inf
    return largest_magnitude(materialize(value), least)


def largest_magnitude(elements: Array, least: float) -> float:
    """Return the largest absolute value in ``elements``, without those below ``least``.

    NaN counts. The result is 0 if all elements are below ``least``.
    """
    counts = ~(elements < least)
    magnitudes = np.abs(elements, out=np.zeros_like(elements), where=counts)
    return float(magnitudes.max())


def quantized(t: Tosa, x: Value, to: Quantization) -> Value:
    """fp32 [*S] -> integers [*S] as ``quantize_per_tensor``, ties to even

    This is clamp(round(x / scale) + zero_point).
    """
    # the clamp comes before the CAST, which rounds to even: beyond the type, a cast is
    # not defined
    least = float(to.low - to.zero_point)
    most = float(to.high - to.zero_point)
    steps = t.clamp(t.mul(x, 1 / to.scale), least, most)
    if to.zero_point == 0:
        q = t.cast(steps, to.dtype)
    else:
        wide = t.cast(steps, DType.INT32)
        q = t.cast(t.add(wide, to.zero_point), to.dtype)
    if x.constant is not None:
        # PyTorch converts NaN to the integer 0 for any zero point
        is_number = t.equal(x, x)
        q = t.select(is_number, q, 0)
    q.range = to.range
    return q


def limit(t: Tosa, q: Value, low: int, high: int) -> Value:
    """Return ``q`` clamped to ``low`` .. ``high``.

    This is ``q`` itself if its range lies within them.
    """
    least, most = range_of(q)
    if inside((least, most), (low, high)):
        return q
    if q.dtype in SMALL:
        limited = t.clamp(q, low, high)
    else:
        # CLAMP takes int8 and int16 only
        limited = q
        if least < low:
            limited = t.maximum(limited, low)
        if most > high:
            limited = t.minimum(limited, high)
    limited.range = (low, high)
    return limited


def rescale(t: Tosa, x: Scaled, scale: float, zero_point: int, dtype: DType) -> Value:
    """Return the integers of ``x`` in another scale and zero point, by one RESCALE.

    Raises Unsupported for int4. RESCALE has its multipliers along the last axis. So if
    ``x`` has a scale for each channel, it is transposed.
    """
    ratio = x.scale.over(scale)
    t.refuse_unless(x.q.dtype is not DType.INT4, "RESCALE does not take int4")
    if x.axis is None or ratio.channels == 1:
        multiplier, shift = multipliers(t, ratio, 31)
        y = t.rescale(x.q, multiplier, shift, x.zero_point, zero_point, dtype)
        if not ratio.tensors:
            before = range_of(x.q)
            y.range = _rescaled(before, x.zero_point, ratio.factor, zero_point, dtype)
        return y
    # make ``axis`` the last one, rescale, and restore the order
    axis_last = [*[a for a in range(x.rank) if a != x.axis], x.axis]
    transposed = t.transpose(x.q, axis_last)
    multiplier, shift = multipliers(t, ratio, 31)
    y = t.rescale(transposed, multiplier, shift, x.zero_point, zero_point, dtype)
    return t.transpose(y, [axis_last.index(a) for a in range(x.rank)])


def _rescaled(
    range: Range, before: int, ratio: float, after: int, dtype: DType
) -> Range:
    """Return the range of (i - before) * ratio + after for i in ``range``.

    These are the results of a RESCALE to ``dtype``. ``before`` and ``after`` are the
    zero points; ``ratio`` is positive.
    """
    low, high = range_of_type(dtype)
    least, most = [(end - before) * ratio + after for end in range]
    return max(math.floor(least), low), min(math.ceil(most), high)


def operand(t: Tosa, value: Value, what: str) -> Scaled:
    """Return ``value`` as quantized integers of 8 or 16 bits.

    The integers of a clamped value are clamped. Raises Unsupported if ``value`` is not
    quantized, or is the result of operators that no quantize follows. The reason begins
    with ``what``, the name of ``value``.
    """
    if isinstance(value, Scaled) and value.q.dtype in SMALL:
        return value
    if isinstance(value, Clamped):
        of = value.of
        if isinstance(of, Scaled) and of.is_small:
            return value.on_grid(t, of)
    if isinstance(value, Lazy):
        raise refused(
            f"{what} comes from an operator with a result that is not quantized"
        )
    raise refused(f"{what} is not quantized")

"""Real numbers that are not computed: what a rule sees between a dequantize and the next quantize.

``dequantize`` computes nothing. It gives a ``Lazy`` value, which is fp32 to torch and knows the integers it stands for.
Integer rules take such values and return such values. ``quantize`` asks one for its integers in the quantization that
the program wants, and only then the last operators of a chain are made: RESCALE, CLAMP, TABLE. Who needs the real
numbers themselves gets them from ``real``, which a target without PRO-FP refuses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import copy
from functools import cache
from typing import Any

import numpy as np

from ...evaluate import materialize
from ...ir.graph import Value, literal
from ...ir.types import DType, Type
from ...spec import TosaSpec
from ..builder import Shape, Tosa
from ..ranges.ranges import Range, inside, range_of, range_of_type
from ..torch_values.types import refused
from .quantization import Quantization, Scale, multipliers
from .tables import gathered, interpolated, looked_up, table_sums

Function = Callable[[Tosa, Value], Value]
SMALL = (DType.INT8, DType.INT16)
"""What activations are quantized to; wider integers are sums and products that nothing has quantized yet."""
BITS = 29
"""Wider integers have at most so many bits beside the sign: RESCALE takes values below 2**(shift - 1) only."""


class Lazy(Value):
    """fp32 [*S] that is not computed."""

    __slots__ = ()

    def __init__(self, shape: Shape) -> None:
        super().__init__(Type(shape, DType.FP32))

    def integer(self, t: Tosa, to: Quantization) -> Value:
        """The integers of its elements in a quantization; Unsupported if there is no way but through floats."""
        raise NotImplementedError

    def real(self, t: Tosa) -> Value:
        """The elements, computed; Unsupported if the target has no floats."""
        raise NotImplementedError

    def reach(self, t: Tosa, least: float = -math.inf) -> float:
        """A bound for the distance from zero of the elements above ``least``; infinite if none is known."""
        return math.inf

    def pointwise(self) -> Pointwise | None:
        """The same as a function of one integer of 8 or 16 bits; None if it is no such function."""
        return None

    def moved(self, t: Tosa, move: Function, shape: Shape) -> Lazy:
        """Its elements in another order or shape, or some of them; ``move`` does that to integers and floats alike."""
        return Moved(self, move, shape)


class Scaled(Lazy):
    """scale * (q - zero_point); a scale of several numbers has one for each index of ``axis``."""

    __slots__ = ("axis", "q", "scale", "zero_point")

    def __init__(self, q: Value, scale: Scale, zero_point: int = 0, axis: int | None = None) -> None:
        super().__init__(q.shape)
        self.q, self.scale, self.zero_point = q, scale, zero_point
        self.axis = axis if scale.tensors else None
        self.constant = q.constant  # says that it is one; its elements are those of ``real``

    def integer(self, t: Tosa, to: Quantization) -> Value:
        same = (self.scale, self.zero_point, self.q.dtype) == (Scale(to.scale), to.zero_point, to.dtype)
        q = self.q if same else rescale(t, self, to.scale, to.zero_point, to.dtype)
        return limit(t, q, to.low, to.high)

    def real(self, t: Tosa) -> Value:
        product = t.sub(t.cast(self.q, DType.FP32), float(self.zero_point))
        inner = () if self.axis is None else (1,) * (self.rank - 1 - self.axis)
        for tensor in self.scale.tensors:
            product = t.mul(product, t.reshape(tensor, (*tensor.shape, *inner)))
        return product if self.scale.factor == 1 and self.scale.tensors else t.mul(product, self.scale.factor)

    def reach(self, t: Tosa, least: float = -math.inf) -> float:
        return self.size * self.scale.factor if not self.scale.tensors and self.size < 1 << 31 else math.inf

    def pointwise(self) -> Pointwise | None:
        return Pointwise(self, _itself) if self.is_small else None

    def moved(self, t: Tosa, move: Function, shape: Shape) -> Lazy:
        return Scaled(move(t, self.q), self.scale, self.zero_point) if self.is_small else Moved(self, move, shape)

    def is_like(self, other: Scaled) -> bool:
        """Whether it is the same integers in the same quantization."""
        return self.q is other.q and (self.scale, self.zero_point) == (other.scale, other.zero_point)

    @property
    def size(self) -> int:
        """The largest distance of an integer from the zero point."""
        low, high = range_of(self.q)
        return max(abs(low - self.zero_point), abs(high - self.zero_point))

    @property
    def is_small(self) -> bool:
        """Whether it is quantized as activations are: few bits, and one scale."""
        return self.q.dtype in SMALL and not self.scale.tensors


def _itself(t: Tosa, x: Value) -> Value:
    return x


class Clamped(Lazy):
    """A lazy value between two real numbers. Rounding keeps the order, so its integers lie between theirs."""

    __slots__ = ("high", "low", "of")

    def __init__(self, of: Lazy, low: float, high: float) -> None:
        super().__init__(of.shape)
        self.of, self.low, self.high = of, low, high

    def integer(self, t: Tosa, to: Quantization) -> Value:
        low, high = range_of_type(to.dtype)
        most = self.of.reach(t) if to.dtype not in SMALL else 0
        if to.scale * 2.0**30 < most < math.inf:  # more steps than 32 bits hold: in coarser ones they are limited first
            step = most / 2.0**BITS
            coarse = self.integer(t, Quantization(step, 0, -(1 << BITS), 1 << BITS, to.dtype))
            return Scaled(coarse, Scale(step)).integer(t, to)
        q = self.of.integer(t, to._replace(low=low, high=high))
        return limit(t, q, to.nearest(self.low), to.nearest(self.high))

    def real(self, t: Tosa) -> Value:
        return t.clamp(self.of.real(t), self.low, self.high)

    def reach(self, t: Tosa, least: float = -math.inf) -> float:
        most = self.of.reach(t, least)
        return most if math.isinf(most) else min(most, max(abs(self.low), abs(self.high)))

    def on_grid(self, t: Tosa, of: Scaled) -> Scaled:
        """The same in the quantization of ``of``; Unsupported if a limit lies between two of its integers."""
        scale, (least, most) = of.scale.factor, range_of_type(of.q.dtype)
        limits = []
        for number, end in ((self.low, least), (self.high, most)):
            place = end if math.isinf(number) else number / scale + of.zero_point
            t.require(
                place == round(place) or not least < place < most, f"the limit {number} is no multiple of {scale}"
            )
            limits.append(min(max(round(place), least), most))
        return Scaled(limit(t, of.q, *limits), of.scale, of.zero_point)

    def pointwise(self) -> Pointwise | None:
        inner = self.of.pointwise()
        return inner and inner.then(lambda t, x: t.clamp(x, self.low, self.high))


BYTES, SHORTS = range(-128, 128), range(-32768, 32768)
"""All integers of 8 and of 16 bits."""
KNOTS = range(-32768, 32769, 128)
"""Those for which a TABLE of int16 has entries; the last one is none of them (specification: TABLE)."""
MIDDLES = range(-32704, 32768, 128)
"""Those between them."""


class Pointwise(Lazy):
    """A function of each element of ``source``, which is small: a TABLE of what float rules make of every integer."""

    __slots__ = ("function", "source")

    def __init__(self, source: Scaled, function: Function) -> None:
        super().__init__(source.shape)
        self.source, self.function = source, function
        self.constant = source.constant

    def of(self, function: Function) -> Pointwise:
        """Another function of the same."""
        return type(self)(self.source, function)

    def then(self, function: Function) -> Pointwise:
        """``function`` of its elements."""
        return self.of(lambda t, x: function(t, self.function(t, x)))

    def integer(self, t: Tosa, to: Quantization) -> Value:
        q = self.source.q
        if q.dtype is DType.INT16:
            return self._of_int16(t, to)
        entries = quantized(t, self.entries(t, BYTES), to)
        if to.dtype is not DType.INT8:
            return t.cast(looked_up(t, q, materialize(entries).astype(np.int64)), to.dtype)
        return limit(t, t.table(q, entries), *to.range)

    def _of_int16(self, t: Tosa, to: Quantization) -> Value:
        """By interpolation where that comes near enough, else from a constant with all values."""
        q = self.source.q
        wanted = materialize(quantized(t, self.entries(t, SHORTS), to))
        steps, middles = (materialize(self.entries(t, at)).astype(np.float64) / to.scale for at in (KNOTS, MIDDLES))
        tables = interpolated(steps, middles, wanted, to.zero_point)
        if tables is None:
            return gathered(t, q, wanted, to.dtype)
        sums, step = table_sums(t, q, tables)
        return Scaled(sums, Scale(to.scale * step)).integer(t, to)

    def reach(self, t: Tosa, least: float = -math.inf) -> float:
        domain = BYTES if self.source.q.dtype is DType.INT8 else SHORTS
        found = materialize(self.entries(t, domain))
        return float(np.abs(found, out=np.zeros_like(found), where=~(found < least)).max())

    def truth(self, t: Tosa) -> Value:
        """What it computes, if that is truth values: a lookup of 0 and 1."""
        q = self.source.q
        if q.dtype is DType.INT8:
            return t.cast(t.table(q, t.cast(self.entries(t, BYTES), DType.INT8)), DType.BOOL)
        return t.cast(gathered(t, q, materialize(self.entries(t, SHORTS)), DType.INT8), DType.BOOL)

    def entries(self, t: Tosa, domain: range) -> Value:
        """The constant [N] of the function at these integers, fp32 or bool."""
        dtype = DType.INT8 if domain is BYTES else DType.INT32
        places = t.once(domain, lambda: literal(np.array(domain), dtype, dtype.name.lower()))
        folding = copy(t)
        folding.folded_bytes = 4 * max(len(domain), len(SHORTS))  # no file has them
        found = self.function(folding, Scaled(places, self.source.scale, self.source.zero_point).real(folding))
        t.require(found.constant is not None and found.shape == places.shape, "it is no function of each element alone")
        return found

    def real(self, t: Tosa) -> Value:
        return self.function(t, self.source.real(t))

    def pointwise(self) -> Pointwise | None:
        return self

    def moved(self, t: Tosa, move: Function, shape: Shape) -> Lazy:
        return type(self)(Scaled(move(t, self.source.q), self.source.scale, self.source.zero_point), self.function)


class Moved(Lazy):
    """A lazy value whose elements move once they are quantized."""

    __slots__ = ("move", "of")

    def __init__(self, of: Lazy, move: Function, shape: Shape) -> None:
        super().__init__(shape)
        self.of, self.move = of, move

    def integer(self, t: Tosa, to: Quantization) -> Value:
        return self.move(t, self.of.integer(t, to))

    def reach(self, t: Tosa, least: float = -math.inf) -> float:
        return self.of.reach(t, least)

    def real(self, t: Tosa) -> Value:
        return self.move(t, self.of.real(t))


class Joined(Lazy):
    """Elements of several values, each of which is quantized before: CONCAT, SELECT."""

    __slots__ = ("join", "parts")

    def __init__(self, parts: Sequence[Value], join: Callable[[Tosa, list[Value]], Value], shape: Shape) -> None:
        super().__init__(shape)
        self.parts, self.join = parts, join

    def integer(self, t: Tosa, to: Quantization) -> Value:
        return self.join(t, [integer(t, part, to) for part in self.parts])

    def reach(self, t: Tosa, least: float = -math.inf) -> float:
        return max([reach(t, part, least) for part in self.parts])

    def real(self, t: Tosa) -> Value:
        return self.join(t, [real(t, part) for part in self.parts])


def trial() -> Tosa:
    """A builder for any target, on which a rule shows what shapes it makes."""
    return Tosa(_any_target())


@cache
def _any_target() -> TosaSpec:
    """Made when it is needed, since it reads the table of the draft."""
    return TosaSpec.parse("TOSA-1.1+FP+INT+shape")


def any_lazy(arguments: list[Any], kind: type[Lazy] = Lazy) -> bool:
    """Whether one of a rule's arguments, or of a list of them, is a lazy value of that kind."""
    for argument in arguments:
        if isinstance(argument, kind) or (isinstance(argument, list) and any_lazy(argument, kind)):
            return True
    return False


def real(t: Tosa, value: Value) -> Value:
    """A value that is computed."""
    return value.real(t) if isinstance(value, Lazy) else value


def integer(t: Tosa, value: Value, to: Quantization) -> Value:
    """The integers of a lazy value or of a constant; Unsupported for floats that are computed."""
    if isinstance(value, Lazy):
        return value.integer(t, to)
    fixed_point = to.dtype is DType.INT32 and "FP" in t.spec.profiles
    t.require(value.constant is not None or fixed_point, f"the operand {value!r} is computed in floats")
    return quantized(t, value, to)


def reach(t: Tosa, value: Value, least: float) -> float:
    """As ``Lazy.reach``; infinite for floats that are computed."""
    if isinstance(value, Lazy):
        return value.reach(t, least)
    if value.constant is None:
        return math.inf
    elements = materialize(value)
    return float(np.abs(elements, out=np.zeros_like(elements), where=~(elements < least)).max())


def quantized(t: Tosa, x: Value, to: Quantization) -> Value:
    """fp32 [*S] -> integers [*S], as ``quantize_per_tensor`` computes it: times the inverse scale, to even, limited."""
    scaled = t.clamp(t.mul(x, 1 / to.scale), float(to.low - to.zero_point), float(to.high - to.zero_point))
    y = t.cast(scaled, to.dtype if to.zero_point == 0 else DType.INT32)
    found = y if to.zero_point == 0 else t.cast(t.add(y, to.zero_point), to.dtype)
    found.range = to.range
    return found


def limit(t: Tosa, q: Value, low: int, high: int) -> Value:
    """Integers between ``low`` and ``high``; no operator if they are known to be."""
    if inside(range_of(q), (low, high)):
        return q
    if q.dtype in SMALL:
        limited = t.clamp(q, low, high)
    else:
        least, most = range_of(q)
        above = q if low <= least else t.maximum(q, low)
        limited = above if most <= high else t.minimum(above, high)
    limited.range = (low, high)
    return limited


def rescale(t: Tosa, x: Scaled, scale: float, zero_point: int, dtype: DType) -> Value:
    """The integers of ``x`` by another scale: one RESCALE, on the last axis if ``x`` has a scale for each channel."""
    ratio = x.scale.over(scale)
    t.require(x.q.dtype is not DType.INT4, "RESCALE does not take int4")
    if x.axis is None or ratio.channels == 1:
        y = t.rescale(x.q, *multipliers(t, ratio, 31), x.zero_point, zero_point, dtype)
        if not ratio.tensors:
            y.range = _rescaled(range_of(x.q), x.zero_point, ratio.factor, zero_point, dtype)
        return y
    perms = [*[a for a in range(x.rank) if a != x.axis], x.axis]
    last = t.transpose(x.q, perms)
    y = t.rescale(last, *multipliers(t, ratio, 31), x.zero_point, zero_point, dtype)
    return t.transpose(y, [perms.index(a) for a in range(x.rank)])


def _rescaled(range: Range, before: int, ratio: float, after: int, dtype: DType) -> Range:
    """Where the integers of a RESCALE lie."""
    low, high = range_of_type(dtype)
    ends = [(end - before) * ratio + after for end in range]
    return max(math.floor(ends[0]), low), min(math.ceil(ends[1]), high)


def operand(t: Tosa, value: Value, what: str) -> Scaled:
    """``value`` as integers of few bits; Unsupported if nothing quantized it."""
    if isinstance(value, Scaled) and value.q.dtype in SMALL:
        return value
    if isinstance(value, Clamped) and isinstance(value.of, Scaled) and value.of.is_small:
        return value.on_grid(t, value.of)
    why = "comes from an operator whose result nothing quantizes" if isinstance(value, Lazy) else "is not quantized"
    raise refused(f"{what} {why}")

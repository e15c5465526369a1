"""``Tosa``, the ``t`` of every rule: one method an operator, named as the specification names it, in lower case.

A method adds the operands that are the same everywhere (zero points, the shift of MUL, shapes), infers the result's
type, asks the target whether it takes the operator, and appends it. An operator whose operands are all constant is a
constant: nothing is emitted, and it is computed when the file is written.

TOSA 1.0 has no int64. Constants fold in it; what is computed at run time is int32 in the graph, and a rule sees a value
that calls itself int64. The builder knows both, and refuses a result that is not proven to fit. A target with EXT-INT64
computes in int64, and in int32 only what it has no operator for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch

from ..evaluate.kernels import stored_numbers
from ..ir import operators as tosa
from ..ir.graph import Folded, Graph, Illegal, Literal, Operator, Value, literal, shape_value
from ..ir.sizes import Share, is_dynamic, products
from ..ir.sizes import range_of as size_range
from ..ir.types import ARRAY_DTYPES, BYTES, FLOATS, SHORT_FLOATS, DType, NanMode, ResizeMode, RoundingMode, Type
from ..spec import TosaSpec
from ..spec.target import alternatives
from .as_floats import INDICES, runs_as_floats
from .hints import int64_result, other_target
from .ranges import COUNTED, INT32, Range, inside, meet, range_of, result_range
from .torch_types import TORCH_DTYPES, refused

Operand = Value | float
"""A value, or a Python number that becomes a constant of the other operand's type."""
Shape = tuple[int, ...]

MOST_NUMBERS = 1 << 16
"""The longest row 0, 1, 2, .. that is stored, to take a part of it at run time; a longer one is made of rows."""
ROW = 1 << 15
"""Numbers in such a row: MOST_NUMBERS of them are as many as a tensor can have along one axis."""
FOLDED_BYTES = 64 * 1024
"""A folded constant may be this large even if its operands are smaller; a larger one would make the file explode."""


class Tosa:
    """Builds operators for the target ``spec``.

    ``operators`` are those made so far, ``source`` is where the next ones come from.
    """

    def __init__(self, spec: TosaSpec) -> None:
        self.spec = spec
        self.has_int64 = spec.has_int64
        self.operators: list[Operator] = []
        self.source: Any = None
        self._constants: dict[Any, Value] = {}
        self._proven: Range | None = None
        self._narrow: dict[Value, Value] = {}
        self._floats: dict[Value, Value] = {}
        self._depth = 0
        self.rounded_number = False
        """Whether a number had to be rounded to become a constant of short floats; set back by who asks."""

    def takes(self, cls: type[Operator], inputs: Sequence[Value], **attributes: Any) -> bool:
        """Whether the target has the operator for values of these types."""
        operator, types = self._inferred(cls, inputs, attributes)
        operator.outputs = tuple(map(Value, types))
        return self.spec.why_not(operator) is None

    def require(self, ok: bool, why: str) -> None:
        """Raise Unsupported(why) unless ``ok``."""
        if not ok:
            raise refused(why)

    def expect_one_type(self, what: str, *values: Value | None) -> None:
        """Unsupported unless all values that are there have one element type; ``what`` takes them."""
        types = sorted({v.dtype for v in values if v is not None})
        self.require(len(types) == 1, f"{what} of mixed types ({', '.join(map(str, types))}) is not lowered")

    # ---- making operators and constants

    def emit(self, cls: type[Operator], inputs: Sequence[Value], fold: bool = True, **attributes: Any) -> Value:
        """The (first) result of a new operator; a constant, and nothing emitted, if its operands are constant."""
        if fold and _all_constant(inputs):
            return self._folded(cls, inputs, attributes)
        return self._appended(*self._inferred(cls, inputs, attributes))

    def _inferred(
        self, cls: type[Operator], inputs: Sequence[Value], attributes: dict[str, Any]
    ) -> tuple[Operator, tuple[Type, ...]]:
        operator = cls(inputs, self.source, **attributes)
        try:
            return operator, operator.infer()
        except Illegal as illegal:
            raise refused(f"TOSA {operator.name}: {illegal}") from illegal

    def _folded(self, cls: type[Operator], inputs: Sequence[Value], attributes: dict[str, Any]) -> Value:
        """A constant that is computed when the file is written; the same one if it was asked for before."""
        key = (cls, *inputs, repr(attributes))
        if key not in self._constants:
            operator, types = self._inferred(cls, inputs, attributes)
            if not _fits(inputs, types):
                return self._appended(operator, types)
            operator.outputs = tuple([Value(type, Folded(operator, i)) for i, type in enumerate(types)])
            _bound_results(operator)
            self._constants[key] = operator.outputs[0]
        return self._constants[key]

    def _appended(self, operator: Operator, types: tuple[Type, ...]) -> Value:
        operator.outputs = tuple([Value(type, producer=operator) for type in types])
        _bound_results(operator)
        if self._proven is not None:
            for value in operator.outputs:
                value.range = value.range and meet(value.range, self._proven)
        is_wide = any([v.dtype is DType.INT64 for v in (*operator.inputs, *operator.outputs)])
        if is_wide and not self.has_int64:
            return self._appended_narrow(operator)
        why = self.spec.why_not(operator)
        if why is not None:
            if is_wide:
                return self._appended_narrow(operator)
            if "INT" not in self.spec.profiles and runs_as_floats(operator):
                return self._appended_as_floats(operator)
            ways = alternatives(operator, self.spec.version)
            raise refused(other_target(self.spec, why, [] if isinstance(ways, str) else ways))
        self.operators.append(operator)
        return operator.outputs[0]

    def copied(self, old: Operator, attributes: str, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
        """The results of ``old`` on other operands that are as constant and have the same types: nothing is checked.

        ``attributes``: those of ``old``, as text.
        """
        cls = type(old)
        new = cls.__new__(cls)
        new.__dict__.update(old.__dict__, inputs=inputs, source=self.source)
        if old.outputs[0].constant is None:
            new.outputs = tuple([Value(v.type, producer=new) for v in old.outputs])
            self.operators.append(new)
            return new.outputs
        key = (cls, *inputs, attributes)
        if key not in self._constants:
            new.outputs = tuple([Value(v.type, Folded(new, i)) for i, v in enumerate(old.outputs)])
            self._constants[key] = new.outputs[0]
        return self._constants[key].constant.operator.outputs  # type: ignore[union-attr]

    @contextmanager
    def proven(self, range: Range) -> Iterator[None]:
        """Integers that are computed inside lie in ``range``, whatever the ranges of their operands prove."""
        self._proven, before = range, self._proven
        try:
            yield
        finally:
            self._proven = before

    # ---- control flow

    @contextmanager
    def inside(self, operators: list[Operator]) -> Iterator[None]:
        """Operators are appended to those of a graph of control flow; Unsupported if it lies too deep in others."""
        deep = (
            f"control flow is nested {self._depth + 1} deep, and MAX_NESTING of the target is {self.spec.max_nesting}"
        )
        self.require(self._depth + 1 < self.spec.max_nesting, deep)  # as ``validate`` counts
        self._depth += 1
        try:
            with self.appending_to(operators):
                yield
        finally:
            self._depth -= 1

    @contextmanager
    def appending_to(self, operators: list[Operator]) -> Iterator[None]:
        """Operators are appended to another list; afterwards to the one before, with the source before."""
        outer, source = self.operators, self.source
        self.operators = operators
        try:
            yield
        finally:
            self.operators, self.source = outer, source

    def control(self, cls: type[Operator], inputs: Sequence[Value], **graphs: Graph) -> tuple[Value, ...]:
        """The results of COND_IF or WHILE_LOOP; int64 is narrowed by the caller."""
        operator, types = self._inferred(cls, inputs, graphs)
        operator.outputs = tuple([Value(type, producer=operator) for type in types])
        self.require((why := self.spec.why_not(operator)) is None, f"{why}")
        self.operators.append(operator)
        return operator.outputs

    # ---- state

    def variable(self, name: str, initial: Value) -> Value:
        """What a variable holds when the program starts: ``initial``, a constant, before the first call."""
        self._appended_effect(tosa.VARIABLE((initial,), self.source, variable=name))
        return self.emit(tosa.VARIABLE_READ, (), fold=False, variable=name, types=(initial.type,))

    def variable_write(self, name: str, value: Value) -> None:
        """The variable holds ``value`` from here on, in the next call too."""
        self._appended_effect(tosa.VARIABLE_WRITE((value,), self.source, variable=name))

    def _appended_effect(self, operator: Operator) -> None:
        """Append what has no result."""
        why = self.spec.why_not(operator)
        self.require(why is None, f"{why}")
        self.operators.append(operator)

    # ---- int64 that runs as int32

    def _appended_narrow(self, wide: Operator) -> Value:
        """The result of an operator on int64, which the graph has on int32."""
        (result,) = wide.outputs
        attributes = wide.attribute_values()
        if attributes.get("dtype") is DType.INT64:
            attributes["dtype"] = DType.INT32
        narrow = type(wide)([self.narrowed(v) for v in wide.inputs], self.source, **attributes)
        if result.dtype is not DType.INT64:
            return self._appended(narrow, (result.type,))
        self._expect_32_bits(result, f"TOSA {wide.name}: its int64 result")
        return self.widened(self._appended(narrow, (Type(result.shape, DType.INT32),)), result.range)

    def narrowed(self, value: Value) -> Value:
        """``value``; of int64, the int32 with the same elements. Unsupported if it may not fit."""
        if value.dtype is not DType.INT64:
            return value
        if value not in self._narrow:
            self._expect_32_bits(value, f"the int64 {'constant' if value.constant else 'value'} {value.name}".rstrip())
            narrow = Value(Type(value.shape, DType.INT32), name=value.name)
            if value.constant is not None or self.has_int64:
                narrow = self.emit(tosa.CAST, (value,), dtype=DType.INT32)
            narrow.range, self._narrow[value] = value.range, narrow
        return self._narrow[value]

    def widened(self, narrow: Value, range: Range | None = None) -> Value:
        """An int32 of the graph as the int64 that rules see, whose elements lie in ``range`` if that is given."""
        wide = Value(Type(narrow.shape, DType.INT64), name=narrow.name)
        if self.has_int64:
            wide = self.emit(tosa.CAST, (narrow,), dtype=DType.INT64)
        wide.range = range_of(narrow) if range is None else range
        self._narrow[wide] = narrow
        return wide

    def held(self, value: Value) -> Value:
        """What the graph has for a value that rules see: of int64 the int32, unless the target has int64 itself."""
        return value if self.has_int64 else self.narrowed(value)

    def held_type(self, type: Type) -> Type:
        """The type of what the graph has for a value of ``type``."""
        return type._replace(dtype=DType.INT32) if type.dtype is DType.INT64 and not self.has_int64 else type

    def seen(self, held: Value, type: Type, range: Range | None) -> Value:
        """The way back: what rules see of ``held``, a value of ``type`` in that range."""
        if held.type != type:
            return self.widened(held, range)
        held.range = range
        return held

    def _expect_32_bits(self, value: Value, what: str) -> None:
        low, high = range_of(value)
        if not inside((low, high), INT32):
            raise refused(int64_result(f"{what} may be from {low} to {high}, more than 32 bits hold"))

    # ---- int32 that runs as fp32 where the target has no integer arithmetic (see ``as_floats``)

    def _appended_as_floats(self, operator: Operator) -> Value:
        """The result of an operator on int32, computed on fp32."""
        (result,), index = operator.outputs, INDICES.get(type(operator))
        inputs = [v if k == index else self._exact(v) for k, v in enumerate(operator.inputs)]
        if type(operator) is not tosa.CAST:
            y = self.emit(type(operator), inputs, fold=False, **operator.attribute_values())
        elif result.dtype is DType.BOOL:
            y = self.logical_not(self.equal(inputs[0], 0))
        else:
            y = self.select(inputs[0], self.constant(1, DType.FP32, (1,) * result.rank), 0.0)
        if result.dtype is not DType.INT32:
            return y
        whole = self.emit(tosa.CAST, (y,), dtype=result.dtype)
        whole.range, self._floats[whole] = result.range, y
        return whole

    def _exact(self, value: Value) -> Value:
        """An int32 that fp32 holds, as fp32; cast once."""
        if value.dtype is not DType.INT32:
            return value
        if value.constant is not None:
            return self.emit(tosa.CAST, (value,), dtype=DType.FP32)
        if value not in self._floats:
            self._floats[value] = self.emit(tosa.CAST, (value,), dtype=DType.FP32)
        return self._floats[value]

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """Constants that ``make`` makes, the same ones for an equal ``key``."""
        if key not in self._constants:
            self._constants[key] = make()
        return self._constants[key]

    def literals(self) -> Iterator[tuple[Any, Value]]:
        """Shapes and numbers that were made, each with the key by which it is made once."""
        for key, value in self._constants.items():
            if isinstance(value, Value) and isinstance(value.constant, Literal):
                yield key, value

    def intern(self, key: Any, literal: Value) -> Value:
        """A literal that was made elsewhere, or the equal one that was made here by that ``key``."""
        return self._constants.setdefault(key, literal)

    def shape(self, entries: Sequence[int]) -> Value:
        """A SHAPE with these entries; Unsupported if they are not known and the target does not compute with sizes."""
        key = tuple(entries)
        if key not in self._constants:
            made = shape_value(key)
            if made.constant is None and (why := self.spec.why_not_sizes()):
                raise refused(f"{why}: {list(key)}")
            self._constants[key] = made
        return self._constants[key]

    def constant(self, number: float, dtype: DType, shape: Shape = (1,)) -> Value:
        """A constant filled with ``number``, made once; 0.0 and -0.0 are two."""
        if is_dynamic(number):
            return self._counted(cast(int, number), dtype, shape)
        if isinstance(number, Share):
            return self.mul(self.reciprocal(self._counted(number.size, dtype, shape)), number.number)
        number = float(number) if dtype in FLOATS else int(number)
        key = (repr(number), dtype, shape)
        if key not in self._constants:
            self._constants[key] = Value(Type(shape, dtype), Literal(_filled(number, dtype, shape)))
        if dtype in SHORT_FLOATS and not math.isnan(number):
            self.rounded_number |= number != float(torch.tensor(number, dtype=TORCH_DTYPES[dtype]))
        return self._constants[key]

    def _counted(self, size: int, dtype: DType, shape: Shape) -> Value:
        """A tensor of a size that is known at run time only: so many ones are added up. Floats count up to 2**24."""
        counting = DType.FP32 if dtype in FLOATS else DType.INT32
        total: Value | None = None
        for count, factor in products(size):
            ones = self.tile(self.constant(1, counting), (count,))
            part = self.mul(self.reduce_sum(ones, 0), factor)
            total = part if total is None else self.add(total, part)
        assert total is not None
        return self.tile(self.reshape(self.cast(total, dtype), (1,) * len(shape)), shape)

    def like(self, number: float, value: Value) -> Value:
        """``number`` as a constant that broadcasts with ``value``."""
        return self.constant(number, value.dtype, (1,) * value.rank)

    def numbers(self, count: int, dtype: DType) -> Value:
        """0, 1, .., count - 1 [count]; of a count that is known at run time only, the beginning of the longest row."""
        _, longest = size_range(count)
        if is_dynamic(count) and longest > MOST_NUMBERS:
            rows = -(-count // ROW)
            starts = self.mul(self.reshape(self.numbers(rows, dtype), (rows, 1)), ROW)
            every = self.add(starts, self.numbers(ROW, dtype))
            return self.slice(self.reshape(every, (rows * ROW,)), (0,), (count,))
        key = ("numbers", longest, dtype)
        if key not in self._constants:
            self._constants[key] = literal(np.arange(longest), dtype, ARRAY_DTYPES[dtype])
        return self.slice(self._constants[key], (0,), (count,))

    def zero(self, value: Value) -> Value:
        """The zero point of a value that is not quantized, [1]."""
        return self.constant(0, value.dtype)

    def no_bias(self, x: Value) -> Value:
        """The bias of a convolution of ``x`` that has none, [1]."""
        return self.constant(0, x.dtype)

    def accumulator(self, x: Value) -> DType:
        """What products with ``x``, and averages of it, are summed in."""
        return DType.FP32

    def _pair(self, left: Operand, right: Operand) -> tuple[Value, Value]:
        """Both operands as values of one rank: the lower one gets leading axes of size 1."""
        if not isinstance(left, Value):
            assert isinstance(right, Value)
            return self.like(left, right), right
        if not isinstance(right, Value):
            return left, self.like(right, left)
        rank = max(left.rank, right.rank)
        return self.ranked(left, rank), self.ranked(right, rank)

    def ranked(self, x: Value, rank: int) -> Value:
        """``x`` with leading axes of size 1 up to ``rank``."""
        return x if x.rank == rank else self.reshape(x, (1,) * (rank - x.rank) + x.shape)

    def _binary(self, cls: type[Operator], left: Operand, right: Operand, **attributes: Any) -> Value:
        return self.emit(cls, self._pair(left, right), **attributes)

    # ---- elementwise, one operand

    def abs(self, x: Value) -> Value:
        return self.emit(tosa.ABS, (x,))

    def bitwise_not(self, x: Value) -> Value:
        return self.emit(tosa.BITWISE_NOT, (x,))

    def ceil(self, x: Value) -> Value:
        return self.emit(tosa.CEIL, (x,))

    def clz(self, x: Value) -> Value:
        """Leading zero bits of int32."""
        return self.emit(tosa.CLZ, (x,))

    def cos(self, x: Value) -> Value:
        return self.emit(tosa.COS, (x,))

    def erf(self, x: Value) -> Value:
        return self.emit(tosa.ERF, (x,))

    def exp(self, x: Value) -> Value:
        return self.emit(tosa.EXP, (x,))

    def floor(self, x: Value) -> Value:
        return self.emit(tosa.FLOOR, (x,))

    def identity(self, x: Value) -> Value:
        """Always an operator of its own: what makes an input or a constant a result of the graph."""
        return self.emit(tosa.IDENTITY, (x,), fold=False)

    def log(self, x: Value) -> Value:
        return self.emit(tosa.LOG, (x,))

    def logical_not(self, x: Value) -> Value:
        return self.emit(tosa.LOGICAL_NOT, (x,))

    def negate(self, x: Value) -> Value:
        return self.emit(tosa.NEGATE, (x, self.zero(x), self.zero(x)))

    def reciprocal(self, x: Value) -> Value:
        return self.emit(tosa.RECIPROCAL, (x,))

    def rsqrt(self, x: Value) -> Value:
        return self.emit(tosa.RSQRT, (x,))

    def sigmoid(self, x: Value) -> Value:
        return self.emit(tosa.SIGMOID, (x,))

    def sin(self, x: Value) -> Value:
        return self.emit(tosa.SIN, (x,))

    def tanh(self, x: Value) -> Value:
        return self.emit(tosa.TANH, (x,))

    def clamp(self, x: Value, low: float, high: float) -> Value:
        """``low`` .. ``high`` may be infinite; NaN stays NaN."""
        return self.emit(tosa.CLAMP, (x,), min_val=low, max_val=high, nan_mode=NanMode.PROPAGATE)

    def cast(self, x: Value, dtype: DType) -> Value:
        """TOSA's own CAST: a float becomes the nearest integer (torch cuts: see ``cast.converted``)."""
        if x.constant is None and {x.dtype, dtype} == {DType.INT32, DType.INT64} and not self.has_int64:
            return self.narrowed(x) if dtype is DType.INT32 else self.widened(x)
        if x.dtype is DType.INT64 and self.has_int64 and dtype in (DType.INT8, DType.INT16):
            x = self.emit(tosa.CAST, (x,), dtype=DType.INT32)  # in two steps: the low bits of the low bits
        return x if x.dtype is dtype else self.emit(tosa.CAST, (x,), dtype=dtype)

    def table(self, x: Value, entries: Value) -> Value:
        """x int8, entries int8 [256] -> int8; or int16 and int16 [513] -> int32 with 7 more bits."""
        return self.emit(tosa.TABLE, (x, entries))

    def rescale(self, x: Value, multiplier: Value, shift: Value, before: int, after: int, dtype: DType) -> Value:
        """(x - before) * multiplier / 2**shift + after; several multipliers are for the indices of the last axis."""
        operands = (x, multiplier, shift, self.constant(before, x.dtype), self.constant(after, dtype))
        return self.emit(
            tosa.RESCALE,
            operands,
            scale32=multiplier.dtype is DType.INT32,
            rounding_mode=RoundingMode.SINGLE_ROUND,
            per_channel=multiplier.shape != (1,),
            input_unsigned=False,
            output_unsigned=False,
            dtype=dtype,
        )

    # ---- elementwise, two and three operands that broadcast; numbers become constants

    def add(self, left: Operand, right: Operand) -> Value:
        return self._binary(tosa.ADD, left, right)

    def sub(self, left: Operand, right: Operand) -> Value:
        return self._binary(tosa.SUB, left, right)

    def mul(self, left: Operand, right: Operand, shift: int = 0) -> Value:
        """Of int32, ``shift`` low bits of the product are rounded off."""
        return self.emit(tosa.MUL, (*self._pair(left, right), self.constant(shift, DType.INT8)))

    def pow(self, left: Operand, right: Operand) -> Value:
        return self._binary(tosa.POW, left, right)

    def maximum(self, left: Operand, right: Operand, nan_mode: NanMode = NanMode.PROPAGATE) -> Value:
        return self._binary(tosa.MAXIMUM, left, right, nan_mode=nan_mode)

    def minimum(self, left: Operand, right: Operand, nan_mode: NanMode = NanMode.PROPAGATE) -> Value:
        return self._binary(tosa.MINIMUM, left, right, nan_mode=nan_mode)

    def intdiv(self, left: Operand, right: Operand) -> Value:
        """Of int32, towards zero."""
        return self._binary(tosa.INTDIV, left, right)

    def bitwise_and(self, left: Operand, right: Operand) -> Value:
        return self._binary(tosa.BITWISE_AND, left, right)

    def bitwise_or(self, left: Operand, right: Operand) -> Value:
        return self._binary(tosa.BITWISE_OR, left, right)

    def bitwise_xor(self, left: Operand, right: Operand) -> Value:
        return self._binary(tosa.BITWISE_XOR, left, right)

    def left_shift(self, left: Operand, right: Operand) -> Value:
        """By 0 up to one less than the element's bits."""
        return self._binary(tosa.LOGICAL_LEFT_SHIFT, left, right)

    def right_shift(self, left: Operand, right: Operand) -> Value:
        """As ``left_shift``; keeps the sign and rounds down."""
        return self._binary(tosa.ARITHMETIC_RIGHT_SHIFT, left, right, round=False)

    def equal(self, left: Operand, right: Operand) -> Value:
        return self._binary(tosa.EQUAL, left, right)

    def greater(self, left: Operand, right: Operand) -> Value:
        return self._binary(tosa.GREATER, left, right)

    def greater_equal(self, left: Operand, right: Operand) -> Value:
        return self._binary(tosa.GREATER_EQUAL, left, right)

    def logical_and(self, left: Operand, right: Operand) -> Value:
        return self._binary(tosa.LOGICAL_AND, left, right)

    def logical_or(self, left: Operand, right: Operand) -> Value:
        return self._binary(tosa.LOGICAL_OR, left, right)

    def logical_xor(self, left: Operand, right: Operand) -> Value:
        return self._binary(tosa.LOGICAL_XOR, left, right)

    def select(self, condition: Value, on_true: Operand, on_false: Operand) -> Value:
        """Broadcasts its three operands; two numbers need one of them as a value."""
        on_true, on_false = self._pair(on_true, on_false)
        rank = max(condition.rank, on_true.rank)
        return self.emit(tosa.SELECT, [self.ranked(v, rank) for v in (condition, on_true, on_false)])

    # ---- reductions: the axis keeps size 1

    def reduce_max(self, x: Value, axis: int) -> Value:
        return self.emit(tosa.REDUCE_MAX, (x,), axis=axis, nan_mode=NanMode.PROPAGATE)

    def reduce_min(self, x: Value, axis: int) -> Value:
        return self.emit(tosa.REDUCE_MIN, (x,), axis=axis, nan_mode=NanMode.PROPAGATE)

    def reduce_all(self, x: Value, axis: int) -> Value:
        return self.emit(tosa.REDUCE_ALL, (x,), axis=axis)

    def reduce_any(self, x: Value, axis: int) -> Value:
        return self.emit(tosa.REDUCE_ANY, (x,), axis=axis)

    def reduce_product(self, x: Value, axis: int) -> Value:
        return self.emit(tosa.REDUCE_PRODUCT, (x,), axis=axis)

    def reduce_sum(self, x: Value, axis: int) -> Value:
        return self.emit(tosa.REDUCE_SUM, (x,), axis=axis)

    def argmax(self, x: Value, axis: int) -> Value:
        """Index of the first maximum, int32, without the axis; NaN is the greatest."""
        return self.emit(tosa.ARGMAX, (x,), axis=axis, nan_mode=NanMode.PROPAGATE)

    # ---- data layout; what would change nothing emits nothing

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        return x if x.type.shape == tuple(shape) else self.emit(tosa.RESHAPE, (x, self.shape(shape)))

    def transpose(self, x: Value, perms: Sequence[int]) -> Value:
        """Axis i of the result is axis ``perms[i]`` of ``x``. A constant transposed twice is transposed once."""
        folded = x.constant
        if isinstance(folded, Folded) and isinstance(folded.operator, tosa.TRANSPOSE):
            return self.transpose(folded.operator.input1, [folded.operator.perms[p] for p in perms])
        return x if list(perms) == list(range(x.rank)) else self.emit(tosa.TRANSPOSE, (x,), perms=tuple(perms))

    def slice(self, x: Value, start: Sequence[int], size: Sequence[int]) -> Value:
        if x.type.shape == tuple(size):
            return x
        return self.emit(tosa.SLICE, (x, self.shape(start), self.shape(size)))

    def tile(self, x: Value, multiples: Sequence[int]) -> Value:
        return x if set(multiples) <= {1} else self.emit(tosa.TILE, (x, self.shape(multiples)))

    def pad(self, x: Value, padding: Sequence[int], number: Operand = 0) -> Value:
        """``padding`` is (before, after) for each axis; ``number`` may be a constant [1]."""
        if not any(padding):
            return x
        filling = number if isinstance(number, Value) else self.constant(number, x.dtype)
        return self.emit(tosa.PAD, (x, self.shape(padding), filling))

    def concat(self, values: Sequence[Value], axis: int) -> Value:
        return values[0] if len(values) == 1 else self.emit(tosa.CONCAT, values, axis=axis)

    def reverse(self, x: Value, axis: int) -> Value:
        return self.emit(tosa.REVERSE, (x,), axis=axis)

    def gather(self, values: Value, indices: Value) -> Value:
        """values [N,K,C], indices [N,W] -> [N,W,C]"""
        return self.emit(tosa.GATHER, (values, indices))

    def scatter(self, values: Value, indices: Value, source: Value) -> Value:
        """values [N,K,C], indices [N,W] (no row twice), source [N,W,C] -> [N,K,C]"""
        return self.emit(tosa.SCATTER, (values, indices, source))

    # ---- convolution, pooling, matrices: images are NHWC

    def conv2d(self, x: Value, weight: Value, bias: Value, pad: Shape, stride: Shape, dilation: Shape) -> Value:
        """x [N,H,W,C], weight [O,KH,KW,C], bias [O or 1] -> [N,H',W',O]; accumulated in fp32."""
        return self._convolution(tosa.CONV2D, x, weight, bias, pad, stride, dilation)

    def depthwise_conv2d(
        self, x: Value, weight: Value, bias: Value, pad: Shape, stride: Shape, dilation: Shape
    ) -> Value:
        """x [N,H,W,C], weight [KH,KW,C,M], bias [C*M or 1] -> [N,H',W',C*M]; accumulated in fp32."""
        return self._convolution(tosa.DEPTHWISE_CONV2D, x, weight, bias, pad, stride, dilation)

    def conv3d(self, x: Value, weight: Value, bias: Value, pad: Shape, stride: Shape, dilation: Shape) -> Value:
        """x [N,D,H,W,C], weight [O,KD,KH,KW,C], bias [O or 1] -> [N,D',H',W',O]; accumulated in fp32."""
        return self._convolution(tosa.CONV3D, x, weight, bias, pad, stride, dilation)

    def transpose_conv2d(self, x: Value, weight: Value, bias: Value, out_pad: Shape, stride: Shape) -> Value:
        """x [N,H,W,C], weight [O,KH,KW,C], bias [O or 1] -> [N,H',W',O]; accumulated in fp32."""
        operands = (x, weight, bias, self.zero(x), self.zero(weight))
        return self.emit(tosa.TRANSPOSE_CONV2D, operands, out_pad=out_pad, stride=stride, acc_type=self.accumulator(x))

    def _convolution(
        self, cls: type[Operator], x: Value, weight: Value, bias: Value, pad: Shape, stride: Shape, dilation: Shape
    ) -> Value:
        operands = (x, weight, bias, self.zero(x), self.zero(weight))
        acc_type = self.accumulator(x)
        return self.emit(cls, operands, pad=pad, stride=stride, dilation=dilation, acc_type=acc_type)

    def avg_pool2d(self, x: Value, kernel: Shape, stride: Shape, pad: Shape) -> Value:
        """x [N,H,W,C] -> [N,H',W',C]; padding does not count; accumulated in fp32."""
        operands = (x, self.zero(x), self.zero(x))
        acc_type = self.accumulator(x)
        return self.emit(tosa.AVG_POOL2D, operands, kernel=kernel, stride=stride, pad=pad, acc_type=acc_type)

    def max_pool2d(self, x: Value, kernel: Shape, stride: Shape, pad: Shape) -> Value:
        """x [N,H,W,C] -> [N,H',W',C]; NaN wins."""
        return self.emit(tosa.MAX_POOL2D, (x,), kernel=kernel, stride=stride, pad=pad, nan_mode=NanMode.PROPAGATE)

    def matmul(self, left: Value, right: Value) -> Value:
        """left [B,L,K], right [B,K,M] -> [B,L,M]; accumulated in fp32, also for fp16."""
        operands = (left, right, self.zero(left), self.zero(right))
        return self.cast(self.emit(tosa.MATMUL, operands, dtype=DType.FP32), left.dtype)

    def resize(self, x: Value, scale: Shape, offset: Shape, border: Shape, mode: ResizeMode) -> Value:
        """x [N,H,W,C] -> [N,H',W',C]; scale is (y_n, y_d, x_n, x_d), the others (y, x)."""
        operands = (x, self.shape(scale), self.shape(offset), self.shape(border))
        return self.emit(tosa.RESIZE, operands, mode=mode)


def _bound_results(operator: Operator) -> None:
    for value in operator.outputs:
        if value.dtype in COUNTED and value.dtype is not DType.BOOL:
            value.range = result_range(operator, value.dtype)


def _all_constant(values: Sequence[Value]) -> bool:
    for value in values:
        if value.constant is None:
            return False
    return True


def _fits(inputs: Sequence[Value], types: Sequence[Type]) -> bool:
    """Whether a folded constant does not make the file explode."""
    size = _bytes(types)
    return size <= FOLDED_BYTES or size <= _bytes([v.type for v in inputs])


def _bytes(types: Sequence[Type]) -> int:
    return sum([math.prod(shape) * BYTES[dtype] for shape, dtype in types])


def _filled(number: float, dtype: DType, shape: Shape) -> Any:
    """An array of ``number``; Unsupported if an integer type cannot hold it. Floats overflow to infinity."""
    try:
        with np.errstate(over="ignore"):
            return stored_numbers(np.full(shape, number, None if dtype is DType.BF16 else ARRAY_DTYPES[dtype]), dtype)
    except (OverflowError, ValueError) as error:
        raise refused(f"the number {number} does not fit into {dtype}") from error

"""``Operators`` has one method for each TOSA operator, named in lower case.

A method adds the operands that are always the same (zero points, the shift of MUL,
shapes) and emits the operator (``emitter``), with integers in a width that the target
has (``integer_widths``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...ir import operators as tosa
from ...ir.dynamic_sizes import waits
from ...ir.graph import Folded, Operator, Value
from ...ir.types import DType, NanMode, ResizeMode, RoundingMode
from ..ranges.value_ranges import inside, range_of, range_of_type
from .emitter import Shape
from .integer_widths import IntegerWidths
from .regions import Regions

Operand = Value | float
"""A value, or a Python number that becomes a constant of the other operand's type."""


class Operators(IntegerWidths, Regions):
    """Builds operators for the target ``spec``.

    ``Tosa`` adds methods that take several operators. ``operators`` are the operators
    emitted so far. ``source`` is the node of the program that is lowered now.
    """

    # ---- operands that are always the same; builders for integers override them

    def like(self, number: float, value: Value) -> Value:
        """Return ``number`` as a constant [1,..,1] like ``value``.

        It has the type and rank of ``value``.
        """
        return self.constant(number, value.dtype, (1,) * value.rank)

    def zero(self, value: Value) -> Value:
        """Return the zero point [1] of a value that is not quantized: 0."""
        return self.constant(0, value.dtype)

    def zeros(self, left: Value, right: Value) -> tuple[Value, Value]:
        """Return the zero points [1] of both operands of a product."""
        return self.zero(left), self.zero(right)

    def no_bias(self, x: Value) -> Value:
        """Return the bias [1] for a convolution of ``x`` without bias: 0."""
        return self.constant(0, x.dtype)

    def accumulator(self, x: Value) -> DType:
        """Return the acc_type of convolutions and average pools of ``x``: fp32."""
        return DType.FP32

    def _pair(self, left: Operand, right: Operand) -> tuple[Value, Value]:
        """Return both operands as values of one rank; at least one is a value.

        A number becomes a constant [1,..,1] of the other operand's type. A value of
        lower rank gets leading axes of size 1.
        """
        if not isinstance(left, Value):
            assert isinstance(right, Value)
            return self.like(left, right), right
        if not isinstance(right, Value):
            return left, self.like(right, left)
        rank = max(left.rank, right.rank)
        return self.ranked(left, rank), self.ranked(right, rank)

    def ranked(self, x: Value, rank: int) -> Value:
        """Return ``x`` with leading axes of size 1, so that it has ``rank`` axes."""
        if x.rank == rank:
            return x
        leading = (1,) * (rank - x.rank)
        return self.reshape(x, leading + x.shape)

    def _binary(
        self, cls: type[Operator], left: Operand, right: Operand, **attributes: Any
    ) -> Value:
        """Return an operator on two operands that broadcast."""
        return self.emit(cls, self._pair(left, right), **attributes)

    # ---- elementwise, one operand

    def abs(self, x: Value) -> Value:
        return self.emit(tosa.ABS, (x,))

    def bitwise_not(self, x: Value) -> Value:
        return self.emit(tosa.BITWISE_NOT, (x,))

    def ceil(self, x: Value) -> Value:
        return self.emit(tosa.CEIL, (x,))

    def clz(self, x: Value) -> Value:
        """Return the number of leading zero bits of each int32."""
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
        """Copy an input or a constant, so that it can be a result. Never folded."""
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
        """Return each element clamped to ``low`` to ``high``; NaN stays NaN.

        The limits may be infinite.
        """
        if waits(low) or waits(high):
            # a limit known at run time only cannot be an attribute of CLAMP
            raised = self.maximum(x, low)
            return self.minimum(raised, high)
        nan_mode = NanMode.PROPAGATE
        return self.emit(tosa.CLAMP, (x,), min_val=low, max_val=high, nan_mode=nan_mode)

    def cast(self, x: Value, dtype: DType) -> Value:
        """Emit TOSA's CAST, which rounds a float to the nearest integer.

        ``promotion.converted`` truncates as torch does.
        """
        if self._is_free_cast(x, dtype):
            return self.narrowed(x) if dtype is DType.INT32 else self.widened(x)
        if x.dtype is dtype:
            return x
        is_small = dtype in (DType.INT8, DType.INT16)
        if is_small and x.dtype is DType.INT64 and self.has_int64:
            # TOSA has no CAST from int64 to these: two steps keep the same low bits
            x = self.emit(tosa.CAST, (x,), dtype=DType.INT32)
        if is_small and x.dtype is DType.INT32 and self._needs_rescale(x, dtype):
            one = self.constant(1 << 30, DType.INT32)
            shift = self.constant(30, DType.INT8)
            return self.rescale(x, one, shift, before=0, after=0, dtype=dtype)
        return self.emit(tosa.CAST, (x,), dtype=dtype)

    def _is_free_cast(self, x: Value, dtype: DType) -> bool:
        """Return whether a cast of a computed x to ``dtype`` takes no operator.

        On a target without int64, the graph has an int32 for both int32 and int64.
        """
        if self.has_int64 or x.constant is not None:
            return False
        return {x.dtype, dtype} == {DType.INT32, DType.INT64}

    def _needs_rescale(self, x: Value, dtype: DType) -> bool:
        """Return whether a RESCALE by 1 replaces the CAST of x to ``dtype``.

        Some targets, such as Ethos-U55, have no CAST from int32. RESCALE saturates where
        CAST keeps the low bits, so x has to be in range.
        """
        if x.constant is not None or not inside(range_of(x), range_of_type(dtype)):
            return False
        return not self.takes(tosa.CAST, (x,), dtype=dtype)

    def table(self, x: Value, entries: Value) -> Value:
        """x int8, entries int8 [256] -> int8.

        Or x int16, entries int16 [513] -> int32 with 7 fraction bits. For int16 there
        is an entry for every 128th integer x; results between two entries are
        interpolated linearly.
        """
        return self.emit(tosa.TABLE, (x, entries))

    def rescale(
        self,
        x: Value,
        multiplier: Value,
        shift: Value,
        before: int,
        after: int,
        dtype: DType,
    ) -> Value:
        """Return (x - before) * multiplier / 2**shift + after.

        The result is rounded and saturated to ``dtype``. ``before`` is the zero point
        of x, ``after`` that of the result. ``multiplier`` (int32 or int16) and
        ``shift`` (int8) are [1], or [C] with a number for each of C elements of the
        last axis.
        """
        zero_before = self.constant(before, x.dtype)
        zero_after = self.constant(after, dtype)
        return self.emit(
            tosa.RESCALE,
            (x, multiplier, shift, zero_before, zero_after),
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
        """Return left * right; for int32, left * right / 2**shift, rounded to nearest.

        Other types take a shift of 0 only.
        """
        factors = self._pair(left, right)
        bits = self.constant(shift, DType.INT8)
        return self.emit(tosa.MUL, (*factors, bits))

    def pow(self, left: Operand, right: Operand) -> Value:
        return self._binary(tosa.POW, left, right)

    def maximum(
        self, left: Operand, right: Operand, nan_mode: NanMode = NanMode.PROPAGATE
    ) -> Value:
        return self._binary(tosa.MAXIMUM, left, right, nan_mode=nan_mode)

    def minimum(
        self, left: Operand, right: Operand, nan_mode: NanMode = NanMode.PROPAGATE
    ) -> Value:
        return self._binary(tosa.MINIMUM, left, right, nan_mode=nan_mode)

    def intdiv(self, left: Operand, right: Operand) -> Value:
        """Return the quotient of int32, rounded towards zero."""
        return self._binary(tosa.INTDIV, left, right)

    def bitwise_and(self, left: Operand, right: Operand) -> Value:
        return self._binary(tosa.BITWISE_AND, left, right)

    def bitwise_or(self, left: Operand, right: Operand) -> Value:
        return self._binary(tosa.BITWISE_OR, left, right)

    def bitwise_xor(self, left: Operand, right: Operand) -> Value:
        return self._binary(tosa.BITWISE_XOR, left, right)

    def left_shift(self, left: Operand, right: Operand) -> Value:
        """Return left << right.

        ``right`` is at least 0 and less than the number of bits.
        """
        return self._binary(tosa.LOGICAL_LEFT_SHIFT, left, right)

    def right_shift_of_bits(self, left: Operand, right: Operand) -> Value:
        """Shift ``left`` right by ``right`` bits, with zeros from the left."""
        return self.emit(tosa.LOGICAL_RIGHT_SHIFT, self._pair(left, right))

    def right_shift(self, left: Operand, right: Operand) -> Value:
        """Return left >> right, rounded down; the sign is kept.

        ``right`` is at least 0 and less than the number of bits.
        """
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
        """Select ``on_true`` where ``condition`` is true, else ``on_false``.

        All three broadcast. ``on_true`` or ``on_false`` may be a number.
        """
        on_true, on_false = self._pair(on_true, on_false)
        rank = max(condition.rank, on_true.rank)
        operands = [self.ranked(v, rank) for v in (condition, on_true, on_false)]
        return self.emit(tosa.SELECT, operands)

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
        """Return the int32 index of the first maximum, without the axis.

        NaN is the largest element.
        """
        return self.emit(tosa.ARGMAX, (x,), axis=axis, nan_mode=NanMode.PROPAGATE)

    # ---- data layout; calls that change nothing emit no operator

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        if x.type.shape == tuple(shape):
            return x
        return self.emit(tosa.RESHAPE, (x, self.shape(shape)))

    def transpose(self, x: Value, perms: Sequence[int]) -> Value:
        """Axis i of the result is axis ``perms[i]`` of ``x``."""
        # if x is a constant that a TRANSPOSE was folded to, transpose that operator's
        # operand by both permutations
        folded = x.constant
        if isinstance(folded, Folded) and isinstance(folded.operator, tosa.TRANSPOSE):
            first = folded.operator.perms
            both = [first[axis] for axis in perms]
            return self.transpose(folded.operator.input1, both)
        if list(perms) == list(range(x.rank)):
            return x
        return self.emit(tosa.TRANSPOSE, (x,), perms=tuple(perms))

    def slice(self, x: Value, start: Sequence[int], size: Sequence[int]) -> Value:
        """Return ``size`` elements of ``x`` along each axis, beginning at ``start``."""
        # a slice of the whole size can only start at 0
        if x.type.shape == tuple(size):
            return x
        return self.emit(tosa.SLICE, (x, self.shape(start), self.shape(size)))

    def tile(self, x: Value, multiples: Sequence[int]) -> Value:
        """Return ``x`` repeated ``multiples[axis]`` times along each axis."""
        if set(multiples) <= {1}:
            return x
        return self.emit(tosa.TILE, (x, self.shape(multiples)))

    def pad(self, x: Value, padding: Sequence[int], number: Operand = 0) -> Value:
        """Return x padded with ``number``, a Python number or a constant [1].

        ``padding`` is a flat list: before and after for each axis in turn.
        """
        if set(padding) <= {0}:
            return x
        filling = number
        if not isinstance(filling, Value):
            filling = self.constant(filling, x.dtype)
        return self.emit(tosa.PAD, (x, self.shape(padding), filling))

    def concat(self, values: Sequence[Value], axis: int) -> Value:
        if len(values) == 1:
            return values[0]
        return self.emit(tosa.CONCAT, values, axis=axis)

    def reverse(self, x: Value, axis: int) -> Value:
        return self.emit(tosa.REVERSE, (x,), axis=axis)

    def gather(self, values: Value, indices: Value) -> Value:
        """values [N,K,C], indices [N,W] -> [N,W,C]"""
        return self.emit(tosa.GATHER, (values, indices))

    def scatter(self, values: Value, indices: Value, source: Value) -> Value:
        """values [N,K,C], indices [N,W], source [N,W,C] -> ``values``, rows replaced.

        Row ``indices[n, w]`` becomes ``source[n, w]``. The indices of one n must
        differ: no row may be replaced twice.
        """
        return self.emit(tosa.SCATTER, (values, indices, source))

    # ---- convolution, pooling, matrices: images are NHWC

    def conv2d(
        self,
        x: Value,
        weight: Value,
        bias: Value,
        pad: Shape,
        stride: Shape,
        dilation: Shape,
    ) -> Value:
        """x [N,H,W,C], weight [O,KH,KW,C], bias [O or 1] -> [N,H',W',O].

        Accumulated in fp32.
        """
        return self._convolution(tosa.CONV2D, x, weight, bias, pad, stride, dilation)

    def depthwise_conv2d(
        self,
        x: Value,
        weight: Value,
        bias: Value,
        pad: Shape,
        stride: Shape,
        dilation: Shape,
    ) -> Value:
        """x [N,H,W,C], weight [KH,KW,C,M], bias [C*M or 1] -> [N,H',W',C*M].

        Accumulated in fp32.
        """
        cls = tosa.DEPTHWISE_CONV2D
        return self._convolution(cls, x, weight, bias, pad, stride, dilation)

    def conv3d(
        self,
        x: Value,
        weight: Value,
        bias: Value,
        pad: Shape,
        stride: Shape,
        dilation: Shape,
    ) -> Value:
        """x [N,D,H,W,C], weight [O,KD,KH,KW,C], bias [O or 1] -> [N,D',H',W',O].

        Accumulated in fp32.
        """
        return self._convolution(tosa.CONV3D, x, weight, bias, pad, stride, dilation)

    def transpose_conv2d(
        self, x: Value, weight: Value, bias: Value, out_pad: Shape, stride: Shape
    ) -> Value:
        """x [N,H,W,C], weight [O,KH,KW,C], bias [O or 1] -> [N,H',W',O].

        Accumulated in fp32.
        """
        operands = (x, weight, bias, *self.zeros(x, weight))
        return self.emit(
            tosa.TRANSPOSE_CONV2D,
            operands,
            out_pad=out_pad,
            stride=stride,
            acc_type=self.accumulator(x),
        )

    def _convolution(
        self,
        cls: type[Operator],
        x: Value,
        weight: Value,
        bias: Value,
        pad: Shape,
        stride: Shape,
        dilation: Shape,
    ) -> Value:
        """CONV2D, DEPTHWISE_CONV2D or CONV3D, with zero points and acc_type added."""
        operands = (x, weight, bias, *self.zeros(x, weight))
        acc_type = self.accumulator(x)
        return self.emit(
            cls, operands, pad=pad, stride=stride, dilation=dilation, acc_type=acc_type
        )

    def avg_pool2d(self, x: Value, kernel: Shape, stride: Shape, pad: Shape) -> Value:
        """x [N,H,W,C] -> [N,H',W',C]; padding does not count; accumulated in fp32."""
        operands = (x, self.zero(x), self.zero(x))
        acc_type = self.accumulator(x)
        return self.emit(
            tosa.AVG_POOL2D,
            operands,
            kernel=kernel,
            stride=stride,
            pad=pad,
            acc_type=acc_type,
        )

    def max_pool2d(self, x: Value, kernel: Shape, stride: Shape, pad: Shape) -> Value:
        """x [N,H,W,C] -> [N,H',W',C]; a window with NaN gives NaN."""
        return self.emit(
            tosa.MAX_POOL2D,
            (x,),
            kernel=kernel,
            stride=stride,
            pad=pad,
            nan_mode=NanMode.PROPAGATE,
        )

    def matmul(self, left: Value, right: Value) -> Value:
        """left [B,L,K], right [B,K,M] -> [B,L,M] of the type of ``left``.

        Accumulated in fp32.
        """
        operands = (left, right, *self.zeros(left, right))
        sums = self.emit(tosa.MATMUL, operands, dtype=DType.FP32)
        return self.cast(sums, left.dtype)

    def resize(
        self, x: Value, scale: Shape, offset: Shape, border: Shape, mode: ResizeMode
    ) -> Value:
        """x [N,H,W,C] -> [N,H',W',C].

        ``scale`` is (scale_y_n, scale_y_d, scale_x_n, scale_x_d) of the specification.
        ``offset`` and ``border`` are (y, x).
        """
        operands = (x, self.shape(scale), self.shape(offset), self.shape(border))
        return self.emit(tosa.RESIZE, operands, mode=mode)

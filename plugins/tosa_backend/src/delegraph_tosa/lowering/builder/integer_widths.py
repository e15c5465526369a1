"""Computes integers in other types than rules see.

int64, int16 and int8 are computed as int32, and int32 as fp32. TOSA 1.0 has no int64,
but rules see values of type int64. Constants are folded in int64; values that are
computed at run time are int32 in the graph. This class maps each int64 to its int32,
and refuses a result that is not proven to fit. A target with EXT-INT64 computes in
int64, and in int32 only where it has no int64 operator.
"""

from __future__ import annotations

from ...ir import operators as tosa
from ...ir.graph import Operator, Value
from ...ir.types import DType, Type
from ...spec import TosaSpec
from ..ranges.ints_as_floats import INDICES, runs_as_floats
from ..ranges.value_ranges import INT32, Range, inside, meet, range_of
from ..torch_values.hints import int64_result
from ..torch_values.tensor_types import refused
from .emitter import Emitter

SMALL = (DType.INT8, DType.INT16)
IN_32_BITS = (
    tosa.ABS,
    tosa.ADD,
    tosa.SUB,
    tosa.MAXIMUM,
    tosa.MINIMUM,
    tosa.EQUAL,
    tosa.GREATER,
    tosa.GREATER_EQUAL,
)
"""Operators that TOSA has on int32 and not on smaller integers."""


class IntegerWidths(Emitter):
    """Makes operators on integers in a width that the target has for them.

    A value has two forms. Rules *see* the value in torch's type, int64 for example. The
    graph *holds* a tensor of a type that the target has: int32 for an int64, on a
    target without int64. For all other types both are the same value.
    """

    def __init__(self, spec: TosaSpec) -> None:
        """Create a builder without operators for the target ``spec``."""
        super().__init__(spec)
        self._narrow: dict[Value, Value] = {}
        """Int64 value that rules see -> the int32 tensor with the same elements."""
        self._floats: dict[Value, Value] = {}
        """Int32 value -> the fp32 tensor with the same elements."""

    def _in_other_types(self, operator: Operator, why: str) -> Value:
        """Compute an operator that the target refuses in other integers or in fp32.

        Raises Unsupported if the target has the operator in no other type.
        """
        values = (*operator.inputs, *operator.outputs)
        if any([value.dtype is DType.INT64 for value in values]):
            return self._appended_narrow(operator)
        if "INT" not in self.spec.profiles and runs_as_floats(operator):
            return self._appended_as_floats(operator)
        if isinstance(operator, IN_32_BITS) and operator.inputs[0].dtype in SMALL:
            return self._appended_in_32_bits(operator)
        return super()._in_other_types(operator, why)

    # ---- int64 that is computed as int32

    def _appended_narrow(self, wide: Operator) -> Value:
        """Return the result of the operator ``wide`` on int64, computed on int32.

        An int64 result is returned as an int64 value for rules, which represents the
        int32 tensor of the graph.
        """
        (result,) = wide.outputs
        attributes = wide.attribute_values()
        if attributes.get("dtype") is DType.INT64:
            attributes["dtype"] = DType.INT32
        inputs = [self.narrowed(value) for value in wide.inputs]
        narrow = type(wide)(inputs, self.source, **attributes)
        if result.dtype is not DType.INT64:
            return self._appended(narrow, (result.type,))
        self._expect_32_bits(result, f"TOSA {wide.name}: its int64 result")
        narrow_result = self._appended(narrow, (Type(result.shape, DType.INT32),))
        return self.widened(narrow_result, result.range)

    def narrowed(self, value: Value) -> Value:
        """Return the int32 tensor with the elements of an int64 ``value``.

        Values of other types as they are. A constant, or any int64 on a target with
        int64, is cast. Raises Unsupported if the range of the int64 does not fit into
        int32.
        """
        if value.dtype is not DType.INT64:
            return value
        if value not in self._narrow:
            self._narrow[value] = self._new_narrow(value)
        narrow = self._narrow[value]
        if narrow.constant is None:
            # uses may have proven a smaller range of the int64 since
            narrow.range = meet(range_of(narrow), range_of(value))
        return narrow

    def _new_narrow(self, value: Value) -> Value:
        """Return an int32 tensor for an int64 ``value`` that has none yet."""
        kind = "constant" if value.constant else "value"
        self._expect_32_bits(value, f"the int64 {kind} {value.name}".rstrip())
        if value.constant is not None or self.has_int64:
            narrow = self.emit(tosa.CAST, (value,), dtype=DType.INT32)
        else:
            # every computed int64 is in the map, so this one is an input of the
            # graph, which is int32 there
            narrow = Value(Type(value.shape, DType.INT32), name=value.name)
        narrow.range = value.range
        return narrow

    def widened(self, narrow: Value, range: Range | None = None) -> Value:
        """Return the int64 that rules see for ``narrow``, an int32 of the graph.

        On a target with int64, a CAST makes it. Without int64 no operator is emitted:
        the result only represents ``narrow``; ``narrowed`` replaces it by that where
        an operator uses it. ``range`` is the range of the result; None is the range of
        ``narrow``.
        """
        if self.has_int64:
            wide = self.emit(tosa.CAST, (narrow,), dtype=DType.INT64)
        else:
            wide = Value(Type(narrow.shape, DType.INT64), name=narrow.name)
        wide.range = range_of(narrow) if range is None else range
        self._narrow[wide] = narrow
        return wide

    def held(self, value: Value) -> Value:
        """Return the tensor of the graph for a value that rules see.

        It is int32 for int64, unless the target has int64.
        """
        return value if self.has_int64 else self.narrowed(value)

    def held_type(self, type: Type) -> Type:
        """Return the type that ``held`` returns for a value of ``type``."""
        if type.dtype is not DType.INT64 or self.has_int64:
            return type
        return type._replace(dtype=DType.INT32)

    def seen(self, held: Value, type: Type, range: Range | None) -> Value:
        """Return the value of ``type`` that rules see for a tensor of the graph.

        This is the reverse of the method ``held``. ``range`` becomes the range of its
        integers, and of ``held`` too; None is the range of the type of ``held``.
        """
        held.range = range
        if held.type == type:
            return held
        return self.widened(held, range)

    def _expect_32_bits(self, value: Value, what: str) -> None:
        """Raise Unsupported unless the elements of ``value`` fit into int32.

        ``what`` names it.
        """
        low, high = range_of(value)
        if inside((low, high), INT32):
            return
        why = f"{what} may be from {low} to {high}, which does not fit into 32 bits"
        raise refused(int64_result(why))

    # ---- int8 and int16 that are computed as int32

    def _appended_in_32_bits(self, small: Operator) -> Value:
        """Compute the operator ``small`` on int8 or int16 in int32.

        The CAST back keeps the low bits, so the result wraps around as in torch.
        """
        (result,) = small.outputs
        wide = [self.emit(tosa.CAST, (v,), dtype=DType.INT32) for v in small.inputs]
        y = self.emit(type(small), wide, **small.attribute_values())
        if result.dtype is DType.BOOL:
            return y
        return self.emit(tosa.CAST, (y,), dtype=result.dtype)

    # ---- int32 that is computed as fp32 on a target without PRO-INT
    # (``ints_as_floats``)

    def _appended_as_floats(self, operator: Operator) -> Value:
        """Return the result of ``operator`` on int32, computed on fp32.

        An int32 result is cast back. The fp32 tensor before this cast is remembered in
        ``_floats``, for an operator that needs the result in fp32 again.
        """
        (result,) = operator.outputs
        # the indices of GATHER and SCATTER stay int32; for other operators this is None
        index = INDICES.get(type(operator))
        inputs = [
            value if position == index else self._as_fp32(value)
            for position, value in enumerate(operator.inputs)
        ]
        if isinstance(operator, tosa.CAST):
            y = self._cast_of_bool(inputs[0], result)
        else:
            attributes = operator.attribute_values()
            y = self.emit(type(operator), inputs, fold=False, **attributes)
        if result.dtype is not DType.INT32:
            return y
        integers = self.emit(tosa.CAST, (y,), dtype=result.dtype)
        integers.range = result.range
        self._floats[integers] = y
        return integers

    def _cast_of_bool(self, x: Value, result: Value) -> Value:
        """Return a CAST between BOOL and int32, with fp32 in place of int32.

        TOSA 1.0 has no CAST between BOOL and fp32: EQUAL or SELECT replaces it.
        """
        ones_shape = (1,) * result.rank
        if result.dtype is DType.BOOL:
            zero = self.constant(0, DType.FP32, ones_shape)
            is_zero = self.emit(tosa.EQUAL, (x, zero))
            return self.emit(tosa.LOGICAL_NOT, (is_zero,))
        one = self.constant(1, DType.FP32, ones_shape)
        zero = self.constant(0, DType.FP32, ones_shape)
        return self.emit(tosa.SELECT, (x, one, zero))

    def _as_fp32(self, value: Value) -> Value:
        """Return an int32 as fp32, which holds its elements exactly.

        Each int32 is cast once. Other values as they are.
        """
        if value.dtype is not DType.INT32:
            return value
        if value.constant is not None:
            return self.emit(tosa.CAST, (value,), dtype=DType.FP32)
        if value not in self._floats:
            self._floats[value] = self.emit(tosa.CAST, (value,), dtype=DType.FP32)
        return self._floats[value]

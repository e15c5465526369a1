"""Integers that a target computes in another type than rules see: int64, int16 and int8 as int32, and int32 as fp32.

TOSA 1.0 has no int64. Rules do not care: they see values of type int64. Constants fold in int64, and what is computed
at run time is int32 in the graph. This class knows which int32 stands for which int64, and refuses a result that is not
proven to fit. A target with EXT-INT64 computes in int64, and in int32 only what it has no int64 operator for.
"""

from __future__ import annotations

from ...ir import operators as tosa
from ...ir.graph import Operator, Value
from ...ir.types import DType, Type
from ...spec import TosaSpec
from ..ranges.as_floats import INDICES, runs_as_floats
from ..ranges.ranges import INT32, Range, inside, range_of
from ..torch_values.hints import int64_result
from ..torch_values.types import refused
from .emitter import Emitter

SMALL = DType.INT8, DType.INT16
IN_32_BITS = (
    *(tosa.ABS, tosa.ADD, tosa.SUB, tosa.MAXIMUM, tosa.MINIMUM),
    *(tosa.EQUAL, tosa.GREATER, tosa.GREATER_EQUAL),
)
"""Operators that TOSA has on int32 and not on smaller integers."""


class IntegerWidths(Emitter):
    """Makes operators on integers in a width that the target has for them."""

    def __init__(self, spec: TosaSpec) -> None:
        """``_narrow``: int64 that rules see -> its int32. ``_floats``: int32 -> the fp32 in which it was computed."""
        super().__init__(spec)
        self._narrow: dict[Value, Value] = {}
        self._floats: dict[Value, Value] = {}

    def _in_other_types(self, operator: Operator, why: str) -> Value:
        """The result of an operator that the target refuses, computed in a wider or narrower type if it takes that."""
        if any([v.dtype is DType.INT64 for v in (*operator.inputs, *operator.outputs)]):
            return self._appended_narrow(operator)
        if "INT" not in self.spec.profiles and runs_as_floats(operator):
            return self._appended_as_floats(operator)
        if isinstance(operator, IN_32_BITS) and operator.inputs[0].dtype in SMALL:
            return self._appended_in_32_bits(operator)
        return super()._in_other_types(operator, why)

    # ---- int64 that runs as int32

    def _appended_narrow(self, wide: Operator) -> Value:
        """The result, as rules see it, of an operator on int64 that the graph computes on int32."""
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
        """``value`` as the graph holds it: for an int64 the int32 with the same elements.

        Unsupported if it may not fit.
        """
        if value.dtype is not DType.INT64:
            return value
        if value not in self._narrow:
            self._expect_32_bits(value, f"the int64 {'constant' if value.constant else 'value'} {value.name}".rstrip())
            # an int64 that the builder did not make is an input, which arrives as int32
            narrow = Value(Type(value.shape, DType.INT32), name=value.name)
            if value.constant is not None or self.has_int64:
                narrow = self.emit(tosa.CAST, (value,), dtype=DType.INT32)
            narrow.range, self._narrow[value] = value.range, narrow
        return self._narrow[value]

    def widened(self, narrow: Value, range: Range | None = None) -> Value:
        """The int64 that rules see for ``narrow``, an int32 of the graph.

        ``range`` is where its elements lie, if given.
        """
        wide = Value(Type(narrow.shape, DType.INT64), name=narrow.name)
        if self.has_int64:
            wide = self.emit(tosa.CAST, (narrow,), dtype=DType.INT64)
        wide.range = range_of(narrow) if range is None else range
        self._narrow[wide] = narrow
        return wide

    def held(self, value: Value) -> Value:
        """What the graph holds for a value that rules see: for int64 its int32, unless the target has int64 itself."""
        return value if self.has_int64 else self.narrowed(value)

    def held_type(self, type: Type) -> Type:
        """The type of what the graph holds for a value of ``type``."""
        return type._replace(dtype=DType.INT32) if type.dtype is DType.INT64 and not self.has_int64 else type

    def seen(self, held: Value, type: Type, range: Range | None) -> Value:
        """The reverse of ``held``: the value of ``type``, in ``range``, that rules see for ``held``."""
        held.range = range
        return held if held.type == type else self.widened(held, range)

    def _expect_32_bits(self, value: Value, what: str) -> None:
        """Raise Unsupported unless the elements of ``value`` fit into int32; ``what`` names it."""
        low, high = range_of(value)
        if not inside((low, high), INT32):
            raise refused(int64_result(f"{what} may be from {low} to {high}, more than 32 bits hold"))

    # ---- int8 and int16 that run as int32

    def _appended_in_32_bits(self, small: Operator) -> Value:
        """The result of an operator on int8 or int16, computed on int32.

        Its low bits are kept, so it wraps around as in torch.
        """
        (result,) = small.outputs
        wide = [self.emit(tosa.CAST, (v,), dtype=DType.INT32) for v in small.inputs]
        y = self.emit(type(small), wide, **small.attribute_values())
        return y if result.dtype is DType.BOOL else self.emit(tosa.CAST, (y,), dtype=result.dtype)

    # ---- int32 that runs as fp32, where the target has no integer arithmetic (see ``as_floats``)

    def _appended_as_floats(self, operator: Operator) -> Value:
        """The result of an operator on int32, computed on fp32."""
        (result,), index = operator.outputs, INDICES.get(type(operator))
        inputs = [v if k == index else self._as_fp32(v) for k, v in enumerate(operator.inputs)]
        # a CAST here is between BOOL and int32; between BOOL and fp32 TOSA 1.0 has none
        if type(operator) is not tosa.CAST:
            y = self.emit(type(operator), inputs, fold=False, **operator.attribute_values())
        elif result.dtype is DType.BOOL:
            zero = self.constant(0, DType.FP32, (1,) * result.rank)
            y = self.emit(tosa.LOGICAL_NOT, (self.emit(tosa.EQUAL, (inputs[0], zero)),))
        else:
            one, zero = (self.constant(number, DType.FP32, (1,) * result.rank) for number in (1, 0))
            y = self.emit(tosa.SELECT, (inputs[0], one, zero))
        if result.dtype is not DType.INT32:
            return y
        whole = self.emit(tosa.CAST, (y,), dtype=result.dtype)
        whole.range, self._floats[whole] = result.range, y
        return whole

    def _as_fp32(self, value: Value) -> Value:
        """An int32 whose elements fp32 holds exactly, as fp32; each is cast once. Other values as they are."""
        if value.dtype is not DType.INT32:
            return value
        if value.constant is not None:
            return self.emit(tosa.CAST, (value,), dtype=DType.FP32)
        if value not in self._floats:
            self._floats[value] = self.emit(tosa.CAST, (value,), dtype=DType.FP32)
        return self._floats[value]

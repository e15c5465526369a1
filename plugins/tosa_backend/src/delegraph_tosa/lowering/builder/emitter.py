"""``Emitter``: makes operators. It infers types, asks the target, folds constants and stores equal ones once.

An operator whose operands are all constant is a constant: nothing is emitted, and it is computed when the file is
written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from ...evaluate.kernels import stored_numbers
from ...ir.graph import Folded, Illegal, Literal, Operator, Value, shape_value
from ...ir.types import ARRAY_DTYPES, BYTES, FLOATS, SHORT_FLOATS, DType, Type
from ...spec import TosaSpec
from ...spec.target import alternatives
from ..ranges.ranges import COUNTED, Range, meet, result_range
from ..torch_values.hints import needs_sizes, other_target
from ..torch_values.types import TORCH_DTYPES, refused

Shape = tuple[int, ...]


class Emitter:
    """Makes operators for the target ``spec``.

    ``operators`` are those made so far, ``source`` is where the next ones come from.
    """

    folded_bytes = 64 * 1024
    """A folded constant may be this large even if its operands are smaller; larger ones would make the file explode."""

    def __init__(self, spec: TosaSpec) -> None:
        self.spec = spec
        self.has_int64 = spec.has_int64
        self.operators: list[Operator] = []
        self.source: Any = None
        self._constants: dict[Any, Value] = {}
        self._proven: Range | None = None
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

    # ---- operators

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
            if _bytes(types) > max(self.folded_bytes, _bytes([v.type for v in inputs])):
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
        why = self.spec.why_not(operator)
        if why is not None:
            return self._in_other_types(operator, why)
        self.operators.append(operator)
        return operator.outputs[0]

    def _in_other_types(self, operator: Operator, why: str) -> Value:
        """The result of an operator that the target does not take, computed in types in which it does.

        Here there are none: raises Unsupported. ``IntegerWidths`` has some.
        """
        ways = alternatives(operator, self.spec.version)
        raise refused(other_target(self.spec, why, [] if isinstance(ways, str) else ways))

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

    # ---- constants

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
                wider = str(self.spec.with_names(frozenset({"EXT-SHAPE"})))
                raise refused(needs_sizes(f"{why}: {list(key)}", wider))
            self._constants[key] = made
        return self._constants[key]

    def constant(self, number: float, dtype: DType, shape: Shape = (1,)) -> Value:
        """A constant filled with ``number``, made once; 0.0 and -0.0 are two."""
        number = _as_python(number, dtype)
        key = (repr(number), dtype, shape)
        if key not in self._constants:
            self._constants[key] = Value(Type(shape, dtype), Literal(_filled(number, dtype, shape)))
        if dtype in SHORT_FLOATS and not math.isnan(number):
            self.rounded_number |= number != float(torch.tensor(number, dtype=TORCH_DTYPES[dtype]))
        return self._constants[key]


def _bound_results(operator: Operator) -> None:
    for value in operator.outputs:
        if value.dtype in COUNTED and value.dtype is not DType.BOOL:
            value.range = result_range(operator, value.dtype)


def _all_constant(values: Sequence[Value]) -> bool:
    for value in values:
        if value.constant is None:
            return False
    return True


def _bytes(types: Sequence[Type]) -> int:
    return sum([math.prod(shape) * BYTES[dtype] for shape, dtype in types])


def _as_python(number: float, dtype: DType) -> float:
    """The Python number of ``dtype``'s kind; Unsupported for infinities and NaN as integers. Any but 0 is true."""
    if dtype in FLOATS:
        return float(number)
    if dtype is DType.BOOL:
        return bool(number)
    try:
        return int(number)
    except (OverflowError, ValueError) as error:
        raise refused(_too_large(number, dtype)) from error


def _filled(number: float, dtype: DType, shape: Shape) -> Any:
    """An array of ``number``; Unsupported if an integer type cannot hold it. Floats overflow to infinity."""
    try:
        with np.errstate(over="ignore"):
            return stored_numbers(np.full(shape, number, None if dtype is DType.BF16 else ARRAY_DTYPES[dtype]), dtype)
    except (OverflowError, ValueError) as error:
        raise refused(_too_large(number, dtype)) from error


def _too_large(number: float, dtype: DType) -> str:
    return f"the number {number} does not fit into {dtype}"

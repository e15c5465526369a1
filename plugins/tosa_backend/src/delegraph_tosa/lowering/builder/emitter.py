"""``Emitter``: makes operators. It infers their types, asks the target, folds constants and makes equal ones only once.

An operator whose operands are all constant is folded: its result is a constant that is computed when the file is
written, and no operator is emitted.
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

    ``operators`` are those made so far. ``source`` says which node of the program the next ones come from.
    """

    folded_bytes = 64 * 1024
    """The largest folded constant whose operands are smaller than it is.

    More of such growth would make the file explode.
    """

    def __init__(self, spec: TosaSpec) -> None:
        self.spec = spec
        self.has_int64 = spec.has_int64
        self.operators: list[Operator] = []
        self.source: Any = None
        self._constants: dict[Any, Value] = {}
        self._proven: Range | None = None
        self.rounded_number = False
        """Whether a number was rounded to become a constant of short floats; ``short_floats`` clears and reads it."""

    def takes(self, cls: type[Operator], inputs: Sequence[Value], **attributes: Any) -> bool:
        """Whether the target has the operator ``cls`` for these operands; nothing is emitted."""
        operator, types = self._inferred(cls, inputs, attributes)
        operator.outputs = tuple(map(Value, types))
        return self.spec.why_not(operator) is None

    def require(self, ok: bool, why: str) -> None:
        """Raise Unsupported(why) unless ``ok``."""
        if not ok:
            raise refused(why)

    def expect_one_type(self, what: str, *values: Value | None) -> None:
        """Raise Unsupported unless all ``values`` that are not None have one element type. ``what`` names the call."""
        types = sorted({v.dtype for v in values if v is not None})
        self.require(len(types) == 1, f"{what} of mixed types ({', '.join(map(str, types))}) is not lowered")

    # ---- operators

    def emit(self, cls: type[Operator], inputs: Sequence[Value], fold: bool = True, **attributes: Any) -> Value:
        """The (first) result of a new operator. If its operands are constant it is folded, unless ``fold`` is false."""
        if fold and _all_constant(inputs):
            return self._folded(cls, inputs, attributes)
        return self._appended(*self._inferred(cls, inputs, attributes))

    def _inferred(
        self, cls: type[Operator], inputs: Sequence[Value], attributes: dict[str, Any]
    ) -> tuple[Operator, tuple[Type, ...]]:
        """The operator, not yet emitted, and the types of its results; Unsupported if TOSA has no such operator."""
        operator = cls(inputs, self.source, **attributes)
        try:
            return operator, operator.infer()
        except Illegal as illegal:
            raise refused(f"TOSA {operator.name}: {illegal}") from illegal

    def _folded(self, cls: type[Operator], inputs: Sequence[Value], attributes: dict[str, Any]) -> Value:
        """A constant that is computed when the file is written; the same one if this operator was folded before."""
        key = (cls, *inputs, repr(attributes))
        if key not in self._constants:
            operator, types = self._inferred(cls, inputs, attributes)
            # too large to be stored: the operator is emitted after all, and computes it at run time
            if _bytes(types) > max(self.folded_bytes, _bytes([v.type for v in inputs])):
                return self._appended(operator, types)
            operator.outputs = tuple([Value(type, Folded(operator, i)) for i, type in enumerate(types)])
            _bound_results(operator)
            self._constants[key] = operator.outputs[0]
        return self._constants[key]

    def _appended(self, operator: Operator, types: tuple[Type, ...]) -> Value:
        """Emit ``operator`` with results of these types, or what computes the same where the target refuses it."""
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
        """The result of an operator that the target refuses, with ``why``, computed in element types that it takes.

        There are none here, so it raises Unsupported. ``IntegerWidths`` overrides it.
        """
        # text if no target takes the operator, else the profiles and extensions that would
        ways = alternatives(operator, self.spec.version)
        raise refused(other_target(self.spec, why, [] if isinstance(ways, str) else ways))

    def copied(self, old: Operator, attributes: str, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
        """The results of ``old``, an operator of a template, on other operands.

        Nothing is checked: they have the same types. ``attributes`` are those of ``old`` as text, by which a folded
        operator is found if it was made before.
        """
        cls = type(old)
        # not by __init__, which would check all attributes again
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
        """A block in which computed integers lie in ``range``, whatever the ranges of their operands prove."""
        self._proven, before = range, self._proven
        try:
            yield
        finally:
            self._proven = before

    # ---- constants

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """What ``make`` returns, kept: another call with an equal ``key`` gets the same constants."""
        if key not in self._constants:
            self._constants[key] = make()
        return self._constants[key]

    def literals(self) -> Iterator[tuple[Any, Value]]:
        """All literals (shapes and numbers) that were made, each with the key under which it is kept."""
        for key, value in self._constants.items():
            if isinstance(value, Value) and isinstance(value.constant, Literal):
                yield key, value

    def intern(self, key: Any, literal: Value) -> Value:
        """The literal that is kept under ``key``; if there is none, ``literal``, which was made by another builder."""
        return self._constants.setdefault(key, literal)

    def shape(self, entries: Sequence[int]) -> Value:
        """A SHAPE with these entries.

        Unsupported if one is known at run time only and the target does not compute with sizes.
        """
        key = tuple(entries)
        if key not in self._constants:
            made = shape_value(key)
            if made.constant is None and (why := self.spec.why_not_sizes()):
                wider = str(self.spec.with_names(frozenset({"EXT-SHAPE"})))
                raise refused(needs_sizes(f"{why}: {list(key)}", wider))
            self._constants[key] = made
        return self._constants[key]

    def constant(self, number: float, dtype: DType, shape: Shape = (1,)) -> Value:
        """A constant filled with ``number``; equal calls get the same one, where 0.0 and -0.0 differ."""
        number = _to_kind(number, dtype)
        key = (repr(number), dtype, shape)
        if key not in self._constants:
            self._constants[key] = Value(Type(shape, dtype), Literal(_filled(number, dtype, shape)))
        if dtype in SHORT_FLOATS and not math.isnan(number):
            self.rounded_number |= number != float(torch.tensor(number, dtype=TORCH_DTYPES[dtype]))
        return self._constants[key]


def _bound_results(operator: Operator) -> None:
    """Set the range of each integer result."""
    for value in operator.outputs:
        if value.dtype in COUNTED and value.dtype is not DType.BOOL:
            value.range = result_range(operator, value.dtype)


def _all_constant(values: Sequence[Value]) -> bool:
    for value in values:
        if value.constant is None:
            return False
    return True


def _bytes(types: Sequence[Type]) -> int:
    """How many bytes the elements of these types have together."""
    return sum([math.prod(shape) * BYTES[dtype] for shape, dtype in types])


def _to_kind(number: float, dtype: DType) -> float:
    """``number`` as a float, int or bool, whichever ``dtype`` is made of.

    Any number but 0 is true. Unsupported if infinity or NaN should become an integer.
    """
    if dtype in FLOATS:
        return float(number)
    if dtype is DType.BOOL:
        return bool(number)
    try:
        return int(number)
    except (OverflowError, ValueError) as error:
        raise refused(_too_large(number, dtype)) from error


def _filled(number: float, dtype: DType, shape: Shape) -> Any:
    """An array of ``number``. A float that does not fit becomes infinite.

    Unsupported for an integer that does not fit.
    """
    try:
        with np.errstate(over="ignore"):
            return stored_numbers(np.full(shape, number, None if dtype is DType.BF16 else ARRAY_DTYPES[dtype]), dtype)
    except (OverflowError, ValueError) as error:
        raise refused(_too_large(number, dtype)) from error


def _too_large(number: float, dtype: DType) -> str:
    return f"the number {number} does not fit into {dtype}"

"""``Emitter``: makes operators.

It infers their types, checks the target, folds constants and shares equal constants. An
operator with constant operands only is folded: its result is a constant that is
computed when the file is written, and no operator is emitted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from ...evaluate.kernels import stored_numbers
from ...ir.graph import Array, Folded, Illegal, Literal, Operator, Value, shape_value
from ...ir.types import ARRAY_DTYPES, BYTES, FLOAT8, FLOATS, SHORT_FLOATS, DType, Type
from ...spec import TosaSpec
from ...spec.target import alternatives
from ..ranges.value_ranges import COUNTED, Range, meet, result_range
from ..torch_values.hints import needs_sizes, other_target
from ..torch_values.tensor_types import TORCH_DTYPES, refused

Shape = tuple[int, ...]


class Emitter:
    """Makes operators for the target ``spec``.

    ``operators`` are the operators emitted so far. ``source`` is the node of the
    program that is lowered now.
    """

    folded_bytes = 64 * 1024
    """Largest size of a folded constant that is larger than its operands.

    Larger ones would make the file too large.
    """

    def __init__(self, spec: TosaSpec) -> None:
        """An emitter without operators for the target ``spec``."""
        self.spec = spec
        self.has_int64 = spec.has_int64
        self.operators: list[Operator] = []
        self.source: Any = None
        self._constants: dict[Any, Value] = {}
        """Key -> a constant or shape that was made before: equal ones are made once."""
        self._proven: Range | None = None
        """Range that the caller guarantees inside ``with proven(..)``; None outside."""
        self.rounded_number = False
        """Whether a number was rounded to become a constant of short floats.

        ``short_floats`` clears and reads it.
        """

    def takes(
        self, cls: type[Operator], inputs: Sequence[Value], **attributes: Any
    ) -> bool:
        """Return whether the target has ``cls`` for these operands. Emits nothing."""
        operator, types = self._inferred(cls, inputs, attributes)
        operator.outputs = tuple(map(Value, types))
        return self.spec.why_not(operator) is None

    def refuse_unless(self, condition: bool, reason: str) -> None:
        """Refuse the call with ``reason`` unless ``condition`` is true.

        ``reason`` describes the refused case. Raises Unsupported.
        """
        if not condition:
            raise refused(reason)

    def expect_one_type(self, what: str, *values: Value | None) -> None:
        """Raise Unsupported unless all ``values`` have one element type.

        Values that are None do not count. ``what`` names the call.
        """
        types = sorted({v.dtype for v in values if v is not None})
        self.refuse_unless(
            len(types) == 1,
            f"{what} of mixed types ({', '.join(map(str, types))}) is not lowered",
        )

    # ---- operators

    def emit(
        self,
        cls: type[Operator],
        inputs: Sequence[Value],
        fold: bool = True,
        **attributes: Any,
    ) -> Value:
        """Return the (first) result of a new operator ``cls``.

        Folded if all operands are constant and ``fold`` is true. Raises Unsupported if
        TOSA or the target has no such operator.
        """
        if fold and _all_constant(inputs):
            return self._folded(cls, inputs, attributes)
        return self._appended(*self._inferred(cls, inputs, attributes))

    def _inferred(
        self, cls: type[Operator], inputs: Sequence[Value], attributes: dict[str, Any]
    ) -> tuple[Operator, tuple[Type, ...]]:
        """Return the operator, not yet emitted, and the types of its results.

        Raises Unsupported if TOSA (on any target) has no such operator for the types of
        ``inputs``.
        """
        operator = cls(inputs, self.source, **attributes)
        try:
            return operator, operator.infer()
        except Illegal as illegal:
            raise refused(f"TOSA {operator.name}: {illegal}") from illegal

    def _folded(
        self, cls: type[Operator], inputs: Sequence[Value], attributes: dict[str, Any]
    ) -> Value:
        """Return the folded result of an operator, a constant.

        An equal operator that was folded before gives the same one. If the constant
        would be too large for the file, the operator is emitted instead.
        """
        key = (cls, *inputs, repr(attributes))
        if key in self._constants:
            return self._constants[key]
        operator, types = self._inferred(cls, inputs, attributes)
        bytes_of_inputs = _bytes([value.type for value in inputs])
        if _bytes(types) > max(self.folded_bytes, bytes_of_inputs):
            return self._appended(operator, types)
        operator.outputs = tuple(
            [Value(type, Folded(operator, i)) for i, type in enumerate(types)]
        )
        _bound_results(operator)
        self._constants[key] = operator.outputs[0]
        return operator.outputs[0]

    def _appended(self, operator: Operator, types: tuple[Type, ...]) -> Value:
        """Emit ``operator`` and return its first result.

        ``types`` are those of its results. If the target refuses the operator, other
        operators are emitted in its place (``_in_other_types``).
        """
        operator.outputs = tuple([Value(type, producer=operator) for type in types])
        _bound_results(operator)
        # inside of ``with proven(..)``, the caller guarantees a range for all integer
        # results
        if self._proven is not None:
            for value in operator.outputs:
                value.range = value.range and meet(value.range, self._proven)
        why = self.spec.why_not(operator)
        if why is not None:
            return self._in_other_types(operator, why)
        self.operators.append(operator)
        return operator.outputs[0]

    def _in_other_types(self, operator: Operator, why: str) -> Value:
        """Compute an operator that the target refuses in other element types.

        This class knows no other types: it raises Unsupported, with a hint to targets
        that take the operator. ``IntegerWidths`` overrides this method.
        """
        # a text if no target takes the operator, else the sets of profiles and
        # extensions with which a target takes it
        ways = alternatives(operator, self.spec.version)
        raise refused(
            other_target(self.spec, why, [] if isinstance(ways, str) else ways)
        )

    def copied(
        self, old: Operator, attributes: str, inputs: tuple[Value, ...]
    ) -> tuple[Value, ...]:
        """Return the results of a copy of ``old``, an operator of a template.

        The copy has other operands ``inputs`` of the same types. Nothing is checked or
        inferred again. The copy is emitted if ``old`` was, and folded to a constant if
        ``old`` was. ``attributes`` is the text of the attributes of ``old``, a part of
        the key under which a folded copy is cached.
        """
        cls = type(old)
        # not by __init__, which would check all attributes again
        new = cls.__new__(cls)
        new.__dict__.update(old.__dict__, inputs=inputs, source=self.source)
        was_folded = old.outputs[0].constant is not None
        if not was_folded:
            new.outputs = tuple([Value(v.type, producer=new) for v in old.outputs])
            self.operators.append(new)
            return new.outputs
        key = (cls, *inputs, attributes)
        first = self._constants.get(key)
        if first is None:
            new.outputs = tuple(
                [Value(v.type, Folded(new, i)) for i, v in enumerate(old.outputs)]
            )
            first = self._constants[key] = new.outputs[0]
        # the first result knows the operator that computes it, and so all other results
        return first.constant.operator.outputs  # type: ignore[union-attr]

    @contextmanager
    def proven(self, range: Range) -> Iterator[None]:
        """Guarantee that all integers computed in a block lie in ``range``.

        Use it as ``with t.proven(range):``. The caller guarantees this. Rules use it
        where they know more than the ranges of the operands prove. After the block, the
        guarantee of an outer block holds again.
        """
        before = self._proven
        self._proven = range
        try:
            yield
        finally:
            self._proven = before

    # ---- constants

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return ``make()``, cached under ``key``, to make equal constants once."""
        if key not in self._constants:
            self._constants[key] = make()
        return self._constants[key]

    def literals(self) -> Iterator[tuple[Any, Value]]:
        """Return all cached literals (shapes and numbers), each with its key."""
        for key, value in self._constants.items():
            if isinstance(value, Value) and isinstance(value.constant, Literal):
                yield key, value

    def intern(self, key: Any, literal: Value) -> Value:
        """Return the literal that this builder caches under ``key``.

        If it has none, it caches and returns ``literal``.
        """
        return self._constants.setdefault(key, literal)

    def shape(self, entries: Sequence[int]) -> Value:
        """Return a SHAPE with these entries.

        Raises Unsupported if an entry is known at run time only and the target does not
        compute with sizes.
        """
        key = tuple(entries)
        if key not in self._constants:
            value = shape_value(key)
            if value.constant is None:
                self._expect_computed_sizes(key)
            self._constants[key] = value
        return self._constants[key]

    def _expect_computed_sizes(self, entries: Shape) -> None:
        """Raise Unsupported if the target cannot compute sizes at run time.

        ``entries``: the sizes, for the text of the error.
        """
        why = self.spec.why_not_sizes()
        if why is not None:
            wider = str(self.spec.with_names(frozenset({"EXT-SHAPE"})))
            raise refused(needs_sizes(f"{why}: {list(entries)}", wider))

    def literal(self, elements: Array, dtype: DType) -> Value:
        """Return a constant with ``elements``, of the type ``ARRAY_DTYPES[dtype]``.

        Equal constants are one value. So a rule that runs for each of many equal calls
        makes one constant, as the copies of a template share one.
        """
        key = (dtype, elements.shape, elements.tobytes())
        value: Value = self.once(
            key, lambda: Value(Type(elements.shape, dtype), Literal(elements))
        )
        return value

    def constant(self, number: float, dtype: DType, shape: Shape = (1,)) -> Value:
        """Return a constant filled with ``number``; equal calls return the same value.

        Sets ``rounded_number`` if ``dtype`` is a short float that does not hold
        ``number`` exactly. Raises Unsupported if ``dtype`` is an integer type into
        which ``number`` does not fit.
        """
        number = _to_kind(number, dtype)
        # by its text: 0.0 and -0.0 are equal numbers, and NaN differs from itself
        key = (repr(number), dtype, shape)
        if key not in self._constants:
            elements = Literal(_filled(number, dtype, shape))
            self._constants[key] = Value(Type(shape, dtype), elements)
        if dtype in SHORT_FLOATS and not math.isnan(number):
            rounded = float(torch.tensor(number, dtype=TORCH_DTYPES[dtype]))
            self.rounded_number |= number != rounded
        return self._constants[key]


def _bound_results(operator: Operator) -> None:
    """Set the range of each integer result of ``operator`` that its rule proves."""
    for value in operator.outputs:
        if value.dtype in COUNTED and value.dtype is not DType.BOOL:
            value.range = result_range(operator, value.dtype)


def _all_constant(values: Sequence[Value]) -> bool:
    """Return whether all values are constants."""
    for value in values:
        if value.constant is None:
            return False
    return True


def _bytes(types: Sequence[Type]) -> int:
    """Return the size in bytes of tensors of these types together."""
    return sum([math.prod(shape) * BYTES[dtype] for shape, dtype in types])


def _to_kind(number: float, dtype: DType) -> float:
    """Return ``number`` as a Python float, bool or int, whichever ``dtype`` has.

    As a bool, every number but 0 is True. Raises Unsupported if ``dtype`` is an integer
    type and ``number`` is infinite or NaN.
    """
    if dtype is DType.FP8E4M3 and not math.isnan(number):
        # torch makes all larger numbers this one
        largest = torch.finfo(TORCH_DTYPES[dtype]).max
        return max(-largest, min(float(number), largest))
    if dtype in FLOATS or dtype in FLOAT8:
        return float(number)
    if dtype is DType.BOOL:
        return bool(number)
    try:
        return int(number)
    except (OverflowError, ValueError) as error:
        raise refused(_too_large(number, dtype)) from error


def _filled(number: float, dtype: DType, shape: Shape) -> Any:
    """Return a numpy array of ``shape`` filled with ``number``.

    A float that does not fit into ``dtype`` becomes infinite. Raises Unsupported for an
    integer that does not fit.
    """
    # for bf16 and fp8, ARRAY_DTYPES has the type of their bits, which
    # ``stored_numbers`` makes of numbers
    holds_bits = dtype is DType.BF16 or dtype in FLOAT8
    array_dtype = None if holds_bits else ARRAY_DTYPES[dtype]
    try:
        with np.errstate(over="ignore"):
            numbers = np.full(shape, number, array_dtype)
            return stored_numbers(numbers, dtype)
    except (OverflowError, ValueError) as error:
        raise refused(_too_large(number, dtype)) from error


def _too_large(number: float, dtype: DType) -> str:
    """Return the reason to refuse ``number`` as an integer of the type ``dtype``."""
    return f"the number {number} does not fit into {dtype}"

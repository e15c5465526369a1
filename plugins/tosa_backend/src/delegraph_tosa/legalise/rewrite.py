"""Making operators: what the passes share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..ir.graph import Folded, Operator, Value, literal
from ..ir.operators import RESHAPE
from ..ir.types import DType
from .axes import Shape


def rebuilt(operator: Operator, inputs: Sequence[Value], **attributes: Any) -> Operator:
    """``operator`` with other operands and attributes; its results are new values of the same names."""
    cls = type(operator)
    new = cls.__new__(cls)
    new.__dict__.update(operator.__dict__, inputs=tuple(inputs), **attributes)
    new.outputs = tuple(
        [Value(type, None, old.name, new) for type, old in zip(new.infer(), operator.outputs, strict=True)]
    )
    return new


def origin(value: Value) -> Operator | None:
    """The operator whose result ``value`` is, be it one of the graph or one that is folded."""
    return value.constant.operator if isinstance(value.constant, Folded) else value.producer


def both(first: Any, second: Any) -> Any:
    """The sources of two operators that became one: a tuple of those that differ."""
    merged = _all(first)
    return (*merged, *[source for source in _all(second) if source not in merged])


def _all(source: Any) -> tuple[Any, ...]:
    if source is None:
        return ()
    return source if type(source) is tuple else (source,)


class Rewrite:
    """A list of operators that grows."""

    def __init__(self) -> None:
        self.operators: list[Operator] = []
        self._shapes: dict[Shape, Value] = {}
        self._made: dict[Any, Value] = {}

    def make(self, cls: type[Operator], inputs: tuple[Value, ...], source: Any, **attributes: Any) -> Value:
        """Result of a new operator: a constant if its operands are, and the same one if it was made before."""
        key = (cls, inputs, *attributes.values())
        if key not in self._made:
            self._made[key] = self._new(cls(inputs, source, **attributes))
        return self._made[key]

    def _new(self, operator: Operator) -> Value:
        (type,) = operator.infer()
        if all(v.constant is not None for v in operator.inputs):
            result = Value(type, Folded(operator))
        else:
            result = Value(type, producer=operator)
            self.operators.append(operator)
        operator.outputs = (result,)
        return result

    def shape(self, entries: Shape) -> Value:
        """A SHAPE constant."""
        if entries not in self._shapes:
            self._shapes[entries] = literal(entries, DType.SHAPE, np.int64)
        return self._shapes[entries]

    def reshape(self, value: Value, shape: Shape, source: Any) -> Value:
        """``value`` with another shape. RESHAPE(RESHAPE(x)) is RESHAPE(x), and none at all if the shape is x's."""
        before = origin(value)
        if type(before) is RESHAPE and value.shape != shape:
            value = before.inputs[0]
        if value.shape == shape:
            return value
        return self.make(RESHAPE, (value, self.shape(shape)), source)

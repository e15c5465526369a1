"""Making operators: what the passes share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..ir.graph import Folded, Graph, Operator, Value, shape_value
from ..ir.operators import RESHAPE, TRANSPOSE
from ..ir.types import Type
from .axes import Shape, plain


def rebuilt(
    operator: Operator, inputs: Sequence[Value], types: Iterable[Type] | None = None, **attributes: Any
) -> Operator:
    """``operator`` with other operands and attributes. Its results are new values without names.

    ``types`` of the results are inferred if they are not given.
    """
    cls = type(operator)
    new = cls.__new__(cls)
    new.__dict__.update(operator.__dict__, inputs=tuple(inputs), **attributes)
    new.outputs = tuple([Value(type, producer=new) for type in (new.infer() if types is None else types)])
    return new


def replaced(operator: Operator, inputs: Sequence[Value], source: Any = None) -> Operator:
    """``operator`` with other operands of the same types and values: types and names of its results stay."""
    types = [v.type for v in operator.outputs]
    new = rebuilt(operator, inputs, types, source=operator.source if source is None else source)
    for value, old in zip(new.outputs, operator.outputs, strict=True):
        value.name = old.name
    return new


def with_bodies(graph: Graph, new: Mapping[Graph, Graph]) -> Graph:
    """``graph`` with other graphs in its operators of control flow, which take and return the same types."""
    values: dict[Value, Value] = {}
    operators = []
    for operator in graph.operators:
        bodies = {name: new[body] for name, body in operator.attribute_values().items() if isinstance(body, Graph)}
        if bodies or not values.keys().isdisjoint(operator.inputs):
            old, operator = operator, replaced(operator, [values.get(v, v) for v in operator.inputs])
            operator.__dict__.update(bodies)
            values.update(zip(old.outputs, operator.outputs, strict=True))
        operators.append(operator)
    return Graph(graph.inputs, [values.get(v, v) for v in graph.outputs], operators, graph.name)


def origin(value: Value) -> Operator | None:
    """The operator whose result ``value`` is, be it one of the graph or one that is folded."""
    return value.constant.operator if isinstance(value.constant, Folded) else value.producer


class Sources(tuple[Any, ...]):
    """The sources of an operator that stands for several."""

    __slots__ = ()

    def __str__(self) -> str:
        return " and ".join(map(str, self))


def both(first: Any, second: Any) -> Any:
    """The source of an operator that takes the place of two: each source once, None if there is none."""
    if first is second or second is None:
        return first
    found = dict.fromkeys((*sources_of(first), *sources_of(second)))
    return Sources(found) if len(found) > 1 else next(iter(found), None)


def sources_of(source: Any) -> tuple[Any, ...]:
    """All that an operator's ``source`` names."""
    if source is None:
        return ()
    return source if isinstance(source, Sources) else (source,)


class Rewrite:
    """A list of operators that grows."""

    def __init__(self) -> None:
        self.operators: list[Operator] = []
        self._shapes: dict[Shape, Value] = {}
        self._made: dict[Any, Value] = {}

    def make(self, cls: type[Operator], inputs: tuple[Value, ...], type: Type, source: Any, **attributes: Any) -> Value:
        """Result, of ``type``, of a new operator: a constant if its operands are, and the same one as before."""
        key = (cls, inputs, *attributes.values())
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = self._new(cls(inputs, source, **attributes), type)
        elif found.producer is not None:
            found.producer.source = both(found.producer.source, source)
        return found

    def _new(self, operator: Operator, type: Type) -> Value:
        for operand in operator.inputs:
            if operand.constant is None:
                result = Value(type, producer=operator)
                self.operators.append(operator)
                break
        else:
            result = Value(type, Folded(operator))
        operator.outputs = (result,)
        return result

    def shape(self, entries: Shape) -> Value:
        """A SHAPE with these entries."""
        if entries not in self._shapes:
            self._shapes[entries] = shape_value(entries)
        return self._shapes[entries]

    def reshape(self, value: Value, shape: Shape, source: Any) -> Value:
        """``value`` with another shape. RESHAPE(RESHAPE(x)) is RESHAPE(x), and none at all if the shape is x's."""
        before = origin(value)
        if type(before) is RESHAPE and value.type.shape != shape:
            value, source = before.inputs[0], both(before.source, source)
        if value.type.shape == shape:
            return value
        return self.make(RESHAPE, (value, self.shape(shape)), Type(shape, value.type.dtype), source)

    def transpose(self, value: Value, perms: tuple[int, ...], source: Any) -> Value:
        """TRANSPOSE, joined with the one before it, and none at all if nothing moves."""
        before = origin(value)
        if isinstance(before, TRANSPOSE):
            value, perms = before.inputs[0], tuple([before.perms[p] for p in perms])
            source = both(before.source, source)
        if perms == plain(len(perms)):
            return value
        shape, dtype = value.type
        return self.make(TRANSPOSE, (value,), Type(tuple([shape[p] for p in perms]), dtype), source, perms=perms)

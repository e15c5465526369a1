"""Making operators: what the passes share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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
    """The operators of a new graph, a list that grows, and what the values of the old graph became."""

    def __init__(self) -> None:
        self.operators: list[Operator] = []
        self._values: dict[Value, Value] = {}
        self._shapes: dict[Shape, Value] = {}
        self._made: dict[Any, Value] = {}

    def value(self, old: Value) -> Value:
        """What ``old`` became; itself if nothing changed it."""
        return self._values.get(old, old)

    def renewed(self, operator: Operator) -> Operator:
        """``operator`` of the old graph on what its operands became; itself if they are as they were."""
        if self._values.keys().isdisjoint(operator.inputs):
            return operator
        return replaced(operator, [self.value(v) for v in operator.inputs])

    def put(self, old: Operator, new: Operator) -> None:
        """Append ``new``, whose results, of the same types, take the place of those of ``old``; it may be ``old``."""
        if new is not old:
            self._values.update(zip(old.outputs, new.outputs, strict=True))
        self.operators.append(new)

    def graph(self, old: Graph) -> Graph:
        """The new graph, with the inputs and the name of ``old``, and what its outputs became."""
        return Graph(old.inputs, [self.value(v) for v in old.outputs], self.operators, old.name)

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


def sweep(graph: Graph, change: Callable[[Operator, Rewrite], Operator]) -> Graph:
    """The graph with ``change(operator, rewrite)`` in the place of every operator, in their order.

    ``operator`` has its new operands already. ``change`` returns it as it is, or another one whose results have the
    same types; what that one reads, ``change`` makes with ``rewrite``.
    """
    rewrite = Rewrite()
    for operator in graph.operators:
        rewrite.put(operator, change(rewrite.renewed(operator), rewrite))
    return rewrite.graph(graph)


def with_bodies(graph: Graph, new: Mapping[Graph, Graph]) -> Graph:
    """``graph`` with other graphs in its operators of control flow, which take and return the same types."""

    def change(operator: Operator, _: Rewrite) -> Operator:
        bodies = {name: new[body] for name, body in operator.attribute_values().items() if isinstance(body, Graph)}
        if not bodies:
            return operator
        changed = replaced(operator, operator.inputs)
        changed.__dict__.update(bodies)
        return changed

    return sweep(graph, change)

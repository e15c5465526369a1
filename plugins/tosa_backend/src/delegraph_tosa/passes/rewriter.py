"""New operators and graphs from old ones: the functions that passes share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..ir.graph import Folded, Graph, Operator, Value, shape_value
from ..ir.operators import RESHAPE, TRANSPOSE
from ..ir.types import Type
from .view_axes import Shape, plain


def rebuilt(
    operator: Operator,
    inputs: Sequence[Value],
    types: Iterable[Type] | None = None,
    **attributes: Any,
) -> Operator:
    """Return a copy of ``operator`` with other operands and new results.

    If ``types``, those of the results, are None, they are inferred.
    """
    cls = type(operator)
    new = cls.__new__(cls)
    new.__dict__.update(operator.__dict__, inputs=tuple(inputs), **attributes)
    if types is None:
        types = new.infer()
    new.outputs = tuple([Value(type, producer=new) for type in types])
    return new


def replaced(
    operator: Operator, inputs: Sequence[Value], source: Any = None, **attributes: Any
) -> Operator:
    """Return a copy of ``operator`` with equal operands of the same types.

    Its results keep types and names. A ``source`` of None keeps the source;
    ``attributes`` replace those of ``operator``.
    """
    if source is None:
        source = operator.source
    types = [value.type for value in operator.outputs]
    new = rebuilt(operator, inputs, types, source=source, **attributes)
    for value, old in zip(new.outputs, operator.outputs, strict=True):
        value.name = old.name
    return new


def count_uses(graph: Graph) -> Counter[Value]:
    """Return how often each value is an operand or a result of ``graph``."""
    uses: Counter[Value] = Counter(graph.outputs)
    for operator in graph.operators:
        uses.update(operator.inputs)
    return uses


def origin(value: Value) -> Operator | None:
    """Return the operator, in the graph or folded, that computes ``value``.

    None for inputs and other constants.
    """
    if isinstance(value.constant, Folded):
        return value.constant.operator
    return value.producer


class Sources(tuple[Any, ...]):
    """The sources of an operator that replaces several operators."""

    __slots__ = ()

    def __str__(self) -> str:
        return " and ".join(map(str, self))


def merge_sources(first: Any, second: Any) -> Any:
    """Return the source of an operator that replaces two: each source once.

    None if there is none.
    """
    if first is second or second is None:
        return first
    distinct = dict.fromkeys((*sources_of(first), *sources_of(second)))
    if len(distinct) > 1:
        return Sources(distinct)
    return next(iter(distinct), None)


def sources_of(source: Any) -> tuple[Any, ...]:
    """Return an operator's ``source`` as a tuple; several for ``Sources``."""
    if source is None:
        return ()
    if isinstance(source, Sources):
        return source
    return (source,)


class Rewrite:
    """The operators of a new graph so far, and the new value of each old one."""

    def __init__(self) -> None:
        self.operators: list[Operator] = []
        self._values: dict[Value, Value] = {}
        self._shapes: dict[Shape, Value] = {}
        self._made: dict[Any, Value] = {}

    def value(self, old: Value) -> Value:
        """Return the value of the new graph for ``old``.

        Itself if it did not change.
        """
        return self._values.get(old, old)

    def renewed(self, operator: Operator) -> Operator:
        """Return ``operator`` of the old graph with the new values of its operands.

        Itself if these did not change.
        """
        if self._values.keys().isdisjoint(operator.inputs):
            return operator
        return replaced(operator, [self.value(v) for v in operator.inputs])

    def put(self, old: Operator, new: Operator) -> None:
        """Append ``new`` and replace the results of ``old`` by its results.

        They have the same types. ``new`` may be ``old``.
        """
        if new is not old:
            self._values.update(zip(old.outputs, new.outputs, strict=True))
        self.operators.append(new)

    def forward(self, old: Value, new: Value) -> None:
        """Use ``new``, of the same type, in the place of ``old``."""
        self._values[old] = new

    def graph(self, old: Graph) -> Graph:
        """Return the new graph, with inputs, name and outputs of ``old``."""
        outputs = [self.value(value) for value in old.outputs]
        return Graph(old.inputs, outputs, self.operators, old.name)

    def make(
        self,
        cls: type[Operator],
        inputs: tuple[Value, ...],
        type: Type,
        source: Any,
        **attributes: Any,
    ) -> Value:
        """Return the result, of ``type``, of a new operator.

        A folded constant if all operands are constant. An equal operator that was made
        before is used again, and gets ``source`` as well.
        """
        key = (cls, inputs, *attributes.values())
        if key not in self._made:
            operator = cls(inputs, source, **attributes)
            self._made[key] = self._new(operator, type)
            return self._made[key]
        result = self._made[key]
        if result.producer is not None:
            result.producer.source = merge_sources(result.producer.source, source)
        return result

    def _new(self, operator: Operator, type: Type) -> Value:
        """Append ``operator`` and return its result, folded if all is constant."""
        if all(operand.constant is not None for operand in operator.inputs):
            result = Value(type, Folded(operator))
        else:
            result = Value(type, producer=operator)
            self.operators.append(operator)
        operator.outputs = (result,)
        return result

    def shape(self, entries: Shape) -> Value:
        """Return a SHAPE with these entries."""
        if entries not in self._shapes:
            self._shapes[entries] = shape_value(entries)
        return self._shapes[entries]

    def reshape(self, value: Value, shape: Shape, source: Any) -> Value:
        """Return ``value`` reshaped.

        RESHAPE of RESHAPE of x becomes RESHAPE of x, or x itself if x has this shape.
        """
        before = origin(value)
        if type(before) is RESHAPE and value.type.shape != shape:
            value = before.inputs[0]
            source = merge_sources(before.source, source)
        if value.type.shape == shape:
            return value
        operands = (value, self.shape(shape))
        return self.make(RESHAPE, operands, Type(shape, value.type.dtype), source)

    def transpose(self, value: Value, perms: tuple[int, ...], source: Any) -> Value:
        """Return ``value`` transposed.

        TRANSPOSE of TRANSPOSE becomes one TRANSPOSE, or none if no axis moves.
        """
        before = origin(value)
        if isinstance(before, TRANSPOSE):
            value = before.inputs[0]
            perms = tuple([before.perms[p] for p in perms])
            source = merge_sources(before.source, source)
        if perms == plain(len(perms)):
            return value
        shape, dtype = value.type
        type = Type(tuple([shape[p] for p in perms]), dtype)
        return self.make(TRANSPOSE, (value,), type, source, perms=perms)


def sweep(graph: Graph, change: Callable[[Operator, Rewrite], Operator]) -> Graph:
    """Replace each operator by ``change(operator, rewrite)``, in order.

    ``operator`` has its new operands already. ``change`` returns it, or an operator
    with results of the same types; it adds operators that this one needs to
    ``rewrite``.
    """
    rewrite = Rewrite()
    for operator in graph.operators:
        rewrite.put(operator, change(rewrite.renewed(operator), rewrite))
    return rewrite.graph(graph)


def with_bodies(graph: Graph, new: Mapping[Graph, Graph]) -> Graph:
    """Return ``graph`` with replaced control flow graphs of the same types."""

    def change(operator: Operator, _: Rewrite) -> Operator:
        bodies = {
            name: new[body]
            for name, body in operator.attribute_values().items()
            if isinstance(body, Graph)
        }
        if not bodies:
            return operator
        return replaced(operator, operator.inputs, **bodies)

    return sweep(graph, change)

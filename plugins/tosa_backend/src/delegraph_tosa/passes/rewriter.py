"""New operators and graphs from old ones: the functions that passes share.

A folded operator has only constants as operands. It is not in the graph: its result is
a constant, computed when a file is written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..ir.graph import Folded, Graph, Operator, Value, shape_value
from ..ir.operators import RESHAPE, TRANSPOSE
from ..ir.types import Type
from .view_axes import Shape, identity


def rebuilt(
    operator: Operator,
    inputs: Sequence[Value],
    types: Iterable[Type] | None = None,
    **attributes: Any,
) -> Operator:
    """Return a copy of ``operator`` with other operands and new results.

    ``types`` are the types of the results; by default they are inferred.
    """
    cls = type(operator)
    new = cls.__new__(cls)
    new.__dict__.update(operator.__dict__, inputs=tuple(inputs), **attributes)
    if types is None:
        types = new.infer()
    new.outputs = tuple([Value(type, producer=new) for type in types])
    return new


def with_operands(
    operator: Operator, inputs: Sequence[Value], source: Any = None, **attributes: Any
) -> Operator:
    """Return a copy of ``operator`` with other operands; its results keep their types.

    They keep their names, too. If ``source`` is None, the copy has the source of
    ``operator``. ``attributes`` replace those of ``operator``.
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


def operator_of(value: Value) -> Operator | None:
    """Return the operator that computes ``value``: one of the graph, or a folded one.

    None for inputs and for constants that no operator computes.
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
    """The operators of a new graph so far, and the new value for each old value."""

    def __init__(self) -> None:
        self.operators: list[Operator] = []
        # old value -> new value, where they differ
        self._values: dict[Value, Value] = {}
        self._shapes: dict[Shape, Value] = {}
        # class, operands and attributes of an operator by ``make`` -> its result
        self._made: dict[Any, Value] = {}

    def value(self, old: Value) -> Value:
        """Return the new value for ``old``, or ``old`` itself if it did not change."""
        return self._values.get(old, old)

    def with_new_operands(self, operator: Operator) -> Operator:
        """Return ``operator`` of the old graph with the new values of its operands.

        Returns ``operator`` itself if these did not change.
        """
        if self._values.keys().isdisjoint(operator.inputs):
            return operator
        return with_operands(operator, [self.value(v) for v in operator.inputs])

    def put(self, old: Operator, new: Operator) -> None:
        """Append ``new``; its results replace those of ``old``, of the same types.

        ``new`` may be ``old``.
        """
        if new is not old:
            self._values.update(zip(old.outputs, new.outputs, strict=True))
        self.operators.append(new)

    def forward(self, old: Value, new: Value) -> None:
        """Use ``new``, of the same type, instead of ``old`` from now on."""
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
        """Append a new operator, and return its only result, of type ``type``.

        If all operands are constant, the operator is folded instead. If an equal one
        was made before, returns its result, and adds ``source`` to its sources.
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
        """Append or fold ``operator``, and return its result."""
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
        """Return ``value`` reshaped, by at most one RESHAPE.

        If a RESHAPE of x computes ``value``, x is reshaped instead. If x has ``shape``,
        returns x.
        """
        before = operator_of(value)
        if type(before) is RESHAPE and value.type.shape != shape:
            value = before.inputs[0]
            source = merge_sources(before.source, source)
        if value.type.shape == shape:
            return value
        operands = (value, self.shape(shape))
        return self.make(RESHAPE, operands, Type(shape, value.type.dtype), source)

    def transpose(self, value: Value, perms: tuple[int, ...], source: Any) -> Value:
        """Return ``value`` transposed, by at most one TRANSPOSE.

        If a TRANSPOSE of x computes ``value``, x is transposed instead. If no axis
        moves, returns x.
        """
        before = operator_of(value)
        if isinstance(before, TRANSPOSE):
            value = before.inputs[0]
            perms = tuple([before.perms[p] for p in perms])
            source = merge_sources(before.source, source)
        if perms == identity(len(perms)):
            return value
        shape, dtype = value.type
        type = Type(tuple([shape[p] for p in perms]), dtype)
        return self.make(TRANSPOSE, (value,), type, source, perms=perms)


def sweep(graph: Graph, change: Callable[[Operator, Rewrite], Operator]) -> Graph:
    """Replace each operator by ``change(operator, rewrite)``, in order.

    ``operator`` has its new operands already. ``change`` returns it, or an operator
    with results of the same types. If this one needs other new operators, ``change``
    appends them to ``rewrite.operators``.
    """
    rewrite = Rewrite()
    for operator in graph.operators:
        rewrite.put(operator, change(rewrite.with_new_operands(operator), rewrite))
    return rewrite.graph(graph)


def with_bodies(graph: Graph, new: Mapping[Graph, Graph]) -> Graph:
    """Return ``graph`` with each control flow graph ``body`` replaced by ``new[body]``.

    Both have the same types.
    """

    def change(operator: Operator, _: Rewrite) -> Operator:
        bodies = {
            name: new[body]
            for name, body in operator.attribute_values().items()
            if isinstance(body, Graph)
        }
        if not bodies:
            return operator
        return with_operands(operator, operator.inputs, **bodies)

    return sweep(graph, change)

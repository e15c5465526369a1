"""Common subexpressions: equal operators are computed once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from ..ir.graph import Graph, Literal, Operator, Value
from ..ir.operators import RESCALE
from ..ir.types import DType
from ..spec import TosaSpec
from .dce import STATEFUL
from .rewriter import merge_sources, replaced


def merge_equal(graph: Graph, spec: TosaSpec) -> Graph:
    """Merge operators with the same class, operands and attributes.

    before: a = SLICE x, b = SLICE x (same start and size), ADD (a, b)
    after:  a = SLICE x, ADD (a, a)

    Equal RESCALE to 32 bits are not merged: NPUs fuse a RESCALE with its user, if it
    has only one user (Vela: an operator on 197 x 197 x 3 elements takes 0 cycles
    instead of 250 000).
    """
    duplicates = _Duplicates()
    for operator in graph.operators:
        duplicates.visit(operator)
    if not duplicates.sources:
        return graph
    rewritten = [duplicates.rewritten(operator) for operator in graph.operators]
    operators = [operator for operator in rewritten if operator is not None]
    outputs = [duplicates.final(value) for value in graph.outputs]
    return Graph(graph.inputs, outputs, operators, graph.name)


class _Duplicates:
    """Operators that equal an earlier one.

    ``sources`` maps this earlier operator to the sources of all.
    """

    def __init__(self) -> None:
        """``_same``: result of a duplicate -> that of the first operator.

        ``_new``: old value -> its final value.
        """
        self.sources: dict[Operator, Any] = {}
        self._same: dict[Value, Value] = {}
        self._new: dict[Value, Value] = {}
        self._first: dict[Any, Operator] = {}
        self._constants: dict[Any, Value] = {}

    def visit(self, operator: Operator) -> None:
        """Note whether ``operator`` equals one that was visited before."""
        if type(operator) in STATEFUL or _widens(operator):
            return
        operands = tuple([self._representative(v) for v in operator.inputs])
        key = (type(operator), operands, _attributes(operator))
        first = self._first.setdefault(key, operator)
        if first is operator:
            return
        self._same.update(zip(operator.outputs, first.outputs, strict=True))
        sources = self.sources.get(first, first.source)
        self.sources[first] = merge_sources(sources, operator.source)

    def _representative(self, value: Value) -> Value:
        """Return the first of all values equal to ``value``.

        Equal are results of duplicates, and small constants (shapes, scalars).
        """
        constant = value.constant
        if not isinstance(constant, Literal) or constant.array.nbytes > SMALL_BYTES:
            return self._same.get(value, value)
        key = (value.type, constant.array.tobytes())
        return self._constants.setdefault(key, value)

    def rewritten(self, operator: Operator) -> Operator | None:
        """Return ``operator`` with its final operands and source.

        None if it is merged with an earlier one.
        """
        if not self._same.keys().isdisjoint(operator.outputs):
            return None
        if not self._changes(operator.inputs) and operator not in self.sources:
            return operator
        inputs = [self.final(value) for value in operator.inputs]
        new = replaced(operator, inputs, self.sources.get(operator))
        self._new.update(zip(operator.outputs, new.outputs, strict=True))
        return new

    def _changes(self, values: Sequence[Value]) -> bool:
        """Return whether one of the old ``values`` has a new value."""
        are_first = self._same.keys().isdisjoint(values)
        are_kept = self._new.keys().isdisjoint(values)
        return not (are_first and are_kept)

    def final(self, old: Value) -> Value:
        """Return the value of the new graph for ``old``."""
        value = self._same.get(old, old)
        return self._new.get(value, value)


def _widens(operator: Operator) -> bool:
    """Return whether ``operator`` is a RESCALE to int32."""
    return type(operator) is RESCALE and operator.outputs[0].dtype is DType.INT32


def _attributes(operator: Operator) -> Any:
    """Return a key of an operator's attributes, with numbers as text.

    0.0 == -0.0 and nan != nan would be wrong here.
    """
    cls = type(operator)
    if not cls.attributes:
        return None
    if cls not in _GETTERS:
        _GETTERS[cls] = attrgetter(*cls.attributes)
    attributes = _GETTERS[cls](operator)
    if "Number" in cls.attributes.values():
        return repr(attributes)
    return attributes


_GETTERS: dict[type[Operator], Callable[[Operator], Any]] = {}
"""Maps an operator class to a function that returns all attributes at once."""


SMALL_BYTES = 64
"""The size up to which constants are compared by their elements."""

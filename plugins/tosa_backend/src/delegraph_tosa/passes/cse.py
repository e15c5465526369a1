"""Common subexpressions: what several operators compute is computed once."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from ..ir.graph import Graph, Literal, Operator, Value
from ..ir.operators import RESCALE
from ..ir.types import DType
from ..spec import TosaSpec
from .dce import STATEFUL
from .rewriter import both, replaced


def merge_equal(graph: Graph, spec: TosaSpec) -> Graph:
    """Compute once what several operators compute: same class, operands and attributes.

    before: a = SLICE x, b = SLICE x (same start and size), ADD (a, b)
    after:  a = SLICE x, ADD (a, a)

    RESCALE to 32 bits stays with each user: NPUs read small integers and scale them on the way, if nobody else waits
    for the wide ones (Vela: one operator on 197 x 197 x 3 elements takes 0 cycles instead of 250 000).
    """
    found = _Duplicates()
    for operator in graph.operators:
        found.visit(operator)
    if not found.sources:
        return graph
    operators = [new for operator in graph.operators if (new := found.rewritten(operator))]
    return Graph(graph.inputs, [found.final(v) for v in graph.outputs], operators, graph.name)


class _Duplicates:
    """Operators that compute what an earlier one does, and the sources of all for that one."""

    def __init__(self) -> None:
        self.sources: dict[Operator, Any] = {}
        self._same: dict[Value, Value] = {}
        self._new: dict[Value, Value] = {}
        self._first: dict[Any, Operator] = {}
        self._constants: dict[Any, Value] = {}

    def visit(self, operator: Operator) -> None:
        if type(operator) in STATEFUL or _widens(operator):
            return
        operands = tuple([self._named(v) for v in operator.inputs])
        first = self._first.setdefault((type(operator), operands, _attributes(operator)), operator)
        if first is not operator:
            self._same.update(zip(operator.outputs, first.outputs, strict=True))
            self.sources[first] = both(self.sources.get(first, first.source), operator.source)

    def _named(self, value: Value) -> Value:
        """One value for all that are equal: results of duplicates, and small constants such as shapes and scalars."""
        constant = value.constant
        if not isinstance(constant, Literal) or constant.array.nbytes > SMALL_BYTES:
            return self._same.get(value, value)
        return self._constants.setdefault((value.type, constant.array.tobytes()), value)

    def rewritten(self, operator: Operator) -> Operator | None:
        """``operator`` with its final operands and source; None if an earlier one stands for it."""
        if not self._same.keys().isdisjoint(operator.outputs):
            return None
        given = operator.inputs
        changed = not (self._same.keys().isdisjoint(given) and self._new.keys().isdisjoint(given))
        if not changed and operator not in self.sources:
            return operator
        inputs = [self.final(v) for v in given]
        new = replaced(operator, inputs, self.sources.get(operator))
        self._new.update(zip(operator.outputs, new.outputs, strict=True))
        return new

    def final(self, old: Value) -> Value:
        value = self._same.get(old, old)
        return self._new.get(value, value)


def _widens(operator: Operator) -> bool:
    return type(operator) is RESCALE and operator.outputs[0].dtype is DType.INT32


def _attributes(operator: Operator) -> Any:
    """What compares the attributes; numbers by their text, because 0.0 == -0.0 and nan != nan."""
    cls = type(operator)
    if cls not in _GETTERS:
        _GETTERS[cls] = attrgetter(*cls.attributes) if cls.attributes else lambda operator: None
    found = _GETTERS[cls](operator)
    return repr(found) if "Number" in cls.attributes.values() else found


_GETTERS: dict[type[Operator], Callable[[Operator], Any]] = {}


SMALL_BYTES = 64

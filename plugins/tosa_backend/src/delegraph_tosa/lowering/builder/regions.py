"""Graphs of control flow, and the variables that a program keeps: operators that do more than compute a tensor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ...ir import operators as tosa
from ...ir.graph import Graph, Operator, Value
from ...spec import TosaSpec
from .emitter import Emitter


class Regions(Emitter):
    """Makes operators inside of graphs of control flow, and those that refer to such graphs or to variables."""

    def __init__(self, spec: TosaSpec) -> None:
        super().__init__(spec)
        self._depth = 0

    @contextmanager
    def inside(self, operators: list[Operator]) -> Iterator[None]:
        """Operators are appended to those of a graph of control flow; Unsupported if it lies too deep in others."""
        deep = (
            f"control flow is nested {self._depth + 1} deep, and MAX_NESTING of the target is {self.spec.max_nesting}"
        )
        self.require(self._depth + 1 < self.spec.max_nesting, deep)  # as ``validate`` counts
        self._depth += 1
        try:
            with self.appending_to(operators):
                yield
        finally:
            self._depth -= 1

    @contextmanager
    def appending_to(self, operators: list[Operator]) -> Iterator[None]:
        """Operators are appended to another list; afterwards to the one before, with the source before."""
        outer, source = self.operators, self.source
        self.operators = operators
        try:
            yield
        finally:
            self.operators, self.source = outer, source

    def control(self, cls: type[Operator], inputs: Sequence[Value], **graphs: Graph) -> tuple[Value, ...]:
        """The results of COND_IF or WHILE_LOOP; int64 is narrowed by the caller."""
        operator, types = self._inferred(cls, inputs, graphs)
        operator.outputs = tuple([Value(type, producer=operator) for type in types])
        self._append_taken(operator)
        return operator.outputs

    # ---- state

    def variable(self, name: str, initial: Value) -> Value:
        """What a variable holds when the program starts: ``initial``, a constant, before the first call."""
        self._append_taken(tosa.VARIABLE((initial,), self.source, variable=name))
        return self.emit(tosa.VARIABLE_READ, (), fold=False, variable=name, types=(initial.type,))

    def variable_write(self, name: str, value: Value) -> None:
        """The variable holds ``value`` from here on, in the next call too."""
        self._append_taken(tosa.VARIABLE_WRITE((value,), self.source, variable=name))

    def _append_taken(self, operator: Operator) -> None:
        """Append what the target has as it is, or not at all."""
        why = self.spec.why_not(operator)
        self.require(why is None, f"{why}")
        self.operators.append(operator)

"""Operators that do more than compute a tensor: those with graphs of control flow, and those of variables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ...ir import operators as tosa
from ...ir.graph import Graph, Operator, Value
from ...spec import TosaSpec
from .emitter import Emitter


class Regions(Emitter):
    """Makes operators inside of graphs of control flow, and operators that refer to such graphs or to variables."""

    def __init__(self, spec: TosaSpec) -> None:
        super().__init__(spec)
        self._depth = 0

    @contextmanager
    def inside(self, operators: list[Operator]) -> Iterator[None]:
        """Operators are appended to those of a graph of control flow; Unsupported if the target nests less deep."""
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
        """Operators are appended to another list inside of this context; afterwards list and source are as before."""
        outer, source = self.operators, self.source
        self.operators = operators
        try:
            yield
        finally:
            self.operators, self.source = outer, source

    def control(self, cls: type[Operator], inputs: Sequence[Value], **graphs: Graph) -> tuple[Value, ...]:
        """The results of COND_IF or WHILE_LOOP; the caller has narrowed int64."""
        operator, types = self._inferred(cls, inputs, graphs)
        operator.outputs = tuple([Value(type, producer=operator) for type in types])
        self._append_taken(operator)
        return operator.outputs

    # ---- state

    def variable(self, name: str, initial: Value) -> Value:
        """The value of a variable when the program starts; before the first call that is ``initial``, a constant."""
        self._append_taken(tosa.VARIABLE((initial,), self.source, variable=name))
        return self.emit(tosa.VARIABLE_READ, (), fold=False, variable=name, types=(initial.type,))

    def variable_write(self, name: str, value: Value) -> None:
        """Let the variable hold ``value`` from here on, also in the next call."""
        self._append_taken(tosa.VARIABLE_WRITE((value,), self.source, variable=name))

    def _append_taken(self, operator: Operator) -> None:
        """Append an operator, or raise Unsupported if the target does not take it."""
        why = self.spec.why_not(operator)
        self.require(why is None, f"{why}")
        self.operators.append(operator)

"""The graphs of branches and loops, and the variables that a program keeps from one call to the next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ...ir import operators as tosa
from ...ir.graph import Graph, Operator, Value
from ...spec import TosaSpec
from .emitter import Emitter


class Regions(Emitter):
    """Makes operators inside of graphs of control flow, and the operators that refer to such graphs or to variables."""

    def __init__(self, spec: TosaSpec) -> None:
        super().__init__(spec)
        self._depth = 0

    @contextmanager
    def inside(self, operators: list[Operator]) -> Iterator[None]:
        """A block whose operators are appended to ``operators``, those of a graph of control flow.

        Unsupported if too deep.
        """
        deep = (
            f"control flow is nested {self._depth + 1} deep, and MAX_NESTING of the target is {self.spec.max_nesting}"
        )
        # counted as ``validate`` counts
        self.require(self._depth + 1 < self.spec.max_nesting, deep)
        self._depth += 1
        try:
            with self.appending_to(operators):
                yield
        finally:
            self._depth -= 1

    @contextmanager
    def appending_to(self, operators: list[Operator]) -> Iterator[None]:
        """A block whose operators are appended to ``operators``.

        Afterwards the builder has its own list and source again.
        """
        outer, source = self.operators, self.source
        self.operators = operators
        try:
            yield
        finally:
            self.operators, self.source = outer, source

    def control(self, cls: type[Operator], inputs: Sequence[Value], **graphs: Graph) -> tuple[Value, ...]:
        """The results of COND_IF or WHILE_LOOP. ``inputs`` are as the graph holds them, int64 as int32."""
        operator, types = self._inferred(cls, inputs, graphs)
        operator.outputs = tuple([Value(type, producer=operator) for type in types])
        self._append_taken(operator)
        return operator.outputs

    # ---- state

    def variable(self, name: str, initial: Value) -> Value:
        """Declare a variable, and read it.

        What it holds when a call starts, ``initial`` (a constant) before the first one.
        """
        self._append_taken(tosa.VARIABLE((initial,), self.source, variable=name))
        return self.emit(tosa.VARIABLE_READ, (), fold=False, variable=name, types=(initial.type,))

    def variable_write(self, name: str, value: Value) -> None:
        """Let the variable hold ``value`` from here on, also in the next call."""
        self._append_taken(tosa.VARIABLE_WRITE((value,), self.source, variable=name))

    def _append_taken(self, operator: Operator) -> None:
        """Append an operator as it is; Unsupported if the target does not take it, since no other types would help."""
        why = self.spec.why_not(operator)
        self.require(why is None, f"{why}")
        self.operators.append(operator)

"""Control flow operators with their graphs, and the variables of a program.

Variables keep their value from one call to the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ...ir import operators as tosa
from ...ir.graph import Graph, Operator, Value
from ...spec import TosaSpec
from .emitter import Emitter


class Regions(Emitter):
    """Emits control flow operators, operators in their graphs, and variables."""

    def __init__(self, spec: TosaSpec) -> None:
        """Create a builder for the target ``spec``, outside of all control flow."""
        super().__init__(spec)
        self._depth = 0
        """How many graphs of control flow the operators that are emitted now are in."""

    @contextmanager
    def inside(self, operators: list[Operator]) -> Iterator[None]:
        """Append the operators of a block to the list of a control flow graph.

        Raises Unsupported if graphs are then nested deeper than MAX_NESTING of the
        target's level.
        """
        # as ``validate`` counts: the program's own graph is 1 deep, and a graph of
        # control flow in it is 2 deep
        deep = self._depth + 2
        limit = self.spec.max_nesting
        why = (
            f"graphs are nested {deep} deep, the program's own among them, and"
            f" MAX_NESTING of the target is {limit}"
        )
        self.refuse_unless(deep <= limit, why)
        self._depth += 1
        try:
            with self.appending_to(operators):
                yield
        finally:
            self._depth -= 1

    @contextmanager
    def appending_to(self, operators: list[Operator]) -> Iterator[None]:
        """Append the operators of a block to ``operators``, not to ``self.operators``.

        After the block, the list and the ``source`` from before it are restored.
        """
        outer = self.operators
        source = self.source
        self.operators = operators
        try:
            yield
        finally:
            self.operators = outer
            self.source = source

    def control(
        self, cls: type[Operator], inputs: Sequence[Value], **graphs: Graph
    ) -> tuple[Value, ...]:
        """Return the results of a new COND_IF or WHILE_LOOP.

        They are tensors of the surrounding graph. ``inputs`` are tensors of this graph:
        int32 for an int64 of the rules, unless the target has int64 (see ``held``).
        ``graphs`` are the operator's graphs by attribute name. Raises Unsupported if
        the target lacks the operator.
        """
        operator, types = self._inferred(cls, inputs, graphs)
        operator.outputs = tuple([Value(type, producer=operator) for type in types])
        self._append_taken(operator)
        return operator.outputs

    # ---- state

    def variable(self, name: str, initial: Value) -> Value:
        """Declare the variable ``name``, with ``initial`` before the first call.

        ``initial`` is a constant. Returns the value that the variable holds when a call
        begins.
        """
        self._append_taken(tosa.VARIABLE((initial,), self.source, variable=name))
        return self.emit(
            tosa.VARIABLE_READ, (), fold=False, variable=name, types=(initial.type,)
        )

    def variable_write(self, name: str, value: Value) -> None:
        """Write ``value`` to the variable ``name``; the next call reads this value."""
        self._append_taken(tosa.VARIABLE_WRITE((value,), self.source, variable=name))

    def _append_taken(self, operator: Operator) -> None:
        """Append an operator; raises Unsupported if the target lacks it.

        Unlike ``emit``, this does not try other element types: a target without the
        operator has it for no type.
        """
        why = self.spec.why_not(operator)
        self.refuse_unless(why is None, f"{why}")
        self.operators.append(operator)

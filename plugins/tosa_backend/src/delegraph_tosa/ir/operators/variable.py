"""Variables: tensors that keep their value between calls."""

from __future__ import annotations

from ..graph import Operator, ResultTypes, Value, note
from ..types import Type


class VARIABLE(Operator):
    """initial_value, a constant -> no result: declares ``variable``."""

    initial_value: Value
    variable: str

    def infer(self) -> tuple[Type, ...]:
        constant = self.initial_value.constant is not None
        note(
            constant,
            f"the initial value of {self.variable!r} is not a constant",
            "constant-operand",
        )
        return ()


class VARIABLE_WRITE(Operator):
    """input1 [*S] -> no result: sets ``variable`` to this value."""

    input1: Value
    variable: str

    def infer(self) -> tuple[Type, ...]:
        return ()


class VARIABLE_READ(Operator):
    """-> the value [*S] of ``variable``; ``types`` is the variable's type."""

    variable: str
    types: ResultTypes

    def infer(self) -> tuple[Type, ...]:
        note(
            len(self.types) == 1,
            f"a variable is one tensor, {len(self.types)} are read",
            "result-count",
        )
        return self.types

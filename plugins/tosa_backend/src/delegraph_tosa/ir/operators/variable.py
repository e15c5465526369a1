"""Variables: tensors that keep their value between calls."""

from __future__ import annotations

from ..graph import Operator, ResultTypes, Value, note
from ..types import Type


class VARIABLE(Operator):
    """initial_value, a constant -> no result. Declares ``variable``, a name."""

    initial_value: Value
    variable: str

    def infer(self) -> tuple[Type, ...]:
        note(
            self.initial_value.constant is not None,
            f"the initial value of {self.variable!r} is not a constant",
            "constant-operand",
        )
        return ()


class VARIABLE_WRITE(Operator):
    """input1 [*S] -> no result. Sets ``variable`` to this value."""

    input1: Value
    variable: str

    def infer(self) -> tuple[Type, ...]:
        return ()


class VARIABLE_READ(Operator):
    """No operand -> the value [*S] of ``variable``, of the only type in ``types``."""

    variable: str
    types: ResultTypes

    def infer(self) -> tuple[Type, ...]:
        note(
            len(self.types) == 1,
            f"a variable is one tensor, {len(self.types)} are read",
            "result-count",
        )
        return self.types

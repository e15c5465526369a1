"""Variables: tensors that keep their value between calls (specification 2.16, EXT-VARIABLE)."""

from __future__ import annotations

from ..graph import Operator, ResultTypes, Value, check
from ..types import Type


class VARIABLE(Operator):
    """initial_value, a constant -> no result: declares the variable of that name."""

    initial_value: Value
    variable: str

    def infer(self) -> tuple[Type, ...]:
        check(self.initial_value.constant is not None, f"the initial value of {self.variable!r} is not a constant")
        return ()


class VARIABLE_WRITE(Operator):
    """input1 [*S] -> no result: the variable has this value from here on."""

    input1: Value
    variable: str

    def infer(self) -> tuple[Type, ...]:
        return ()


class VARIABLE_READ(Operator):
    """The variable's value [*S]."""

    variable: str
    types: ResultTypes

    def infer(self) -> tuple[Type, ...]:
        return self.types

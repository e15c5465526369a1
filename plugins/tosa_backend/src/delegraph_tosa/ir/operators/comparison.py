"""Comparisons: two operands that broadcast, and a BOOL result."""

from __future__ import annotations

from ..graph import Operator, Value
from ..types import DType, Type
from .rules import broadcast


class Comparison(Operator):
    """input1 [*S], input2 [*S] -> BOOL [*S]."""

    input1: Value
    input2: Value

    def infer(self) -> tuple[Type, ...]:
        return (Type(broadcast(*self.inputs), DType.BOOL),)


class EQUAL(Comparison):
    """input1 == input2."""


class GREATER(Comparison):
    """input1 > input2."""


class GREATER_EQUAL(Comparison):
    """input1 >= input2."""

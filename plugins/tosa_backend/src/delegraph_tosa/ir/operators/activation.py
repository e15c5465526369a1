"""Activation functions (specification: Activation Functions)."""

from __future__ import annotations

from ..graph import Number, Operator, Value, note
from ..types import NanMode, Type
from .rules import same_type


class CLAMP(Operator):
    """input [*S] -> [*S], clamped to the range from ``min_val`` to ``max_val``.

    Both are Python numbers in the input's element type.
    """

    input: Value
    min_val: Number
    max_val: Number
    nan_mode: NanMode = NanMode.PROPAGATE

    def infer(self) -> tuple[Type, ...]:
        note(
            self.min_val <= self.max_val,
            f"min_val {self.min_val} and max_val {self.max_val} are not in order",
            "clamp-order",
        )
        return (self.input.type,)


class ERF(Operator):
    """input [*S] -> [*S]: Gauss error function."""

    input: Value
    infer = same_type


class SIGMOID(Operator):
    """input [*S] -> [*S]: 1 / (1 + exp(-x))."""

    input: Value
    infer = same_type


class TANH(Operator):
    """input [*S] -> [*S]: hyperbolic tangent."""

    input: Value
    infer = same_type

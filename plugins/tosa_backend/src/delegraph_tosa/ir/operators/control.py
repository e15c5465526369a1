"""Control flow and custom operators (specification: Control Flow Operators, Custom Operators).

Bodies are graphs of their own.
"""

from __future__ import annotations

import math

from ..graph import Graph, Operator, ResultTypes, Value, Values, note
from ..types import DType, Type


def _types(values: list[Value] | tuple[Value, ...]) -> list[Type]:
    return [v.type for v in values]


class COND_IF(Operator):
    """condition BOOL of one element, input_list -> results of ``then_graph`` or ``else_graph``."""

    condition: Value
    input_list: Values
    then_graph: Graph
    else_graph: Graph

    def infer(self) -> tuple[Type, ...]:
        then, other = self.then_graph, self.else_graph
        single = math.prod(self.condition.shape) == 1
        note(single, f"condition must have one element, is {self.condition.type}", "condition")
        given = _types(self.inputs[1:])
        fits = given == _types(then.inputs) == _types(other.inputs)
        note(fits, "inputs differ from those of the two graphs", "body-inputs")
        note(_types(then.outputs) == _types(other.outputs), "the two graphs return different types", "body-outputs")
        return tuple(_types(then.outputs))


class WHILE_LOOP(Operator):
    """input_list -> the same types, after ``body_graph`` was applied while ``cond_graph`` returned true."""

    input_list: Values
    cond_graph: Graph
    body_graph: Graph

    def infer(self) -> tuple[Type, ...]:
        given, cond, body = _types(self.inputs), self.cond_graph, self.body_graph
        fits = given == _types(cond.inputs) == _types(body.inputs)
        note(fits, "inputs differ from those of the two graphs", "body-inputs")
        note(given == _types(body.outputs), "body_graph must return the types that it takes", "body-outputs")
        single = len(cond.outputs) == 1 and math.prod(cond.outputs[0].shape) == 1
        single = single and cond.outputs[0].dtype is DType.BOOL
        note(single, "cond_graph must return one BOOL element", "condition")
        return tuple(given)


class CUSTOM(Operator):
    """An operator of an implementation: input_list -> results of ``types``."""

    input_list: Values
    operator_name: str
    domain_name: str
    implementation_attrs: bytes
    types: ResultTypes

    def infer(self) -> tuple[Type, ...]:
        return self.types

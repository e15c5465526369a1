"""Control flow and custom operators (specification 2.14 and 2.15). Bodies are graphs of their own."""

from __future__ import annotations

import math

from ..graph import Graph, Operator, ResultTypes, Value, Values, check
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
        check(math.prod(self.condition.shape) == 1, f"condition must have one element, is {self.condition.type}")
        given = _types(self.inputs[1:])
        check(given == _types(then.inputs) == _types(other.inputs), "inputs differ from those of the two graphs")
        check(_types(then.outputs) == _types(other.outputs), "the two graphs return different types")
        return tuple(_types(then.outputs))


class WHILE_LOOP(Operator):
    """input_list -> the same types, after ``body_graph`` was applied while ``cond_graph`` returned true."""

    input_list: Values
    cond_graph: Graph
    body_graph: Graph

    def infer(self) -> tuple[Type, ...]:
        given, cond, body = _types(self.inputs), self.cond_graph, self.body_graph
        check(given == _types(cond.inputs) == _types(body.inputs), "inputs differ from those of the two graphs")
        check(given == _types(body.outputs), "body_graph must return the types that it takes")
        single = len(cond.outputs) == 1 and math.prod(cond.outputs[0].shape) == 1
        check(single and cond.outputs[0].dtype is DType.BOOL, "cond_graph must return one BOOL element")
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

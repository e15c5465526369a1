"""Control flow and custom operators (specification: Control Flow Operators, Custom Operators).

Bodies are graphs of their own.
"""

from __future__ import annotations

import math

from ..graph import Graph, Operator, ResultTypes, Value, Values, note
from ..sizes import agree
from ..substitution import bound, substituted
from ..types import DType, Type


def _types(values: list[Value] | tuple[Value, ...]) -> list[Type]:
    return [v.type for v in values]


def _returned(body: Graph, given: list[Type]) -> list[Type]:
    """What ``body`` returns for operands of these types, whose unknown sizes it may have by other names."""
    sizes = bound(_types(body.inputs), given)
    return [substituted(type, sizes) for type in _types(body.outputs)]


def _fit(some: list[Type], others: list[Type]) -> bool:
    """Whether the types are equal, as far as their sizes are known."""
    alike = len(some) == len(others) and [t.dtype for t in some] == [t.dtype for t in others]
    return alike and all(agree(a.shape, b.shape) for a, b in zip(some, others, strict=True))


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
        fits = _fit(given, _types(then.inputs)) and _fit(given, _types(other.inputs))
        note(fits, "inputs differ from those of the two graphs", "body-inputs")
        returned = _returned(then, given)
        note(_fit(returned, _returned(other, given)), "the two graphs return different types", "body-outputs")
        return tuple(returned)


class WHILE_LOOP(Operator):
    """input_list -> the same types, after ``body_graph`` was applied while ``cond_graph`` returned true."""

    input_list: Values
    cond_graph: Graph
    body_graph: Graph

    def infer(self) -> tuple[Type, ...]:
        given, cond, body = _types(self.inputs), self.cond_graph, self.body_graph
        fits = _fit(given, _types(cond.inputs)) and _fit(given, _types(body.inputs))
        note(fits, "inputs differ from those of the two graphs", "body-inputs")
        note(_fit(given, _returned(body, given)), "body_graph must return the types that it takes", "body-outputs")
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

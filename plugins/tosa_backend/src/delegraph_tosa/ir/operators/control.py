"""Control flow and custom operators (specification: Control Flow, Custom).

Branches, conditions and bodies are graphs of their own, attributes of the operators.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from ..dynamic_sizes import agree
from ..graph import Graph, Operator, ResultTypes, Value, Values, note
from ..substitution import bound, substituted
from ..types import DType, Type


def _types(values: Iterable[Value]) -> list[Type]:
    """Return the types of ``values``."""
    return [v.type for v in values]


def _result_types(body: Graph, operands: list[Type]) -> list[Type]:
    """Return the result types of ``body``, with sizes in symbols of ``operands``."""
    sizes = bound(_types(body.inputs), operands)
    return [substituted(type, sizes) for type in _types(body.outputs)]


def _may_be_equal(some: list[Type], others: list[Type]) -> bool:
    """Return whether types may be equal: no known size differs."""
    if len(some) != len(others):
        return False
    for a, b in zip(some, others, strict=True):
        if a.dtype is not b.dtype or not agree(a.shape, b.shape):
            return False
    return True


def _expect_inputs(operands: list[Type], first: Graph, second: Graph) -> None:
    """Check that both graphs have inputs with the types of ``operands``."""
    fits = all(
        _may_be_equal(operands, _types(graph.inputs)) for graph in (first, second)
    )
    note(fits, "inputs differ from those of the two graphs", "body-inputs")


class COND_IF(Operator):
    """condition BOOL, input_list -> results of ``then_graph`` or ``else_graph``.

    The graph is applied to ``input_list``.
    """

    condition: Value
    input_list: Values
    then_graph: Graph
    else_graph: Graph

    def infer(self) -> tuple[Type, ...]:
        then = self.then_graph
        other = self.else_graph
        note(
            math.prod(self.condition.shape) == 1,
            f"condition must have one element, is {self.condition.type}",
            "condition",
        )
        operands = _types(self.inputs[1:])
        _expect_inputs(operands, then, other)
        returned = _result_types(then, operands)
        note(
            _may_be_equal(returned, _result_types(other, operands)),
            "the two graphs return different types",
            "body-outputs",
        )
        return tuple(returned)


class WHILE_LOOP(Operator):
    """input_list -> values of the same types.

    While ``cond_graph`` returns true for the values, ``body_graph`` replaces them.
    """

    input_list: Values
    cond_graph: Graph
    body_graph: Graph

    def infer(self) -> tuple[Type, ...]:
        operands = _types(self.inputs)
        cond = self.cond_graph
        body = self.body_graph
        _expect_inputs(operands, cond, body)
        note(
            _may_be_equal(operands, _result_types(body, operands)),
            "body_graph must return the types that it takes",
            "body-outputs",
        )
        single = len(cond.outputs) == 1 and math.prod(cond.outputs[0].shape) == 1
        single = single and cond.outputs[0].dtype is DType.BOOL
        note(single, "cond_graph must return one BOOL element", "condition")
        return tuple(operands)


class CUSTOM(Operator):
    """A custom operator: input_list -> results of ``types``."""

    input_list: Values
    operator_name: str
    domain_name: str
    implementation_attrs: bytes
    types: ResultTypes

    def infer(self) -> tuple[Type, ...]:
        return self.types

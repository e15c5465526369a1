"""Control flow and custom operators (specification: Control Flow, Custom).

Branches, conditions and bodies are graphs of their own, attributes of the operators.
"""

from __future__ import annotations

import math

from ..dynamic_sizes import agree
from ..graph import Graph, Operator, ResultTypes, Value, Values, note
from ..substitution import bound, substituted
from ..types import DType, Type


def _types(values: list[Value] | tuple[Value, ...]) -> list[Type]:
    """Return the types of ``values``."""
    return [v.type for v in values]


def _returned(body: Graph, operands: list[Type]) -> list[Type]:
    """Return the result types of ``body`` in the operands' symbols."""
    sizes = bound(_types(body.inputs), operands)
    return [substituted(type, sizes) for type in _types(body.outputs)]


def _fit(some: list[Type], others: list[Type]) -> bool:
    """Return whether types may be equal: no known size differs."""
    alike = len(some) == len(others) and [t.dtype for t in some] == [
        t.dtype for t in others
    ]
    return alike and all(
        agree(a.shape, b.shape) for a, b in zip(some, others, strict=True)
    )


class COND_IF(Operator):
    """condition BOOL, input_list -> results of ``then_graph`` or ``else_graph``."""

    condition: Value
    input_list: Values
    then_graph: Graph
    else_graph: Graph

    def infer(self) -> tuple[Type, ...]:
        then = self.then_graph
        other = self.else_graph
        single = math.prod(self.condition.shape) == 1
        note(
            single,
            f"condition must have one element, is {self.condition.type}",
            "condition",
        )
        operands = _types(self.inputs[1:])
        fits = _fit(operands, _types(then.inputs)) and _fit(
            operands, _types(other.inputs)
        )
        note(fits, "inputs differ from those of the two graphs", "body-inputs")
        returned = _returned(then, operands)
        note(
            _fit(returned, _returned(other, operands)),
            "the two graphs return different types",
            "body-outputs",
        )
        return tuple(returned)


class WHILE_LOOP(Operator):
    """input_list -> values of the same types.

    ``body_graph`` is applied to them while ``cond_graph`` returns true.
    """

    input_list: Values
    cond_graph: Graph
    body_graph: Graph

    def infer(self) -> tuple[Type, ...]:
        operands = _types(self.inputs)
        cond = self.cond_graph
        body = self.body_graph
        fits = _fit(operands, _types(cond.inputs)) and _fit(
            operands, _types(body.inputs)
        )
        note(fits, "inputs differ from those of the two graphs", "body-inputs")
        returned = _returned(body, operands)
        note(
            _fit(operands, returned),
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

"""Specializes a dynamic graph for inputs of one size."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
from delegraph.errors import InputError

from ..ir.graph import Graph, Illegal, Operator, Value, literal
from ..ir.operators.shape import ShapeOperator
from ..ir.types import DType, Type

Shape = tuple[int, ...]


def is_dynamic(graph: Graph) -> bool:
    """Return whether an input has a size that is known at run time only."""
    return any(value.type.is_dynamic for value in graph.inputs)


def specialized(graph: Graph, shapes: Sequence[Shape]) -> Graph:
    """Return the graph for these input shapes, with constant shape operators.

    Raises InputError if an operator does not accept the resulting shapes.
    """
    inputs = [
        Value(Type(shape, value.dtype), name=value.name)
        for value, shape in zip(graph.inputs, shapes, strict=True)
    ]
    new = dict(zip(graph.inputs, inputs, strict=True))
    operators: list[Operator] = []
    for old in graph.operators:
        operands = [new.get(value, value) for value in old.inputs]
        operator = _applied(old, operands, shapes)
        new.update(zip(old.outputs, operator.outputs, strict=True))
        if not isinstance(operator, ShapeOperator):
            operators.append(operator)
    outputs = [new.get(value, value) for value in graph.outputs]
    return Graph(inputs, outputs, operators, graph.name)


def _applied(
    old: Operator, inputs: Sequence[Value], shapes: Sequence[Shape]
) -> Operator:
    """Return ``old`` on other operands; the result of a shape operator is constant.

    ``shapes`` are those of the graph's inputs, for messages.
    """
    operator = copy.copy(old)
    operator.inputs = tuple(inputs)
    for name, body in old.attribute_values().items():
        if isinstance(body, Graph) and is_dynamic(body):
            inputs_of_body = inputs[-len(body.inputs) :]
            shapes_of_body = [value.shape for value in inputs_of_body]
            operator.__dict__[name] = specialized(body, shapes_of_body)
    try:
        types = operator.infer()
    except Illegal as why:
        given = ", ".join(str(list(shape)) for shape in shapes)
        text = (
            f"inputs of the shapes {given} do not go through the program:"
            f" {operator.name}: {why}"
        )
        raise InputError("input-invalid", text, source=old.source) from why
    if isinstance(operator, ShapeOperator):
        operator.outputs = (literal(operator.entries, DType.SHAPE, np.int64),)
        return operator
    results = zip(types, old.outputs, strict=True)
    operator.outputs = tuple(
        [Value(type, name=value.name, producer=operator) for type, value in results]
    )
    return operator

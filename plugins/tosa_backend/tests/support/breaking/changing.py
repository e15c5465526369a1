"""How an operator is changed: other operands, attributes, entries of shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from delegraph_tosa.ir.graph import (
    Graph,
    Illegal,
    Literal,
    Operator,
    Value,
    infer_all,
    literal,
    shape_of,
)
from delegraph_tosa.ir.types import ARRAY_DTYPES, DType, Type
from delegraph_tosa.spec.operator_table import rows

F32 = DType.FP32
I32 = DType.INT32
BOOL = DType.BOOL
SHAPE = DType.SHAPE
Change = Callable[[Operator], Iterator[Graph]]
"""The graphs that break a rule; none if it does not concern this operator."""


def again(
    operator: Operator,
    operands: dict[int, Value | None] | None = None,
    **attributes: Any,
) -> Graph:
    """The operator with other operands and attributes; its results follow if they can,
    else they stay as they were.
    """
    chosen = dict(enumerate(operator.inputs)) | (operands or {})
    return rebuilt(
        operator, [v for _, v in sorted(chosen.items()) if v is not None], attributes
    )


def rebuilt(
    operator: Operator,
    operands: list[Value],
    attributes: dict[str, Any],
    infer: bool = True,
) -> Graph:
    altered = type(operator)(operands, **operator.attribute_values() | attributes)
    types, wrong = _inferred(altered) if infer else ((), [])
    if wrong or not infer:
        types = tuple(output.type for output in operator.outputs)
    altered.outputs = tuple(Value(t, producer=altered) for t in types)
    return around(altered)


def _inferred(operator: Operator) -> tuple[tuple[Type, ...], list[Illegal]]:
    try:
        return infer_all(operator)
    except Exception as problem:
        raise AssertionError(
            f"infer fails otherwise than by Illegal: {operator!r}"
        ) from problem


def around(operator: Operator) -> Graph:
    """A graph of the operator."""
    inputs = [v for v in dict.fromkeys(operator.inputs) if v.constant is None]
    return Graph(
        inputs,
        [output for output in operator.outputs if output.dtype is not SHAPE],
        [operator],
    )


def of_shape(value: Value, shape: tuple[int, ...], dtype: DType | None = None) -> Value:
    """The operand with another shape or type; a constant repeats or drops elements."""
    type = Type(shape, dtype or value.dtype)
    if not isinstance(value.constant, Literal):
        return Value(type)
    return Value(
        type,
        Literal(
            np.resize(value.constant.array, shape).astype(ARRAY_DTYPES[type.dtype])
        ),
    )


def entries(*numbers: int) -> Value:
    return literal(numbers, SHAPE, np.int64)


def positions(operator: Operator) -> dict[str, int]:
    """Operand -> its position; operands behind a list are left out."""
    return (
        {}
        if operator.variadic
        else {name: i for i, name in enumerate(operator.operands)}
    )


def argument(operator: Operator, name: str) -> dict[str, Any]:
    """What the specification's table says of an argument."""
    version = (1, 0) if operator.name in rows() else (1, 1)
    return next(a for a in rows(version)[operator.name].arguments if a["name"] == name)


def tensors(operator: Operator) -> Iterator[tuple[int, Value, str]]:
    """Position, operand and shape in the specification's table of the operands that are
    tensors.
    """
    for name, i in positions(operator).items():
        if operator.inputs[i].dtype is not SHAPE:
            yield i, operator.inputs[i], argument(operator, name).get("shape") or ""


def held(operator: Operator, name: str) -> tuple[int, ...] | None:
    """The entries of an attribute or SHAPE operand of this name, if there is one."""
    if name in operator.attributes and operator.attributes[name] == "Ints":
        return tuple(getattr(operator, name))
    position = positions(operator).get(name)
    if position is None or operator.inputs[position].dtype is not SHAPE:
        return None
    return shape_of(operator.inputs[position])


def image(operator: Operator, shape: tuple[int, ...]) -> dict[int, Value | None]:
    """The first operand with another shape, and with it the scales that it may have."""
    images: dict[int, Value | None] = {0: of_shape(operator.inputs[0], shape)}
    if "input_scale" in positions(operator):
        images[1] = of_shape(operator.inputs[1], (*shape[:-1], shape[-1] // 32))
    return images


def with_entries(operator: Operator, **lists: tuple[int, ...]) -> Graph:
    """The operator with other entries of attributes or SHAPE operands."""
    places = positions(operator)
    operands = {
        places[name]: entries(*numbers)
        for name, numbers in lists.items()
        if name in places
    }
    return again(
        operator,
        operands,
        **{name: numbers for name, numbers in lists.items() if name not in places},
    )


def replaced(numbers: tuple[int, ...], position: int, number: int) -> tuple[int, ...]:
    return (*numbers[:position], number, *numbers[position:][1:])


def only(kind: type[Operator], change: Callable[[Any], Iterator[Graph]]) -> Change:
    return lambda op: change(op) if isinstance(op, kind) else iter(())


def of_shapes(*kinds: type[Operator], **operands: tuple[int, ...]) -> Change:
    """Changes entries of the SHAPE operands of these operators."""
    return lambda op: iter(
        [with_entries(op, **operands)] if isinstance(op, kinds) else []
    )


def both(*changes: Change) -> Change:
    return lambda op: (graph for change in changes for graph in change(op))

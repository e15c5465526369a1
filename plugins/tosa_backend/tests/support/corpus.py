"""A corpus for the validator: legal graphs, and one-operator graphs that change one
thing of a legal one.

``breaking`` has changes that are known to break a rule; what these here break, if
anything, the judges say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from delegraph_tosa.ir.graph import Graph, Literal, Operator, Value, shape_of
from delegraph_tosa.ir.types import ARRAY_DTYPES, DType, Type

from .samples import Sample, samples
from .structured import structured


class Illegal(NamedTuple):
    """A graph and what was done to it."""

    label: str
    graph: Graph
    allowed_by: frozenset[str]


def legal() -> list[Sample]:
    """Every row of TOSA 1.0, and control flow, variables and custom operators put
    together.
    """
    return [*samples(), *structured()]


def illegal() -> Iterator[Illegal]:
    """Each change that can be made to a legal graph, once for each operator: the first
    two rows of its table.
    """
    rows_of: dict[str, int] = {}
    for sample in legal():
        name = sample.label.partition("(")[0]
        rows_of[name] = rows_of.get(name, 0) + 1
        if rows_of[name] <= 2 and len(sample.graph.operators) == 1:
            for change, graph in _changed(sample.graph):
                yield Illegal(f"{sample.label}: {change}", graph, sample.allowed_by[0])


def _changed(graph: Graph) -> Iterator[tuple[str, Graph]]:
    operator = graph.operators[0]
    for position in range(len(operator.inputs)):
        for change, alter in _OPERAND_CHANGES.items():
            altered = alter(operator.inputs[position])
            if altered is not None:
                operands = [
                    *operator.inputs[:position],
                    altered,
                    *operator.inputs[position + 1 :],
                ]
                yield f"operand {position} {change}", _rebuilt(operator, operands, {})
    for name, value in operator.attribute_values().items():
        if operator.attributes[name] in ("ResultDType", "ResultTypes"):
            continue  # no file stores them
        for altered in _altered(value):
            yield (
                f"{name}={altered}",
                _rebuilt(operator, list(operator.inputs), {name: altered}),
            )
    for change, type in (
        _results(operator.outputs[0].type) if operator.name != "CUSTOM" else ()
    ):
        yield f"result {change}", _rebuilt(operator, list(operator.inputs), {}, type)
    yield "an operand less", _rebuilt(operator, list(operator.inputs[:-1]), {})
    yield (
        "an operand more",
        _rebuilt(operator, [*operator.inputs, operator.inputs[-1]], {}),
    )


def _altered(value: Any) -> Iterator[Any]:
    if isinstance(value, bool):
        return
    if isinstance(value, tuple):
        yield value[:-1]
        yield (*value, 1)
        yield tuple(-99 for _ in value)
        yield tuple(9000 for _ in value)
    elif isinstance(value, int) and not isinstance(value, DType) and type(value) is int:
        yield -1
        yield 99
    elif isinstance(value, DType):
        yield from (
            t
            for t in (DType.INT32, DType.INT48, DType.FP16, DType.FP32, DType.BOOL)
            if t is not value
        )


def _results(type: Type) -> Iterator[tuple[str, Type]]:
    yield "of another rank", Type((*type.shape, 2), type.dtype)
    if type.shape:
        yield (
            "of another size",
            Type((*type.shape[:-1], type.shape[-1] + 1), type.dtype),
        )
    other = DType.FP32 if type.dtype is not DType.FP32 else DType.INT32
    yield "of another type", Type(type.shape, other)


def _retyped(value: Value, type: Type) -> Value:
    """The value with another type; a constant repeats or drops elements."""
    if not isinstance(value.constant, Literal):
        return Value(type)
    return Value(
        type,
        Literal(
            np.resize(value.constant.array, type.shape).astype(ARRAY_DTYPES[type.dtype])
        ),
    )


def _of_another_rank(value: Value) -> Value | None:
    if value.dtype is DType.SHAPE:
        return None
    return _retyped(value, Type((*value.shape, 2), value.dtype))


def _of_another_size(value: Value) -> Value | None:
    if not value.shape or value.dtype is DType.SHAPE:
        return None
    return _retyped(value, Type((*value.shape[:-1], value.shape[-1] + 2), value.dtype))


def _of_another_type(value: Value) -> Value | None:
    if value.dtype is DType.SHAPE:
        return None
    return _retyped(
        value,
        Type(
            value.shape, DType.INT32 if value.dtype is not DType.INT32 else DType.FP32
        ),
    )


def _of_seven_axes(value: Value) -> Value | None:
    if value.dtype is DType.SHAPE:
        return None
    return _retyped(
        value, Type((*[1] * (7 - len(value.shape)), *value.shape), value.dtype)
    )


def _not_constant(value: Value) -> Value | None:
    return (
        Value(value.type)
        if value.constant is not None and value.dtype is not DType.SHAPE
        else None
    )


def _entries(
    change: Callable[[tuple[int, ...]], tuple[int, ...]],
) -> Callable[[Value], Value | None]:
    def alter(value: Value) -> Value | None:
        if value.dtype is not DType.SHAPE:
            return None
        entries = change(shape_of(value))
        return Value(
            Type((len(entries),), DType.SHAPE), Literal(np.array(entries, np.int64))
        )

    return alter


def _nonzero(value: Value) -> Value | None:
    single = (
        value.shape == (1,)
        and isinstance(value.constant, Literal)
        and not value.constant.array.any()
    )
    return (
        Value(value.type, Literal(np.full(1, 77, ARRAY_DTYPES[value.dtype])))
        if single
        else None
    )


_OPERAND_CHANGES: dict[str, Callable[[Value], Value | None]] = {
    "of another rank": _of_another_rank,
    "of another size": _of_another_size,
    "of another type": _of_another_type,
    "of seven axes": _of_seven_axes,
    "not constant": _not_constant,
    "not zero": _nonzero,
    "with an entry less": _entries(lambda entries: entries[:-1]),
    "with an entry more": _entries(lambda entries: (*entries, 1)),
    "with negative entries": _entries(lambda entries: tuple(-9 for _ in entries)),
    "with large entries": _entries(lambda entries: tuple(99999 for _ in entries)),
}


def _rebuilt(
    operator: Operator,
    operands: list[Value],
    changes: dict[str, Any],
    result: Type | None = None,
) -> Graph:
    """The operator with its results as they were, which is what a file that declares
    them says.
    """
    altered = type(operator)(operands, **operator.attribute_values() | changes)
    types = [
        result or operator.outputs[0].type,
        *(v.type for v in operator.outputs[1:]),
    ]
    altered.outputs = tuple(Value(t, producer=altered) for t in types)
    return Graph(
        [v for v in dict.fromkeys(operands) if v.constant is None],
        altered.outputs,
        [altered],
    )

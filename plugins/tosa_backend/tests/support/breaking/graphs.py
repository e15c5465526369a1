"""Illegal graphs of several operators: dataflow, control flow, variables."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from delegraph_tosa.ir import operators as ops
from delegraph_tosa.ir.graph import Graph, Operator, Value, literal
from delegraph_tosa.ir.types import ARRAY_DTYPES, DType, Type

from .. import structured as s
from ..samples import make_operator
from .changing import (
    BOOL,
    F32,
    I32,
    SHAPE,
    around,
)  # fmt: skip


def graphs() -> Iterator[tuple[str, str, Graph]]:
    """Rule, operator (or nothing) and graph of the rules that take more than one
    operator to break.
    """
    yield from _of_graphs()
    yield from _of_control_flow()
    yield from _of_variables()


class SOFTMAX(Operator):
    """No operator of TOSA."""

    input: Value


def _of_graphs() -> Iterator[tuple[str, str, Graph]]:
    x = s.value(2)
    added = make_operator(ops.ADD, x, x)
    yield "input-once", "", Graph([x, x], added.outputs, [added])
    known = literal([1.0, 2.0], F32, np.float32)
    yield (
        "input-from-outside",
        "",
        Graph([known], (made := make_operator(ops.ABS, known)).outputs, [made]),
    )
    shape = literal([2, 1], SHAPE, np.int64)
    made = make_operator(ops.RESHAPE, x, shape)
    yield "shape-inside", "", Graph([x], [*made.outputs, shape], [made])
    first = make_operator(ops.ABS, x)
    second = make_operator(ops.EXP, *first.outputs)
    yield "operand-defined", "EXP", Graph([x], second.outputs, [second, first])
    yield "operand-defined", "", Graph([x], [*first.outputs, s.value(3)], [first])
    yield "result-once", "ABS", Graph([x], first.outputs, [first, first])
    unknown = SOFTMAX((x,))
    unknown.outputs = (Value(Type((2,), F32), producer=unknown),)
    yield "operator-known", "SOFTMAX", Graph([x], unknown.outputs, [unknown])
    a = Value(Type((2,), F32), name="same")
    b = Value(Type((2,), F32), name="same")
    yield (
        "distinct-names",
        "",
        Graph([a, b], (made := make_operator(ops.ADD, a, b)).outputs, [made]),
    )


def _declared_as(operator: Operator, *types: Type) -> Graph:
    operator.outputs = tuple(Value(t, producer=operator) for t in types)
    return around(operator)


def _of_control_flow() -> Iterator[tuple[str, str, Graph]]:
    kept = s.kept(F32)
    flag = s.value(1, dtype=BOOL)
    x = s.value(2)
    two = Type((2,), F32)

    def branch(*operands: Value, then: Graph = kept, other: Graph = kept) -> Graph:
        return _declared_as(
            ops.COND_IF(operands, then_graph=then, else_graph=other), two
        )

    def loop(*operands: Value, cond: Graph, body: Graph) -> Graph:
        made = ops.WHILE_LOOP(operands, cond_graph=cond, body_graph=body)
        return _declared_as(made, *(v.type for v in operands))

    yield "condition", "COND_IF", branch(s.value(2, dtype=BOOL), x)
    yield "body-inputs", "COND_IF", branch(flag, s.value(3))
    yield "body-inputs", "COND_IF", branch(flag, x, x)
    yield "body-inputs", "COND_IF", branch(flag, x, other=_taking(Type((3,), F32), two))
    yield (
        "body-outputs",
        "COND_IF",
        branch(flag, x, other=_taking(two, Type((3,), F32))),
    )
    yield "body-outputs", "COND_IF", branch(flag, x, other=_taking(two, two, two))
    outside = make_operator(ops.ABS, x)
    reaching = Graph([s.value(2)], outside.outputs, [outside], "reaching")
    yield "operand-defined", "ABS", branch(flag, x, other=reaching)
    yield "operand-count", "COND_IF", branch()
    yield "data-types", "COND_IF", branch(s.value(1, dtype=I32), x)
    yield "level-rank", "COND_IF", branch(s.value(*[1] * 7, dtype=BOOL), x)
    yield (
        "attribute-type",
        "COND_IF",
        _declared_as(ops.COND_IF((flag, x), then_graph=kept), two),
    )
    many = s.kept(F32, 65)
    made = make_operator(
        ops.COND_IF,
        flag,
        *[s.value(2) for _ in range(65)],
        then_graph=many,
        else_graph=many,
    )
    yield "level-list-length", "COND_IF", around(made)
    yield "level-nesting", "COND_IF", s.branches(s.DEEPEST + 1)
    made = ops.COND_IF((flag, x), then_graph=kept, else_graph=kept)
    yield "result-type", "COND_IF", _declared_as(made, Type((3,), F32))
    count = s.value(1, dtype=I32)
    below = s.below(4)
    counting = s.counting()
    yield (
        "body-inputs",
        "WHILE_LOOP",
        loop(count, cond=below, body=_taking(Type((2,), I32), count.type)),
    )
    yield "body-inputs", "WHILE_LOOP", loop(count, cond=s.below(4, F32), body=counting)
    yield (
        "body-outputs",
        "WHILE_LOOP",
        loop(count, cond=below, body=_taking(count.type, count.type, count.type)),
    )
    yield (
        "body-outputs",
        "WHILE_LOOP",
        loop(count, cond=below, body=_taking(count.type, Type((1,), F32))),
    )
    yield (
        "condition",
        "WHILE_LOOP",
        loop(count, cond=_taking(count.type, Type((2,), BOOL)), body=counting),
    )
    yield (
        "condition",
        "WHILE_LOOP",
        loop(count, cond=_taking(count.type, Type((1,), F32)), body=counting),
    )
    yield (
        "condition",
        "WHILE_LOOP",
        loop(count, cond=_taking(count.type, *[Type((1,), BOOL)] * 2), body=counting),
    )
    yield "level-nesting", "WHILE_LOOP", s.loops(s.DEEPEST + 1)
    yield (
        "attribute-type",
        "WHILE_LOOP",
        _declared_as(ops.WHILE_LOOP((count,), cond_graph=below), count.type),
    )
    values = [s.value(2) for _ in range(65)]
    cond = Graph(
        [s.value(2) for _ in values], [literal([False], BOOL, np.bool_)], [], "never"
    )
    yield "level-list-length", "WHILE_LOOP", loop(*values, cond=cond, body=many)
    made = ops.WHILE_LOOP((count,), cond_graph=below, body_graph=counting)
    yield "result-type", "WHILE_LOOP", _declared_as(made, Type((2,), I32))
    deep = Value(Type((1,) * 7, F32))
    never = Graph([Value(deep.type)], [literal([False], BOOL, np.bool_)], [], "never")
    same = make_operator(ops.IDENTITY, Value(deep.type))
    yield (
        "level-rank",
        "WHILE_LOOP",
        loop(deep, cond=never, body=Graph(same.inputs, same.outputs, [same], "same")),
    )
    attributes = {"operator_name": "f", "domain_name": "d", "implementation_attrs": b""}
    made = make_operator(
        ops.CUSTOM, *[s.value(2) for _ in range(65)], types=(two,), **attributes
    )
    yield "level-list-length", "CUSTOM", around(made)


def _taking(given: Type, *results: Type) -> Graph:
    """A graph of one input that returns constants."""
    made = [
        make_operator(
            ops.IDENTITY, literal(np.zeros(t.shape), t.dtype, ARRAY_DTYPES[t.dtype])
        )
        for t in results
    ]
    return Graph(
        [Value(given)],
        [op.outputs[0] for op in made],
        made,
        f"gives_{len(results)}_{results[0]}",
    )


def _of_variables() -> Iterator[tuple[str, str, Graph]]:
    def read(type: Type, name: str = "state") -> Operator:
        return make_operator(ops.VARIABLE_READ, variable=name, types=(type,))

    def declared(dtype: DType = F32) -> Operator:
        return make_operator(
            ops.VARIABLE, literal([1, 0], dtype, ARRAY_DTYPES[dtype]), variable="state"
        )

    two = Type((2,), F32)
    three = Type((3,), F32)
    half = Type((2,), DType.FP16)
    reading = read(two)
    yield "variable-declared", "VARIABLE_READ", Graph([], reading.outputs, [reading])
    yield (
        "variable-declared",
        "VARIABLE_READ",
        Graph([], reading.outputs, [reading, declared()]),
    )
    yield (
        "variable-once",
        "VARIABLE",
        Graph([], reading.outputs, [declared(), declared(), reading]),
    )
    for type in (three, half):
        reading = read(type)
        yield (
            "variable-type",
            "VARIABLE_READ",
            Graph([], reading.outputs, [declared(), reading]),
        )
        x = Value(type)
        write = make_operator(ops.VARIABLE_WRITE, x, variable="state")
        after = read(two)
        yield (
            "variable-type",
            "VARIABLE_WRITE",
            Graph([x], after.outputs, [declared(), write, after]),
        )
    x = s.value(2)
    write = make_operator(ops.VARIABLE_WRITE, x, variable="other")
    copy = make_operator(ops.IDENTITY, x)
    yield (
        "variable-declared",
        "VARIABLE_WRITE",
        Graph([x], copy.outputs, [declared(), write, copy]),
    )
    runtime = ops.VARIABLE((x,), variable="state")
    reading = read(two)
    yield (
        "constant-operand",
        "VARIABLE",
        Graph([x], reading.outputs, [runtime, reading]),
    )
    twice = ops.VARIABLE_READ((), variable="state", types=(two, two))
    twice.outputs = tuple(Value(t, producer=twice) for t in twice.types)
    yield "result-count", "VARIABLE_READ", Graph([], twice.outputs, [declared(), twice])
    for dtype in (BOOL, DType.INT16, I32, DType.BF16):
        for name, graph in (
            ("VARIABLE", s.two_variables(dtype)),
            ("VARIABLE_READ", s.read_only(dtype)),
        ):
            yield "data-types", name, graph
        yield "data-types", "VARIABLE_WRITE", s.written(dtype)
    other = ops.VARIABLE_READ((), variable="state", types=(two,))
    other.outputs = (Value(three, producer=other),)
    yield "result-type", "VARIABLE_READ", Graph([], other.outputs, [declared(), other])
    yield from _malformed_variables(declared(), read(two))
    yield from _deep_variables()


def _malformed_variables(
    declared: Operator, reading: Operator
) -> Iterator[tuple[str, str, Graph]]:
    x = s.value(2)
    two = Type((2,), F32)
    copy = make_operator(ops.IDENTITY, x)
    yield (
        "operand-count",
        "VARIABLE",
        Graph([x], copy.outputs, [ops.VARIABLE((), variable="state"), copy]),
    )
    nothing = ops.VARIABLE_WRITE((), variable="state")
    yield (
        "operand-count",
        "VARIABLE_WRITE",
        Graph([], reading.outputs, [declared, nothing, reading]),
    )
    given = ops.VARIABLE_READ((x,), variable="state", types=(two,))
    given.outputs = (Value(two, producer=given),)
    yield "operand-count", "VARIABLE_READ", Graph([x], given.outputs, [declared, given])
    nameless = ops.VARIABLE(declared.inputs, variable=None)
    yield "attribute-type", "VARIABLE", Graph([x], copy.outputs, [nameless, copy])
    nameless = ops.VARIABLE_WRITE((x,), variable=None)
    yield (
        "attribute-type",
        "VARIABLE_WRITE",
        Graph([x], copy.outputs, [declared, nameless, copy]),
    )
    given = ops.VARIABLE_READ((), variable=None, types=(two,))
    given.outputs = (Value(two, producer=given),)
    yield "attribute-type", "VARIABLE_READ", Graph([], given.outputs, [declared, given])


def _deep_variables() -> Iterator[tuple[str, str, Graph]]:
    """A variable of rank 7."""
    initial = literal(np.ones((1,) * 7), F32, np.float32)
    declared = make_operator(ops.VARIABLE, initial, variable="state")
    x = Value(initial.type)
    reading = make_operator(ops.VARIABLE_READ, variable="state", types=(initial.type,))
    write = make_operator(ops.VARIABLE_WRITE, x, variable="state")
    for name in ("VARIABLE", "VARIABLE_READ"):
        yield "level-rank", name, Graph([], reading.outputs, [declared, reading])
    yield (
        "level-rank",
        "VARIABLE_WRITE",
        Graph([x], reading.outputs, [declared, write, reading]),
    )

"""Changes that break the rules of many operators."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from delegraph_tosa.ir import operators as ops
from delegraph_tosa.ir.dynamic_sizes import symbol
from delegraph_tosa.ir.graph import Deferred, Graph, Operator, Value, literal
from delegraph_tosa.ir.types import ARRAY_DTYPES, DType, Type
from delegraph_tosa.spec.operator_table import rows

from .changing import (
    BOOL,
    F32,
    I32,
    SHAPE,
    again,
    argument,
    entries,
    held,
    image,
    of_shape,
    positions,
    rebuilt,
    replaced,
    tensors,
    with_entries,
)  # fmt: skip
from .windows import WINDOWED


def an_operand_less(op: Operator) -> Iterator[Graph]:
    if not op.operands:
        yield rebuilt(op, [Value(Type((2,), F32))], {}, infer=False)
    elif not op.variadic:
        yield rebuilt(op, [*op.inputs[:-1]], {}, infer=False)
    elif len(op.operands) > 1:
        yield rebuilt(op, [*op.inputs[: len(op.operands) - 2]], {}, infer=False)


def no_attribute(op: Operator) -> Iterator[Graph]:
    for name in op.attributes:
        yield rebuilt(op, [*op.inputs], {name: None}, infer=False)


def a_larger_result(op: Operator) -> Iterator[Graph]:
    graph = again(op)
    for value in graph.operators[0].outputs[:1]:
        value.type = Type(
            (*value.shape[:-1], value.shape[-1] + 1) if value.shape else (2,),
            value.dtype,
        )
        yield graph


def another_type(op: Operator) -> Iterator[Graph]:
    """The first operand has an element type that no row has."""
    version = (1, 0) if op.name in rows() else (1, 1)
    row = rows(version)[op.name]
    if (
        not op.inputs
        or op.inputs[0].dtype is SHAPE
        or row.operands(len(op.inputs))[0] == "any"
    ):
        return
    for dtype in (
        t
        for t in (I32, F32, DType.INT16, BOOL, DType.INT48, DType.INT64)
        if t is not op.inputs[0].dtype
    ):
        graph = again(op, {0: of_shape(op.inputs[0], op.inputs[0].shape, dtype)})
        made = graph.operators[0]
        bound = row.bind(
            tuple(value.dtype for value in made.inputs),
            tuple(output.dtype for output in made.outputs),
        )
        if isinstance(bound, str) or not row.matching(bound):
            yield graph
            return


def at_runtime(op: Operator) -> Iterator[Graph]:
    """An operand that must be known is an input."""
    for name, i in positions(op).items():
        known = op.name == "DIM"  # which asks for the shape only
        if (
            op.inputs[i].dtype is not SHAPE
            and argument(op, name).get("compile_time_constant")
            and not known
        ):
            yield again(op, {i: Value(op.inputs[i].type)})


def seven_axes(op: Operator) -> Iterator[Graph]:
    yield from _seven_axes_of_layout(op)
    if (
        op.variadic
        or any(value.dtype is SHAPE for value in op.inputs)
        or hasattr(op, "perms")
        or hasattr(op, "block_size")
    ):
        return
    shaped = [
        i
        for i, _, shape in tensors(op)
        if shape in ("shape", "shape1", "shape2", "shape3")
    ]
    grown = {
        i: of_shape(op.inputs[i], (1,) * (7 - op.inputs[i].rank) + op.inputs[i].shape)
        for i in shaped
    }
    if grown:
        axis = {"axis": 6} if "axis" in op.attributes else {}
        yield again(op, grown, **axis)


def _seven_axes_of_layout(op: Operator) -> Iterator[Graph]:
    """Seven axes where attributes and shapes go with the rank."""
    grown: dict[int, Value | None] = (
        {0: of_shape(op.inputs[0], (1,) * 7)} if op.inputs else {}
    )
    if isinstance(op, ops.CONCAT):
        yield again(
            op, {i: of_shape(v, (1,) * 7) for i, v in enumerate(op.inputs)}, axis=6
        )
    elif isinstance(op, ops.TRANSPOSE):
        yield again(op, grown, perms=tuple(range(7)))
    elif isinstance(op, ops.RESHAPE):
        yield with_entries(op, shape=(2, 3, *[1] * 5))
    elif isinstance(op, ops.PAD):
        yield again(op, grown | {1: entries(*[0] * 14)})
    elif isinstance(op, ops.SLICE):
        yield again(op, grown | {1: entries(*[0] * 7), 2: entries(*[1] * 7)})
    elif isinstance(op, ops.TILE):
        yield again(op, grown | {1: entries(*[1] * 7)})


def of_two_gibibytes(op: Operator) -> Iterator[Graph]:
    if isinstance(
        op, ops.ABS | ops.ADD | ops.IDENTITY | ops.REDUCE_SUM | ops.CAST | ops.CLAMP
    ):
        size = (*[1] * (op.inputs[0].rank - 2), 1 << 16, 1 << 15)
        yield again(op, {i: of_shape(v, size) for i, v in enumerate(op.inputs)})


def of_size_0(op: Operator) -> Iterator[Graph]:
    if isinstance(
        op, ops.ABS | ops.ADD | ops.IDENTITY | ops.REVERSE | ops.CAST | ops.CLAMP
    ):
        yield again(
            op, {i: of_shape(v, (0, *v.shape[1:])) for i, v in enumerate(op.inputs)}
        )
    for name in {"RESHAPE": ("shape",), "SLICE": ("size",), "TILE": ("multiples",)}.get(
        op.name, ()
    ):
        yield with_entries(op, **{name: replaced(held(op, name) or (), 0, 0)})
    if isinstance(op, ops.TRANSPOSE_CONV2D):
        yield again(
            op, {0: of_shape(op.inputs[0], (1, 1, 1, 3))}, out_pad=(-1, -2, 0, 0)
        )
    if op.name in WINDOWED:
        yield again(
            op, image(op, (*[1] * (op.inputs[0].rank - 1), op.inputs[0].shape[-1]))
        )


def of_unknown_size(op: Operator) -> Iterator[Graph]:
    """Only 1.0 minds."""
    if isinstance(
        op, ops.ABS | ops.ADD | ops.IDENTITY | ops.REVERSE | ops.CAST | ops.CLAMP
    ):
        yield again(
            op,
            {
                i: of_shape(v, (symbol("n"), *v.shape[1:]))
                for i, v in enumerate(op.inputs)
            },
        )


# -- rules of lists and shapes ---------------------------------------------------------


def sixty_five(op: Operator) -> Iterator[Graph]:
    if isinstance(op, ops.CONCAT):
        yield rebuilt(op, [Value(op.inputs[0].type) for _ in range(65)], {})
    if isinstance(op, ops.CONCAT_SHAPE):
        yield rebuilt(op, [entries() for _ in range(65)], {})


def seventeen_entries(op: Operator) -> Iterator[Graph]:
    if isinstance(op, ops.CONCAT_SHAPE):
        yield rebuilt(op, [entries(*[1] * 9), entries(*[1] * 8)], {})
    elif op.inputs and op.inputs[0].dtype is SHAPE:
        yield again(
            op,
            {
                i: entries(*[4] * 17)
                for i, v in enumerate(op.inputs)
                if v.dtype is SHAPE
            },
        )


def none_at_all(op: Operator) -> Iterator[Graph]:
    if isinstance(op, ops.CONCAT | ops.CONCAT_SHAPE):
        yield rebuilt(op, [], {})


def an_entry_less(op: Operator) -> Iterator[Graph]:
    names = (
        "pad",
        "stride",
        "dilation",
        "kernel",
        "out_pad",
        "padding",
        "start",
        "size",
        "multiples",
        "scale",
    )
    for name in (*names, "offset", "border", "input2"):
        if (numbers := held(op, name)) is not None:
            yield with_entries(op, **{name: numbers[:-1]})


def not_at_hand(op: Operator) -> Iterator[Graph]:
    """A constant shape that would have to be loaded."""
    for i, value in enumerate(op.inputs):
        if value.dtype is SHAPE:
            yield again(
                op, {i: Value(value.type, Deferred(lambda: np.zeros(1, np.int64)))}
            )


def two_elements(op: Operator) -> Iterator[Graph]:
    yield from (
        again(op, {i: of_shape(v, (2,))})
        for i, v, shape in tensors(op)
        if shape == "[1]"
    )


def another_rank(op: Operator) -> Iterator[Graph]:
    for name, i in positions(op).items():
        low, high = argument(op, name).get("rank") or ("", "-")
        if (
            low == high
            and op.inputs[i].dtype is not SHAPE
            and (op.name, name) not in RANK_IS_SIZE
        ):
            if argument(op, name).get("shape") != "[1]":
                yield again(op, {i: of_shape(op.inputs[i], (1, *op.inputs[i].shape))})


RANK_IS_SIZE = {
    ("TABLE", "table"),
    ("RESCALE", "multiplier"),
    ("RESCALE", "shift"),
    ("SCATTER", "input"),
} | {
    *{
        ("FFT2D", "input_imag"),
        ("CONV2D_BLOCK_SCALED", "input_scale"),
        ("CONV2D_BLOCK_SCALED", "weight_scale"),
    },
    *{("MATMUL_T_BLOCK_SCALED", "A_scale"), ("MATMUL_T_BLOCK_SCALED", "B_scale")},
}
"""Operands whose whole shape is compared, so that another rule tells their rank."""


def beside_the_axes(op: Operator) -> Iterator[Graph]:
    if "axis" in op.attributes:
        yield from (again(op, axis=axis) for axis in (-1, op.inputs[0].rank))


def another_rank_than_the_first(op: Operator) -> Iterator[Graph]:
    if broadcasts(op):
        yield again(op, {1: of_shape(op.inputs[1], (1, *op.inputs[1].shape))})


def no_broadcast(op: Operator) -> Iterator[Graph]:
    if broadcasts(op):
        yield again(op, {1: of_shape(op.inputs[1], (*op.inputs[1].shape[:-1], 7))})


def broadcasts(op: Operator) -> bool:
    elementwise = (
        ops.elementwise.Binary,
        ops.comparison.Comparison,
        ops.MUL,
        ops.SELECT,
    )
    return isinstance(op, elementwise)


def a_zero_point(op: Operator) -> Iterator[Graph]:
    for name, i in positions(op).items():
        if name.endswith("_zp") and op.inputs[i].dtype is not DType.INT8:
            yield again(
                op,
                {i: literal([1], op.inputs[i].dtype, ARRAY_DTYPES[op.inputs[i].dtype])},
            )


def another_batch(op: Operator) -> Iterator[Graph]:
    if "indices" in positions(op):
        i = positions(op)["indices"]
        yield again(op, {i: of_shape(op.inputs[i], (3, *op.inputs[i].shape[1:]))})

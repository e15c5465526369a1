"""Changes that break the rules of single operators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from delegraph_tosa.ir import operators as ops
from delegraph_tosa.ir.graph import Graph, Operator, Value, literal
from delegraph_tosa.ir.types import DType, RoundingMode, Type

from .changing import (
    I32,
    Change,
    again,
    entries,
    of_shape,
    positions,
    with_entries,
)  # fmt: skip


def shift(op: Operator, number: int) -> Graph:
    return again(op, {2: literal([number], DType.INT8, np.int8)})


def resized(**lists: tuple[int, ...]) -> Change:
    """RESIZE of one pixel a row, so that sizes stay exact: ``scale``, ``offset`` and
    ``border`` decide.
    """

    def change(op: Operator) -> Iterator[Graph]:
        if isinstance(op, ops.RESIZE):
            given = {"scale": (4, 2, 4, 2), "offset": (0, 0), "border": (0, 0)} | lists
            operands = {
                positions(op)[name]: entries(*numbers)
                for name, numbers in given.items()
            }
            yield again(op, operands | {0: of_shape(op.inputs[0], (1, 1, 1, 4))})

    return change


def wide_image(op: Operator) -> Iterator[Graph]:
    if isinstance(op, ops.RESIZE):
        operands = {1: entries(1, 1, 1, 1), 2: entries(0, 0), 3: entries(0, 0)}
        yield again(op, operands | {0: of_shape(op.inputs[0], (1, 1, 16384, 1))})


def large_scale(op: Operator) -> Iterator[Graph]:
    if isinstance(op, ops.RESIZE):
        for scale in ((257, 1, 1, 1), (1, 1, 257, 1)):
            operands = {1: entries(*scale), 2: entries(0, 0), 3: entries(0, 0)}
            yield again(op, operands | {0: of_shape(op.inputs[0], (1, 2, 2, 1))})


def rescaled(dtypes: tuple[DType, DType], **attributes: Any) -> Change:
    """RESCALE between two element types with other attributes."""

    def change(op: Operator) -> Iterator[Graph]:
        if isinstance(op, ops.RESCALE) and (op.input.dtype, op.dtype) == dtypes:
            yield again(op, **attributes)

    return change


I8 = DType.INT8
I16 = DType.INT16
I48 = DType.INT48


def rank_0_per_channel(op: ops.RESCALE) -> Iterator[Graph]:
    yield again(op, {0: Value(Type((), op.input.dtype))})


def wide_scale(op: ops.RESCALE) -> Iterator[Graph]:
    if op.input.dtype is I48:
        scales = of_shape(op.multiplier, op.multiplier.shape, I32)
        yield again(op, {1: scales}, scale32=True)


def narrow_double_round(op: ops.RESCALE) -> Iterator[Graph]:
    scales = of_shape(op.multiplier, op.multiplier.shape, I16)
    yield again(op, {1: scales}, scale32=False, rounding_mode=RoundingMode.DOUBLE_ROUND)


def wrong_scale_type(op: ops.RESCALE) -> Iterator[Graph]:
    yield again(
        op,
        {1: of_shape(op.multiplier, op.multiplier.shape, I16 if op.scale32 else I32)},
    )


def other_channel_counts(op: ops.RESCALE) -> Iterator[Graph]:
    yield from (again(op, {i: of_shape(op.inputs[i], (2,))}) for i in (1, 2))


def zero_of_unsigned(op: ops.RESCALE) -> Iterator[Graph]:
    if (op.input.dtype, op.dtype) == (I16, I8):
        yield again(op, {3: literal([5], I16, np.int16)}, input_unsigned=True)


def shift_of_other_types(op: ops.MUL) -> Iterator[Graph]:
    if op.input1.dtype is not I32:
        yield shift(op, 3)


def shift_of_64(op: ops.MUL) -> Iterator[Graph]:
    if op.input1.dtype is I32:
        yield from (shift(op, number) for number in (64, -1))


def other_columns(op: Operator) -> Iterator[Graph]:
    if isinstance(op, ops.MATMUL | ops.MATMUL_T):
        # the batch
        yield again(op, {1: of_shape(op.inputs[1], (3, *op.inputs[1].shape[1:]))})
        yield again(op, {1: of_shape(op.inputs[1], (*op.inputs[1].shape[:1], 7, 7))})


def other_input(op: ops.SCATTER) -> Iterator[Graph]:
    yield again(op, {2: of_shape(op.input, (1, 4, 9))})


def concat_of_others(op: ops.CONCAT) -> Iterator[Graph]:
    yield again(op, {1: of_shape(op.inputs[1], (5, 1))})
    yield again(op, {1: of_shape(op.inputs[1], (2, 3, 1))})


def not_powers(op: Operator) -> Iterator[Graph]:
    if isinstance(op, ops.FFT2D | ops.RFFT2D):
        for size in ((1, 3, 8), (1, 4, 6)):
            yield again(op, {i: of_shape(v, size) for i, v in enumerate(op.inputs)})


def beyond_the_input(op: Operator) -> Iterator[Graph]:
    if isinstance(op, ops.SLICE):
        yield with_entries(op, start=(1, 1), size=(2, 2))
        yield with_entries(op, start=(-1, 0), size=(1, 1))
    if isinstance(op, ops.SLICE_SHAPE):
        yield again(op, {1: literal([3], I32, np.int32)})


def no_rows(op: ops.ROW_GATHER) -> Iterator[Graph]:
    yield again(op, {2: literal([0], I32, np.int32)})

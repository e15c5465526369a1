"""Changes that break the rules of block-scaled operators and tensors (1.1 draft)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from delegraph_tosa.ir import operators as ops
from delegraph_tosa.ir.graph import Graph, Operator, Value, literal
from delegraph_tosa.ir.types import BLOCK_SCALED, BlockSize, ResizeMode

from .changing import (
    I32,
    Change,
    again,
    entries,
    of_shape,
    positions,
    rebuilt,
    with_entries,
)

DATA = {"A_data", "B_data", "input_data", "weight_data"}


def no_whole_blocks(op: Operator) -> Iterator[Graph]:
    """The last size of the data is 33."""
    data = {
        i: v
        for name, i in positions(op).items()
        if name in DATA
        for v in (op.inputs[i],)
    }
    if "block_size" in op.attributes and data:
        yield again(op, {i: of_shape(v, (*v.shape[:-1], 33)) for i, v in data.items()})
    if op.variadic and getattr(op, "block_size", None) is BlockSize.BLOCK_SIZE_32:
        yield rebuilt(
            op,
            [of_shape(op.inputs[0], (*op.inputs[0].shape[:-1], 33)), *op.inputs[1:]],
            {},
        )
    if (
        isinstance(op, ops.RESHAPE_BLOCK_SCALED)
        and op.block_size is BlockSize.BLOCK_SIZE_32
    ):
        yield rebuilt(op, [*op.inputs[:-1], entries(64, 2)], {})


def other_scales(op: Operator) -> Iterator[Graph]:
    """A scale for twice as many blocks."""
    for name, i in positions(op).items():
        if name.endswith("_scale"):
            shape = op.inputs[i].shape
            yield again(op, {i: of_shape(op.inputs[i], (*shape[:-1], 2 * shape[-1]))})
    if op.variadic and getattr(op, "block_size", None) is BlockSize.BLOCK_SIZE_32:
        yield rebuilt(
            op, [op.inputs[0], of_shape(op.inputs[1], (2, 7)), *op.inputs[2:]], {}
        )


def other_blocks(op: Operator) -> Iterator[Graph]:
    """A tensor without its scale, or with one that blocks of one element do not have."""
    if op.variadic and "block_size" in op.attributes:
        sizes = {
            BlockSize.BLOCK_SIZE_1: BlockSize.BLOCK_SIZE_32,
            BlockSize.BLOCK_SIZE_32: BlockSize.BLOCK_SIZE_1,
        }
        yield again(op, block_size=sizes[op.block_size])


def other_batches(op: Operator) -> Iterator[Graph]:
    """B has three matrices, and A two."""
    if isinstance(op, ops.MATMUL_T_BLOCK_SCALED):
        yield again(
            op, {2: of_shape(op.B_data, (3, 5, 64)), 3: of_shape(op.B_scale, (3, 5, 2))}
        )


def other_channels(op: Operator) -> Iterator[Graph]:
    """The weight has 64 channels, the input 32."""
    if isinstance(op, ops.CONV2D_BLOCK_SCALED):
        yield again(
            op,
            {
                2: of_shape(op.weight_data, (5, 3, 3, 64)),
                3: of_shape(op.weight_scale, (5, 3, 3, 2)),
            },
        )


def reshaped(*shape: int) -> Change:
    """RESHAPE_BLOCK_SCALED to another shape."""

    def change(op: Operator) -> Iterator[Graph]:
        if isinstance(op, ops.RESHAPE_BLOCK_SCALED):
            yield rebuilt(op, [*op.inputs[:-1], entries(*shape)], {})

    return change


def gathered(
    indices: tuple[int, ...] | None = None, count: Value | None = None
) -> Change:
    """ROW_GATHER_BLOCK_SCALED with indices of another shape, or with another
    ``row_count``.
    """

    def change(op: Operator) -> Iterator[Graph]:
        if isinstance(op, ops.ROW_GATHER_BLOCK_SCALED):
            places = of_shape(op.indices, indices) if indices else op.indices
            yield rebuilt(op, [*op.inputs[:-2], places, count or op.row_count], {})

    return change


NO_ROWS = literal([0], I32, np.int32)
TWO_COUNTS = literal([1, 1], I32, np.int32)


def seven_axes(op: Operator) -> Iterator[Graph]:
    """Five more axes, of data and scale."""
    if isinstance(op, ops.CAST_TO_BLOCK_SCALED | ops.CAST_FROM_BLOCK_SCALED):
        yield again(
            op, {i: of_shape(v, (*[1] * 5, *v.shape)) for i, v in enumerate(op.inputs)}
        )
    yield from reshaped(*[1] * 5, 2, 64)(op)


def blocks_of_one(op: Operator) -> Iterator[Graph]:
    """Each element has a scale of its own."""
    if "block_size" in op.attributes and not op.variadic:
        places = positions(op)
        data = {
            i: op.inputs[places[name.replace("_scale", "_data")]]
            for name, i in places.items()
            if "_scale" in name
        }
        scales = {i: of_shape(op.inputs[i], v.shape) for i, v in data.items()}
        yield again(op, scales, block_size=BlockSize.BLOCK_SIZE_1)


def half_a_block(op: Operator) -> Iterator[Graph]:
    """Results whose last axis is half a block longer or shorter."""
    if isinstance(op, ops.CAST) and op.dtype in BLOCK_SCALED:
        yield again(op, {0: of_shape(op.input, (2, 48))})
    if isinstance(op, ops.RESHAPE):
        yield with_entries(op, shape=(8, 16))
    if isinstance(op, ops.SLICE):
        yield with_entries(op, size=(2, 16))


def inside_a_block(op: Operator) -> Iterator[Graph]:
    if isinstance(op, ops.SLICE):
        yield with_entries(op, start=(0, 16))


def last_axis_elsewhere(op: Operator) -> Iterator[Graph]:
    if isinstance(op, ops.TRANSPOSE):
        yield again(op, {0: of_shape(op.input1, (3, 32, 32))}, perms=(0, 2, 1))


def between_elements(op: Operator) -> Iterator[Graph]:
    if isinstance(op, ops.RESIZE):
        yield again(op, mode=ResizeMode.BILINEAR)


OF_TENSORS: dict[str, Change] = {
    "blocks": half_a_block,
    "block-start": inside_a_block,
    "block-axis": last_axis_elsewhere,
    "block-mode": between_elements,
}
"""Rule -> the change that breaks it, of operators on tensors that hold their scales."""

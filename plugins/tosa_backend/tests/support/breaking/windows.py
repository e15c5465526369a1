"""Changes that break the rules of convolutions and pooling."""

from __future__ import annotations

from collections.abc import Iterator

from delegraph_tosa.ir import operators as ops
from delegraph_tosa.ir.graph import Graph, Operator

from .changing import (
    Change,
    again,
    entries,
    held,
    image,
    of_shape,
    positions,
    replaced,
    with_entries,
)  # fmt: skip

POOLS = ("AVG_POOL2D", "MAX_POOL2D", "AVG_POOL2D_ADAPTIVE", "MAX_POOL2D_ADAPTIVE")
WINDOWED = (*POOLS, "CONV2D", "CONV3D", "DEPTHWISE_CONV2D", "CONV2D_BLOCK_SCALED")
CHANNELS = {
    "CONV2D": 3,
    "CONV3D": 4,
    "DEPTHWISE_CONV2D": 2,
    "TRANSPOSE_CONV2D": 3,
    "CONV2D_BLOCK_SCALED": 3,
}
"""Axis of the weight that has the input's channels."""


def weight(op: Operator) -> int | None:
    return next(
        (i for name, i in positions(op).items() if name in ("weight", "weight_data")),
        None,
    )


def other_channels(op: Operator) -> Iterator[Graph]:
    if op.name in CHANNELS and "BLOCK" not in op.name:
        i = weight(op) or 0
        axis = CHANNELS[op.name]
        shape = op.inputs[i].shape
        if op.name == "DEPTHWISE_CONV2D":  # C * M stays what the bias has
            yield again(op, {i: of_shape(op.inputs[i], (*shape[:2], 5, 2))})
        else:
            yield again(op, {i: of_shape(op.inputs[i], replaced(shape, axis, 2))})


def other_bias(op: Operator) -> Iterator[Graph]:
    if "bias" in positions(op):
        yield again(
            op,
            {positions(op)["bias"]: of_shape(op.inputs[positions(op)["bias"]], (3,))},
        )


def window(op: Operator) -> int | None:
    """Number of axes of the windows."""
    return len(held(op, "stride") or ()) if op.name in WINDOWED else None


def negative_pad(op: Operator) -> Iterator[Graph]:
    if op.name in WINDOWED:
        pad = held(op, "pad") or ()
        # the last stride is 1
        yield with_entries(op, pad=replaced(pad, len(pad) - 2, -1))
    if isinstance(op, ops.PAD):
        yield with_entries(op, padding=(0, 1, -1, 0))


def pad_of_the_kernel(op: Operator) -> Iterator[Graph]:
    if op.name in POOLS:
        yield with_entries(
            op, pad=replaced(held(op, "pad") or (), 2, (held(op, "kernel") or ())[1])
        )


def out_pad_of_the_kernel(op: Operator) -> Iterator[Graph]:
    if isinstance(op, ops.TRANSPOSE_CONV2D):
        yield with_entries(op, out_pad=(-3, 0, 0, 0))


def below_1(name: str) -> Change:
    def change(op: Operator) -> Iterator[Graph]:
        if op.name in (*WINDOWED, "TRANSPOSE_CONV2D", "RESIZE") and (
            numbers := held(op, name)
        ):
            for number in (0, -1):
                yield with_entries(op, **{name: replaced(numbers, 0, number)})

    return change


def inexact(op: Operator) -> Iterator[Graph]:
    if op.name in WINDOWED:
        shape = op.inputs[0].shape
        yield again(op, image(op, replaced(shape, len(shape) - 3, shape[-3] + 1)))
    if isinstance(op, ops.RESIZE):
        yield with_entries(op, border=(2, 1))


def beyond_8k(name: str) -> Change:
    """A pad, kernel, stride or dilation that is too large, along each axis."""

    def change(op: Operator) -> Iterator[Graph]:
        numbers = held(op, name)
        if numbers is None or op.name not in (*WINDOWED, "TRANSPOSE_CONV2D"):
            return
        for axis in range(len(numbers)):
            yield from _beyond(op, name, numbers, axis)

    return change


def _beyond(
    op: Operator, name: str, numbers: tuple[int, ...], axis: int
) -> Iterator[Graph]:
    """Too large along one axis, where the image is made as large as that asks for, and
    1 wherever it can be.
    """
    size = [1, *[8] * (op.inputs[0].rank - 2), op.inputs[0].shape[-1]]
    lists = {
        other: tuple(1 for _ in held(op, other) or ())
        for other in ("stride", "dilation")
        if held(op, other)
    }
    lists |= {
        other: tuple(0 for _ in held(op, other) or ())
        for other in ("pad", "out_pad")
        if held(op, other)
    }
    if held(op, "kernel"):
        lists["kernel"] = (1, 1)
    limit = 8193
    spatial = 1 + (axis // 2 if "pad" in name else axis)
    lists[name] = replaced(lists[name], axis, limit)
    if name in ("kernel", "dilation"):
        size[spatial] = 2 * limit + 8
    elif name == "stride":
        size[spatial] = (
            1
            if op.name in POOLS
            else op.inputs[weight(op) or 0].shape[KERNEL_AXES[op.name] + axis]
        )
    elif op.name in POOLS:
        lists["kernel"] = replaced((1, 1), spatial - 1, limit + 1)
    if op.name == "TRANSPOSE_CONV2D":
        size[1:3] = [1, 1]
    operands = image(op, tuple(size))
    places = positions(op)
    operands |= {
        places[n]: entries(*numbers) for n, numbers in lists.items() if n in places
    }
    yield again(
        op, operands, **{n: numbers for n, numbers in lists.items() if n not in places}
    )


KERNEL_AXES = {
    "CONV2D_BLOCK_SCALED": 1,
    "CONV2D": 1,
    "CONV3D": 1,
    "DEPTHWISE_CONV2D": 0,
    "TRANSPOSE_CONV2D": 1,
}
"""First axis of the weight that is one of the kernel."""


def long_weight(op: Operator) -> Iterator[Graph]:
    """8193 rows or columns of a weight, whose they are, and 16384 of the input of a
    Fourier transform.
    """
    if isinstance(op, ops.TRANSPOSE_CONV2D):
        for axis in (1, 2):
            yield again(
                op, {1: of_shape(op.inputs[1], replaced((5, 3, 2, 3), axis, 8193))}
            )
    if isinstance(op, ops.FFT2D | ops.RFFT2D):
        for size in ((1, 16384, 1), (1, 1, 16384)):
            yield again(op, {i: of_shape(v, size) for i, v in enumerate(op.inputs)})


def too_large(*names: str) -> Change:
    def change(op: Operator) -> Iterator[Graph]:
        for name in names:
            yield from beyond_8k(name)(op)
        if "kernel" in names:
            yield from long_weight(op)

    return change

"""Data layout, gather and scatter (specification: Data Layout, Scatter/Gather).

SHAPE operands are constants.
"""

from __future__ import annotations

import math

from ..dynamic_sizes import agree, differ, exceeds
from ..graph import (
    Illegal,
    Ints,
    Operator,
    Value,
    Values,
    check,
    note,
    note_broken,
    shape_of,
)
from ..types import BLOCK_SCALED, DType, Type
from .rules import (
    Shape,
    constant_element,
    expect_axis,
    expect_rank,
    expect_single,
    positive_sizes,
    shape_operand,
    whole_blocks,
)


class CONCAT(Operator):
    """input1: a list of tensors that differ along ``axis`` only -> their join."""

    input1: Values
    axis: int

    def infer(self) -> tuple[Type, ...]:
        check(bool(self.inputs), "CONCAT needs at least one tensor", "list-not-empty")
        first = self.inputs[0].type
        expect_axis(self.axis, len(first.shape))
        rest = _without(first.shape, self.axis)
        if not all(
            agree(_without(v.type.shape, self.axis), rest) for v in self.inputs[1:]
        ):
            types = ", ".join(str(v.type) for v in self.inputs)
            raise Illegal(
                f"the inputs of CONCAT differ outside of axis {self.axis}: {types}",
                "concat-shapes",
            )
        joined = sum(v.type.shape[self.axis] for v in self.inputs)
        shape = (*first.shape[: self.axis], joined, *first.shape[self.axis + 1 :])
        return (Type(shape, first.dtype),)


def _without(shape: Shape, axis: int) -> Shape:
    """Return ``shape`` without ``axis``."""
    return shape[:axis] + shape[axis + 1 :]


class PAD(Operator):
    """input1 [*S], padding SHAPE [2*rank], pad_const [1] -> [*S'].

    ``padding`` is a flat list of (before, after) for each axis.
    """

    input1: Value
    padding: Value
    pad_const: Value

    def infer(self) -> tuple[Type, ...]:
        shape = self.input1.shape
        padding = shape_operand(self.padding, 2 * len(shape), "padding")
        note(
            not any(exceeds(0, entry) for entry in padding),
            f"padding {list(padding)} has a negative entry",
            "pad",
        )
        expect_single(self.pad_const, "pad_const")
        padded = tuple(
            size + padding[2 * i] + padding[2 * i + 1] for i, size in enumerate(shape)
        )
        return (Type(padded, self.input1.dtype),)


class RESHAPE(Operator):
    """input1 [*S], shape SHAPE [rank of the result] -> [*S'] with the same elements."""

    input1: Value
    shape: Value

    def infer(self) -> tuple[Type, ...]:
        shape = positive_sizes(shape_of(self.shape), "shape")
        count = math.prod(shape)
        is_positive = not any(exceeds(1, size) for size in shape)
        if is_positive and differ(count, math.prod(self.input1.type.shape)):
            elements = f"the {count} elements of shape {list(shape)}"
            note_broken(f"{self.input1.type} does not have {elements}", "element-count")
        return (whole_blocks(Type(shape, self.input1.type.dtype)),)


class REVERSE(Operator):
    """input1 [*S] -> [*S], elements along ``axis`` in reverse order.

    Along the last axis of a block-scaled tensor, scales are reversed with their
    elements; the specification has no rule against it.
    """

    input1: Value
    axis: int

    def infer(self) -> tuple[Type, ...]:
        expect_axis(self.axis, self.input1.rank)
        return (self.input1.type,)


class SLICE(Operator):
    """input1 [*S], start SHAPE [rank], size SHAPE [rank] -> [size]."""

    input1: Value
    start: Value
    size: Value

    def infer(self) -> tuple[Type, ...]:
        shape = self.input1.type.shape
        start = shape_operand(self.start, len(shape), "start")
        size = positive_sizes(shape_operand(self.size, len(shape), "size"), "size")
        if any(
            exceeds(0, s) or exceeds(s + n, whole)
            for s, n, whole in zip(start, size, shape, strict=True)
        ):
            note_broken(
                f"start {list(start)} and size {list(size)} are not inside"
                f" {self.input1.type}",
                "slice-inside",
            )
        result = whole_blocks(Type(size, self.input1.type.dtype))
        expect_block(start, result.dtype)
        return (result,)


def expect_block(start: Shape, dtype: DType) -> None:
    """Check that a slice of a block-scaled type starts at the beginning of a block."""
    if dtype in BLOCK_SCALED:
        size = BLOCK_SCALED[dtype].size
        note(
            start[-1] % size == 0,
            f"start {list(start)} is inside a block of {size} elements",
            "block-start",
        )


class TILE(Operator):
    """input1 [*S], multiples SHAPE [rank] -> [*S'], repeated along each axis."""

    input1: Value
    multiples: Value

    def infer(self) -> tuple[Type, ...]:
        shape = self.input1.shape
        multiples = shape_operand(self.multiples, len(shape), "multiples")
        positive_sizes(multiples, "multiples")
        repeated = tuple(n * m for n, m in zip(shape, multiples, strict=True))
        return (Type(repeated, self.input1.dtype),)


class TRANSPOSE(Operator):
    """input1 [*S] -> [*S']; axis i of the result is axis ``perms[i]`` of the input."""

    input1: Value
    perms: Ints

    def infer(self) -> tuple[Type, ...]:
        shape, dtype = self.input1.type
        if sorted(self.perms) != list(range(len(shape))):
            raise Illegal(
                f"perms {list(self.perms)} is no permutation of the axes of"
                f" {self.input1.type}",
                "perms",
            )
        if dtype in BLOCK_SCALED and self.perms[-1:] != (len(shape) - 1,):
            note_broken(
                f"perms {list(self.perms)} must leave the last axis of"
                f" {self.input1.type} there",
                "block-axis",
            )
        return (Type(tuple([shape[p] for p in self.perms]), dtype),)


class GATHER(Operator):
    """values [N,K,C], indices [N,W] -> [N,W,C], the rows at the indices."""

    values: Value
    indices: Value

    def infer(self) -> tuple[Type, ...]:
        n, w = expect_gather_indices(self.indices, self.values)
        return (Type((n, w, self.values.shape[2]), self.values.dtype),)


class ROW_GATHER(Operator):
    """values [N,K,C], indices [N,W], row_count INT32 [1] -> [N,W*row_count,C] (1.1).

    For each index it returns ``row_count`` rows, the first of which is at the index.
    """

    values: Value
    indices: Value
    row_count: Value

    def infer(self) -> tuple[Type, ...]:
        n, w = expect_gather_indices(self.indices, self.values)
        rows = w * expect_row_count(self.row_count)
        return (Type((n, rows, self.values.shape[2]), self.values.dtype),)


def expect_gather_indices(indices: Value, values: Value) -> Shape:
    """Return the shape [N,W] of ``indices`` into ``values`` [N,K,C]."""
    n, _, _ = expect_rank(values, 3, "values")
    shape = expect_rank(indices, 2, "indices")
    note(
        not differ(shape[0], n),
        f"indices {indices.type} and values {values.type} differ in the batch",
        "batch",
    )
    return shape


def expect_row_count(row_count: Value) -> int:
    """Return the number of rows for each index, which must be a constant."""
    count = constant_element(row_count, "row_count")
    note(count >= 1, f"row_count {count} is below 1", "row-count")
    return count


class SCATTER(Operator):
    """values_in [N,K,C], indices [N,W], input [N,W,C] -> [N,K,C].

    The rows of ``input`` replace those of ``values_in`` at the indices, which differ.
    """

    values_in: Value
    indices: Value
    input: Value

    def infer(self) -> tuple[Type, ...]:
        n, _, c = expect_rank(self.values_in, 3, "values_in")
        rows, w = expect_rank(self.indices, 2, "indices")
        note(
            not differ(rows, n),
            f"indices {self.indices.type} and values_in {self.values_in.type} differ in"
            " the batch",
            "batch",
        )
        note(
            agree(self.input.shape, (n, w, c)),
            f"input must be [{n}x{w}x{c}], is {self.input.type}",
            "scatter-input",
        )
        return (self.values_in.type,)

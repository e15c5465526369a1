"""The products of all steps of a recurrent network are made a few steps at a time, each when its first step is due."""

from __future__ import annotations

import math

from ..ir.graph import Graph, Operator, Value, shape_of
from ..ir.operators import ADD, CONV2D, MAXIMUM, MINIMUM, MUL, RESCALE, SLICE
from ..ir.sizes import is_dynamic
from ..ir.types import Type
from ..spec import TosaSpec
from .rewriter import Rewrite, rebuilt, replaced

BLOCKS = 5
"""How many blocks are made of a product. Each reads all weights again, and takes a fifth of the memory."""
LEAST = 2 * BLOCKS
"""The fewest rows of a product that is split."""
COMMUTE = frozenset({ADD, MAXIMUM, MINIMUM, MUL})
Blocks = list[tuple[int, Value]]
"""Parts of a product, each with its first row."""


def split_products(graph: Graph, spec: TosaSpec) -> Graph:
    """Compute a product in blocks of rows, if nothing reads it but slices of single rows.

    before: CONV2D [25,1,1,10] by [192,1,1,10] - RESCALE - SLICE of row 0, SLICE of row 1, ...
    after:  RESHAPE [1,25,1,10] - SLICE [1,5,1,10] - CONV2D - RESCALE - SLICE of row 0, SLICE of row 1, ...
            and the same with four more blocks of 5 rows

    A recurrent network multiplies all its inputs at once, and reads a row of the result in each step. Vela computes the
    last operand of an operator first, with all that it needs. So the operand with the longest computation, the state,
    becomes the last one of sums and products: then a block is computed after the steps that do not read it, and the
    memory of the blocks before is free. The price is that each block reads the weights: a GRU of 25 steps takes 1.6 kB
    of SRAM on an Ethos-U85-256 in place of 5.1, and 39,095 cycles in place of 31,863.
    """
    readers: dict[Value, list[Operator | None]] = {value: [None] for value in graph.outputs}
    for operator in graph.operators:
        for value in operator.inputs:
            readers.setdefault(value, []).append(operator)
    rewrite = Rewrite()
    split: dict[Value, Blocks] = {}
    for old in graph.operators:
        operator = rewrite.renewed(old)
        if isinstance(old, SLICE) and old.inputs[0] in split:
            operator = _row(operator, split[old.inputs[0]], rewrite)
        elif isinstance(old, RESCALE) and _is_read_by_rows(old, readers):
            made, blocks = _in_blocks(operator)
            if all(spec.why_not(new) is None for new in made.operators):
                rewrite.operators += made.operators
                split[old.outputs[0]] = blocks
                continue
        rewrite.put(old, operator)
    return _longest_last(rewrite.graph(graph)) if split else graph


def _is_read_by_rows(rescale: Operator, readers: dict[Value, list[Operator | None]]) -> bool:
    """Whether ``rescale`` ends a product of LEAST rows or more, [N,1,1,C], of which only single rows are read."""
    convolution, result = rescale.inputs[0].producer, rescale.outputs[0]
    if not isinstance(convolution, CONV2D) or readers[rescale.inputs[0]] != [rescale]:
        return False
    x, weight = convolution.inputs[:2]
    if {*x.shape[1:3], *weight.shape[1:3], *convolution.stride} != {1} or any(convolution.pad):
        return False
    if any(map(is_dynamic, x.shape)) or x.shape[0] < LEAST:
        return False
    return all(
        isinstance(reader, SLICE) and shape_of(reader.inputs[2])[0] == 1 for reader in readers.get(result, [None])
    )


def _in_blocks(rescale: Operator) -> tuple[Rewrite, Blocks]:
    """What computes the product that ``rescale`` ends in blocks of about as many rows, and these blocks."""
    made, blocks = Rewrite(), []
    convolution = rescale.inputs[0].producer
    assert convolution is not None
    x, *others = convolution.inputs
    rows, channels = x.shape[0], x.shape[3]
    # along the height: a slice of images, or of columns, is copied
    image = made.reshape(x, (1, rows, 1, channels), convolution.source)
    for block in range(BLOCKS):
        first, end = (math.ceil(number * rows / BLOCKS) for number in (block, block + 1))
        size = (1, end - first, 1, channels)
        places = made.shape((0, first, 0, 0)), made.shape(size)
        part = made.make(SLICE, (image, *places), Type(size, x.dtype), convolution.source)
        sums = rebuilt(convolution, (part, *others))
        narrow = rebuilt(rescale, (sums.outputs[0], *rescale.inputs[1:]))
        made.operators += sums, narrow
        blocks.append((first, narrow.outputs[0]))
    return made, blocks


def _row(slice: Operator, blocks: Blocks, rewrite: Rewrite) -> Operator:
    """``slice``, of a single row of a product, as one of the block that has this row."""
    _, start, size = slice.inputs
    row, *_, channel = shape_of(start)
    first, block = next(block for block in reversed(blocks) if block[0] <= row)
    return replaced(slice, (block, rewrite.shape((0, row - first, 0, channel)), size))


def _longest_last(graph: Graph) -> Graph:
    """``graph``, where of two operands of one shape the last is the one that takes the longer row of operators."""
    length: dict[Value, int] = {}
    rewrite = Rewrite()
    for old in graph.operators:
        operator = rewrite.renewed(old)
        if type(operator) in COMMUTE:
            left, right, *others = operator.inputs
            is_longer = length.get(left, 0) > length.get(right, 0)
            if is_longer and right.constant is None and left.shape == right.shape:
                operator = replaced(operator, (right, left, *others))
        longest = max((length.get(value, 0) for value in operator.inputs), default=0)
        length.update(dict.fromkeys(operator.outputs, longest + 1))
        rewrite.put(old, operator)
    return rewrite.graph(graph)

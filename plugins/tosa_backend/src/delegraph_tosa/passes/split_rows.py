"""Computes norms, softmax and attention in blocks of rows to save memory."""

from __future__ import annotations

import math
from itertools import chain, pairwise
from typing import NamedTuple

from ..ir.graph import Graph, Operator, Value
from ..ir.operators import CONCAT, MATMUL, SLICE
from ..ir.types import Type
from ..spec import TosaSpec
from .dce import drop_dead
from .early_slices import EarlySlices, with_size
from .memory import Memory, bytes_of
from .rewriter import Rewrite, rebuilt
from .row_regions import Readers, Region, readers_of, regions_of, results_of

DEVICES = frozenset({"u55", "u85"})
FAST_MEMORY = 1 << 18
"""Bytes of fast memory. A network that needs no more gains nothing."""
LEAST_SHARE = 0.75
"""A block may take this share of the memory that other values need meanwhile.

Smaller blocks would save little of the sum.
"""
MOST_BLOCKS = 16
"""The most blocks of a region.

An operator takes about a hundred cycles, however few rows it computes.
"""


class SplitRegion(NamedTuple):
    """A region that is computed in ``block_count`` blocks of rows."""

    region: Region
    block_count: int


def split_heads(graph: Graph, spec: TosaSpec) -> Graph:
    """Compute the heads of an attention one by one where this saves memory.

    before: CONV2D [1,1,197,192] - RESCALE - RESHAPE [197,3,64] - TRANSPOSE
            - MATMUL [3,197,197] - ...
    after:  CONV2D [1,1,197,64] - RESCALE - RESHAPE [1,197,64] - MATMUL [1,197,197]
            - ..., for each head - CONCAT

    Vela computes a product of heads by one operator for each head, so that this costs
    no cycles. Then only one head is in memory, and split_rows makes fewer blocks.
    """
    found: list[SplitRegion] = []
    for split in _too_large(graph, spec):
        heads = split.region.heads()
        if heads is not None and heads.size <= MOST_BLOCKS:
            found.append(SplitRegion(heads, heads.size))
    return _in_blocks(graph, spec, found)


def split_rows(graph: Graph, spec: TosaSpec) -> Graph:
    """Compute independent rows in blocks where this saves memory.

    before: x int8 [1,197,192] - CAST - MUL, REDUCE_SUM - SUB - ... - RESCALE to int8
    after:  SLICE [1,99,192] of x - CAST - ... - RESCALE,
            the same with the other 98 rows - CONCAT

    The sum of a row is known only after all elements of the row. Until then, each
    element takes 32 bits, which is the most memory of a network. In an attention of 3
    heads and 197 positions, scores and their differences take 932 kB, queries 38 kB.
    Blocks take more cycles, so a region gets no more blocks than bring it below the
    memory of the rest of the network.
    """
    return _in_blocks(graph, spec, _too_large(graph, spec))


def _in_blocks(graph: Graph, spec: TosaSpec, regions: list[SplitRegion]) -> Graph:
    """Return ``graph``, with each of the ``regions`` computed in blocks."""
    if not regions:
        return graph
    # last operator of a region, where its blocks are computed -> region
    ends = {split.region.operators[-1]: split for split in regions}
    inside: set[Operator] = set()
    for split in regions:
        inside.update(split.region.operators)
    rewrite = Rewrite()
    readers = readers_of(graph)
    slices = EarlySlices(rewrite, readers, inside)
    for operator in graph.operators:
        if operator not in inside:
            rewrite.put(operator, rewrite.with_new_operands(operator))
        elif operator in ends:
            _compute_in_blocks(ends[operator], readers, slices)
    return drop_dead(rewrite.graph(graph), spec)


def _compute_in_blocks(
    split: SplitRegion, readers: Readers, slices: EarlySlices
) -> None:
    """Repeat the operators of a region for each block, and CONCAT the results."""
    region, count = split
    bounds = [math.ceil(k * region.size / count) for k in range(count + 1)]
    # output of the region -> its parts
    parts: dict[Value, list[Value]] = {value: [] for value in region.outputs(readers)}
    for start, end in pairwise(bounds):
        block = Block(region, range(start, end), slices)
        for operator in region.operators:
            block.compute(operator)
        for value, computed in parts.items():
            computed.append(block.part(value))
    for value, computed in parts.items():
        source = value.producer and value.producer.source
        whole = slices.rewrite.make(
            CONCAT, tuple(computed), value.type, source, axis=region.axis
        )
        whole.name = value.name
        slices.rewrite.forward(value, whole)


class Block:
    """The parts of a region's values that lie at ``rows`` along its axis."""

    def __init__(self, region: Region, rows: range, slices: EarlySlices) -> None:
        self._region = region
        self._rows = rows
        self._slices = slices
        self._parts: dict[Value, Value] = {}

    def compute(self, operator: Operator) -> None:
        """Append a copy of ``operator`` that computes only these rows."""
        rewrite = self._slices.rewrite
        by_row, whole = self._region.operands(operator)
        inputs = [
            self.part(value) if self._region.has_rows(value) else rewrite.value(value)
            for value in by_row
        ]
        inputs += [rewrite.value(value) for value in whole]
        types: list[Type] = []
        for value in operator.outputs:
            shape = with_size(value.shape, self._region.axis, len(self._rows))
            types.append(Type(shape, value.dtype))
        if isinstance(operator, SLICE):
            inputs[2] = rewrite.shape(types[0].shape)
        new = rebuilt(operator, inputs, types)
        rewrite.operators.append(new)
        self._parts.update(zip(operator.outputs, new.outputs, strict=True))

    def part(self, value: Value) -> Value:
        """Return the rows of ``value``: computed by ``compute``, or sliced."""
        if value not in self._parts:
            self._parts[value] = self._sliced(value)
        return self._parts[value]

    def _sliced(self, value: Value) -> Value:
        """Return the rows of a value from outside of the region."""
        axis = self._region.axis
        if axis == 0 and len(self._rows) == 1:
            # a head: the layer before can compute the channels of this head alone
            users = self._region.operators
            return self._slices.slice_early(value, axis, self._rows, users)
        return self._slices.slice(value, axis, self._rows)


def _too_large(graph: Graph, spec: TosaSpec) -> list[SplitRegion]:
    """Return the regions that dominate memory, with their numbers of blocks.

    While a region is computed, memory holds its inner values and other values: inputs,
    outputs, and values that are needed later. Only inner values shrink with blocks.
    """
    if not DEVICES & spec.devices:
        return []
    readers = readers_of(graph)
    regions = regions_of(graph, readers)
    memory = Memory(graph, readers)
    alive = memory.alive([*graph.inputs, *results_of(graph.operators)])
    spans = [_span(region, memory) for region in regions]
    within = set(chain.from_iterable(spans))
    outside = [size for position, size in enumerate(alive) if position not in within]
    # memory that the rest of the network needs anyhow
    enough = max([FAST_MEMORY, *outside])
    found: list[SplitRegion] = []
    for region, span in zip(regions, spans, strict=True):
        outputs = set(region.outputs(readers))
        inner = [v for v in results_of(region.operators) if v not in outputs]
        own = memory.alive(inner)
        other = max(alive[position] - own[position] for position in span)
        other += _bytes_transposed(region)
        room = max(enough - other, LEAST_SHARE * other, 1)
        count = min(math.ceil(max(own) / room), MOST_BLOCKS, region.size)
        if count > 1:
            found.append(SplitRegion(region, count))
    return found


def _span(region: Region, memory: Memory) -> range:
    """Return the positions from the region's first operator to its last one."""
    first = memory.positions[region.operators[0]]
    last = memory.positions[region.operators[-1]]
    return range(first, last + 1)


def _bytes_transposed(region: Region) -> int:
    """Return the bytes that Vela needs to transpose the right operands of products."""
    products = [op for op in region.operators if isinstance(op, MATMUL)]
    return sum(bytes_of(product.inputs[1]) for product in products)

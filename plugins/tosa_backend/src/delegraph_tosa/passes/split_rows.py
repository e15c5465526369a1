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
SMALL = 1 << 18
"""Bytes of fast memory. A network that needs no more gains nothing."""
SHARE = 0.75
"""Memory of a block relative to the values that stay; less would gain little."""
MOST = 16
"""The most blocks of a region.

An operator takes about a hundred cycles, however few rows it computes.
"""


class Blocks(NamedTuple):
    """A region that is computed in ``number`` blocks of rows."""

    region: Region
    number: int


def split_heads(graph: Graph, spec: TosaSpec) -> Graph:
    """Compute the heads of an attention one by one where this saves memory.

    before: CONV2D [1,1,197,192] - RESCALE - RESHAPE [197,3,64] - TRANSPOSE
            - MATMUL [3,197,197] - ...
    after:  CONV2D [1,1,197,64] - RESCALE - RESHAPE [1,197,64] - MATMUL [1,197,197]
            - ..., for each head - CONCAT

    Vela computes a product of heads by one operator for each of them, so that this
    costs no cycles. Then only one head is in memory, and split_rows makes fewer blocks.
    """
    found: list[Blocks] = []
    for blocks in _too_large(graph, spec):
        heads = blocks.region.heads()
        if heads is not None and heads.size <= MOST:
            found.append(Blocks(heads, heads.size))
    return _in_blocks(graph, spec, found)


def split_rows(graph: Graph, spec: TosaSpec) -> Graph:
    """Compute independent rows in blocks where this saves memory.

    before: x int8 [1,197,192] - CAST - MUL, REDUCE_SUM - SUB - ... - RESCALE to int8
    after:  SLICE [1,99,192] of x - CAST - ... - RESCALE, the same with the other 98
    rows - CONCAT

    A sum over a row is known when all of it was read, and until then each element has
    32 bits. These take the most memory of a network: of an attention of 3 heads and 197
    positions, scores and their differences are 932 kB, and queries 38 kB. Blocks
    take more cycles, so there are as many as bring a region below the rest of the
    network.
    """
    return _in_blocks(graph, spec, _too_large(graph, spec))


def _in_blocks(graph: Graph, spec: TosaSpec, regions: list[Blocks]) -> Graph:
    """Return ``graph``, with each of the ``regions`` computed in blocks."""
    if not regions:
        return graph
    ends = {blocks.region.operators[-1]: blocks for blocks in regions}
    inside: set[Operator] = set()
    for blocks in regions:
        inside.update(blocks.region.operators)
    rewrite = Rewrite()
    readers = readers_of(graph)
    slices = EarlySlices(rewrite, readers, inside)
    for operator in graph.operators:
        if operator not in inside:
            rewrite.put(operator, rewrite.renewed(operator))
        elif operator in ends:
            _compute_in_blocks(ends[operator], readers, slices)
    return drop_dead(rewrite.graph(graph), spec)


def _compute_in_blocks(blocks: Blocks, readers: Readers, slices: EarlySlices) -> None:
    """Repeat the operators of a region for each block, and CONCAT the results."""
    region, number = blocks
    ends = [math.ceil(k * region.size / number) for k in range(number + 1)]
    parts: dict[Value, list[Value]] = {value: [] for value in region.outputs(readers)}
    for start, end in pairwise(ends):
        block = Block(region, range(start, end), slices)
        for operator in region.operators:
            block.compute(operator)
        for value, made in parts.items():
            made.append(block.part(value))
    for value, made in parts.items():
        source = value.producer and value.producer.source
        whole = slices.rewrite.make(
            CONCAT, tuple(made), value.type, source, axis=region.axis
        )
        whole.name = value.name
        slices.rewrite.forward(value, whole)


class Block:
    """The values of a region at some ``places`` along its axis."""

    def __init__(self, region: Region, places: range, slices: EarlySlices) -> None:
        self._region = region
        self._places = places
        self._slices = slices
        self._parts: dict[Value, Value] = {}

    def compute(self, operator: Operator) -> None:
        """Put ``operator`` at these places."""
        rewrite = self._slices.rewrite
        by_row, whole = self._region.operands(operator)
        inputs = [
            self.part(value) if self._region.has_rows(value) else rewrite.value(value)
            for value in by_row
        ]
        inputs += [rewrite.value(value) for value in whole]
        types: list[Type] = []
        for value in operator.outputs:
            shape = with_size(value.shape, self._region.axis, len(self._places))
            types.append(Type(shape, value.dtype))
        if isinstance(operator, SLICE):
            inputs[2] = rewrite.shape(types[0].shape)
        new = rebuilt(operator, inputs, types)
        rewrite.operators.append(new)
        self._parts.update(zip(operator.outputs, new.outputs, strict=True))

    def part(self, value: Value) -> Value:
        """Return this part of ``value``, computed here or sliced."""
        if value not in self._parts:
            self._parts[value] = self._sliced(value)
        return self._parts[value]

    def _sliced(self, value: Value) -> Value:
        """Return this part of a value that the region reads."""
        axis = self._region.axis
        if axis == 0 and len(self._places) == 1:
            # heads have channels of their own
            users = self._region.operators
            return self._slices.slice_early(value, axis, self._places, users)
        return self._slices.slice(value, axis, self._places)


def _too_large(graph: Graph, spec: TosaSpec) -> list[Blocks]:
    """Return the regions that dominate memory, with the number of blocks."""
    if not DEVICES & spec.devices:
        return []
    readers = readers_of(graph)
    regions = regions_of(graph, readers)
    memory = Memory(graph, readers)
    alive = memory.alive([*graph.inputs, *results_of(graph.operators)])
    spans = [_span(region, memory) for region in regions]
    within = set(chain.from_iterable(spans))
    outside = [size for place, size in enumerate(alive) if place not in within]
    enough = max([SMALL, *outside])
    found: list[Blocks] = []
    for region, span in zip(regions, spans, strict=True):
        results = set(region.outputs(readers))
        inner = [v for v in results_of(region.operators) if v not in results]
        own = memory.alive(inner)
        other = max(alive[place] - own[place] for place in span)
        other += _bytes_transposed(region)
        room = max(enough - other, SHARE * other, 1)
        number = min(math.ceil(max(own) / room), MOST, region.size)
        if number > 1:
            found.append(Blocks(region, number))
    return found


def _span(region: Region, memory: Memory) -> range:
    """Return the places of the region's operators in the graph."""
    first = memory.places[region.operators[0]]
    last = memory.places[region.operators[-1]]
    return range(first, last + 1)


def _bytes_transposed(region: Region) -> int:
    """Return the bytes of second operands of products, which Vela transposes."""
    products = [op for op in region.operators if isinstance(op, MATMUL)]
    return sum(bytes_of(product.inputs[1]) for product in products)

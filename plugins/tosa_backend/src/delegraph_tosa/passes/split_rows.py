"""Computes norms, softmax and attention in blocks of rows to save memory."""

from __future__ import annotations

import math

from ..ir.graph import Graph, Operator, Value
from ..ir.operators import CONCAT, MATMUL, SLICE
from ..ir.types import Type
from ..spec import TosaSpec
from .dce import drop_dead
from .early_slices import EarlySlices, with_size
from .memory import Memory, bytes_of
from .rewriter import Rewrite, rebuilt
from .row_regions import Readers, Region, readers_of, regions_of

DEVICES = frozenset({"u55", "u85"})
SMALL = 1 << 18
"""Bytes of fast memory. A network that needs no more gains nothing."""
SHARE = 0.75
"""Memory of a block relative to the values that stay; less would gain little."""
MOST = 16
"""The most blocks of a region.

An operator takes about a hundred cycles, however few rows it computes.
"""


def split_heads(graph: Graph, spec: TosaSpec) -> Graph:
    """Compute the heads of an attention one by one where this saves memory.

    before: CONV2D [1,1,197,192] - RESCALE - RESHAPE [197,3,64] - TRANSPOSE - MATMUL
    [3,197,197] - ... after:  CONV2D [1,1,197,64] - RESCALE - RESHAPE [1,197,64] -
    MATMUL [1,197,197] - ..., for each head - CONCAT

    Vela computes a product of heads by one operator for each of them, so that this
    costs no cycles. Then only one head is in memory, and split_rows makes fewer blocks.
    """
    heads = [region.heads() for region, _ in _too_large(graph, spec)]
    return _in_blocks(
        graph,
        spec,
        [(region, region.size) for region in heads if region and region.size <= MOST],
    )


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


def _in_blocks(
    graph: Graph, spec: TosaSpec, regions: list[tuple[Region, int]]
) -> Graph:
    """Return ``graph``, where each of the ``regions`` is computed in so many blocks."""
    if not regions:
        return graph
    ends = {region.operators[-1]: (region, number) for region, number in regions}
    inside = {operator for region, _ in regions for operator in region.operators}
    rewrite = Rewrite()
    readers = readers_of(graph)
    slices = EarlySlices(rewrite, readers, inside)
    for operator in graph.operators:
        if operator not in inside:
            rewrite.put(operator, rewrite.renewed(operator))
        elif operator in ends:
            _compute_in_blocks(*ends[operator], readers, slices)
    return drop_dead(rewrite.graph(graph), spec)


def _compute_in_blocks(
    region: Region, number: int, readers: Readers, slices: EarlySlices
) -> None:
    """Repeat the operators of ``region`` for each block, and CONCAT the results."""
    parts: dict[Value, list[Value]] = {value: [] for value in region.outputs(readers)}
    for number_of_block in range(number):
        places = range(
            *(
                math.ceil(end * region.size / number)
                for end in (number_of_block, number_of_block + 1)
            )
        )
        block = Block(region, places, slices)
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
        alone, whole = self._region.operands(operator)
        inputs = [
            self.part(v) if self._region.has_rows(v) else rewrite.value(v)
            for v in alone
        ]
        inputs += [rewrite.value(v) for v in whole]
        types = [
            Type(with_size(v.shape, self._region.axis, len(self._places)), v.dtype)
            for v in operator.outputs
        ]
        if isinstance(operator, SLICE):
            inputs[2] = rewrite.shape(types[0].shape)
        new = rebuilt(operator, inputs, types)
        rewrite.operators.append(new)
        self._parts.update(zip(operator.outputs, new.outputs, strict=True))

    def part(self, value: Value) -> Value:
        """Return this part of ``value``, computed here or sliced."""
        if value not in self._parts:
            place = value, self._region.axis, self._places
            # heads have channels of their own
            is_head = self._region.axis == 0 and len(self._places) == 1
            users = self._region.operators
            self._parts[value] = (
                self._slices.slice_early(*place, users)
                if is_head
                else self._slices.slice(*place)
            )
        return self._parts[value]


def _too_large(graph: Graph, spec: TosaSpec) -> list[tuple[Region, int]]:
    """Return the regions that dominate memory, with the number of blocks."""
    if not DEVICES & spec.devices:
        return []
    readers = readers_of(graph)
    regions = regions_of(graph, readers)
    memory = Memory(graph, readers)
    places = memory.places
    spans = [
        range(places[region.operators[0]], places[region.operators[-1]] + 1)
        for region in regions
    ]
    alive = memory.alive(
        [
            *graph.inputs,
            *[value for operator in graph.operators for value in operator.outputs],
        ]
    )
    within = {place for span in spans for place in span}
    enough = max(
        [SMALL, *[size for place, size in enumerate(alive) if place not in within]]
    )
    found = []
    for region, span in zip(regions, spans, strict=True):
        results = set(region.outputs(readers))
        own = memory.alive(
            [
                v
                for operator in region.operators
                for v in operator.outputs
                if v not in results
            ]
        )
        # Vela transposes the second operand of each product
        products = [
            operator.inputs[1]
            for operator in region.operators
            if isinstance(operator, MATMUL)
        ]
        beside = max(alive[place] - own[place] for place in span) + sum(
            map(bytes_of, products)
        )
        number = min(
            math.ceil(max(own) / max(enough - beside, SHARE * beside, 1)),
            MOST,
            region.size,
        )
        if number > 1:
            found.append((region, number))
    return found

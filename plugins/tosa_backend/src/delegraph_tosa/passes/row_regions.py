"""Finds regions of a graph that compute each row from the same row alone.

Examples are a norm and an attention.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from ..ir import operators as tosa
from ..ir.dynamic_sizes import is_dynamic
from ..ir.graph import Graph, Operator, Value, Values
from ..ir.types import DType
from .unit_axes import DATA

REDUCTIONS = tosa.REDUCE_MAX, tosa.REDUCE_MIN, tosa.REDUCE_SUM
OPERANDS: dict[type[Operator], int] = {
    **DATA,
    **dict.fromkeys(
        (*REDUCTIONS, tosa.BITWISE_NOT, tosa.LOGICAL_NOT, tosa.MATMUL, tosa.SLICE), 1
    ),
    **dict.fromkeys(
        (
            tosa.BITWISE_AND,
            tosa.BITWISE_OR,
            tosa.EQUAL,
            tosa.GREATER,
            tosa.GREATER_EQUAL,
        ),
        2,
    ),
    **dict.fromkeys((tosa.LOGICAL_AND, tosa.LOGICAL_OR, tosa.LOGICAL_RIGHT_SHIFT), 2),
    tosa.SELECT: 3,
}
"""Operator that may compute each row alone -> how many of its operands may have rows.

It reads the others whole.
"""
KEPT = DType.INT8
"""The type of activations, where a region begins and ends."""

Readers = dict[Value, list[Operator | None]]
"""Maps a value to its readers, each once; None means a result of the graph."""


def readers_of(graph: Graph) -> Readers:
    """Who reads each value of ``graph``."""
    readers: Readers = defaultdict(list)
    for operator in graph.operators:
        for value in dict.fromkeys(operator.inputs):
            readers[value].append(operator)
    for value in graph.outputs:
        readers[value].append(None)
    return readers


class Region(NamedTuple):
    """Operators that compute each of ``size`` rows along ``axis`` from one row."""

    axis: int
    size: int
    operators: list[Operator]

    def has_rows(self, value: Value) -> bool:
        """Return whether ``value`` has the rows, and not one for all of them."""
        return value.rank > self.axis and value.shape[self.axis] == self.size

    def operands(self, operator: Operator) -> tuple[Values, Values]:
        """Return the operands that are read by row, and those that are read whole."""
        # each head of a product reads one of both operands
        count = (
            2
            if isinstance(operator, tosa.MATMUL) and self.axis == 0
            else OPERANDS[type(operator)]
        )
        return operator.inputs[:count], operator.inputs[count:]

    def read_by(self, operator: Operator) -> list[Value]:
        """Return the operands of which a row of the result needs one row."""
        return [value for value in self.operands(operator)[0] if self.has_rows(value)]

    def fits(self, operator: Operator) -> bool:
        """Return whether ``operator`` computes each row from the same row."""
        if (
            type(operator) not in OPERANDS
            or not self.has_rows(operator.outputs[0])
            or not self.read_by(operator)
        ):
            return False
        if isinstance(operator, tosa.MATMUL):
            return self.axis < 2
        # a scale for each channel is an operand that has no rows
        is_last = self.axis == operator.outputs[0].rank - 1
        return not (
            isinstance(operator, tosa.RESCALE) and operator.per_channel and is_last
        )

    def heads(self) -> Region | None:
        """Return the same operators along the first axis, if heads are separate."""
        along = self._replace(axis=0, size=self.operators[0].outputs[0].shape[0])
        if along.size == 1 or not all(map(along.fits, self.operators)):
            return None
        return (
            along
            if any(isinstance(operator, tosa.MATMUL) for operator in self.operators)
            else None
        )

    def outputs(self, readers: Readers) -> list[Value]:
        """Return the results that something else reads."""
        inside: set[Operator | None] = {*self.operators}
        made = [value for operator in self.operators for value in operator.outputs]
        return [value for value in made if not inside.issuperset(readers[value])]


def regions_of(graph: Graph, readers: Readers) -> list[Region]:
    """Find disjoint regions between int8 values, one around each reduction.

    Without a reduction there is nothing to wait for: NPUs compute a chain of
    element-wise operators in one pass.
    """
    places = {operator: place for place, operator in enumerate(graph.operators)}
    taken: set[Operator] = set()
    regions = []
    for operator in graph.operators:
        if isinstance(operator, REDUCTIONS) and operator not in taken:
            region = _grown(operator, readers, places)
            if (
                region
                and taken.isdisjoint(region.operators)
                and _is_together(region, readers, places)
            ):
                taken.update(region.operators)
                regions.append(region)
    return regions


def _grown(
    reduction: Operator, readers: Readers, places: dict[Operator, int]
) -> Region | None:
    """Return all operators around ``reduction`` up to values of int8.

    None if something else reads or makes a wider value.
    """
    shape = reduction.inputs[0].shape
    reduced = reduction.attribute_values()["axis"]
    if len(shape) == 1 or any(map(is_dynamic, shape)):
        return None
    axis = max((a for a in range(len(shape)) if a != reduced), key=lambda a: shape[a])
    region = Region(axis, shape[axis], [])
    found = {reduction}
    pending = [reduction]
    while pending:
        operator = pending.pop()
        near = [value.producer for value in region.read_by(operator) if _is_wide(value)]
        near += [
            reader
            for value in operator.outputs
            if _is_wide(value)
            for reader in readers[value]
        ]
        for other in near:
            if other is None or other not in places or not region.fits(other):
                return None
            if other not in found:
                found.add(other)
                pending.append(other)
    # a TABLE of int8 between two of them, as of exp on Ethos-U55
    made = [value for operator in found for value in operator.outputs]
    tables = {
        reader
        for value in made
        for reader in readers[value]
        if isinstance(reader, tosa.TABLE)
    }
    found |= {table for table in tables if found.issuperset(readers[table.outputs[0]])}
    return region._replace(operators=sorted(found, key=places.__getitem__))


def _is_wide(value: Value) -> bool:
    """Return whether ``value`` is computed, with more bits than activations have."""
    return value.constant is None and value.dtype is not KEPT


def _is_together(region: Region, readers: Readers, places: dict[Operator, int]) -> bool:
    """Return whether the region's rows are independent and readers can wait.

    For that its last operator must come before these readers.
    """
    inside = set(region.operators)
    if any(
        value.producer in inside
        for operator in region.operators
        for value in region.operands(operator)[1]
    ):
        return False
    last = places[region.operators[-1]]
    outside = [
        reader
        for value in region.outputs(readers)
        for reader in readers[value]
        if reader
    ]
    return all(places[reader] > last for reader in outside if reader not in inside)

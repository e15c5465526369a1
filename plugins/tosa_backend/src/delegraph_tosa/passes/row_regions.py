"""Finds regions of a graph that compute each row from the same row of their operands.

Examples are a norm and an attention. Rows lie along any axis, the region's axis: a
softmax over the last axis of [N,L,S] computes each of the L rows alone. A region begins
and ends at values of int8. Between them are wide values, with 32 or more bits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from ..ir import operators as tosa
from ..ir.dynamic_sizes import is_dynamic
from ..ir.graph import Graph, Operator, Value, Values
from ..ir.types import DType
from .unit_axes import DATA_OPERANDS

REDUCTIONS = tosa.REDUCE_MAX, tosa.REDUCE_MIN, tosa.REDUCE_SUM
OPERANDS: dict[type[Operator], int] = {
    **DATA_OPERANDS,
    tosa.REDUCE_MAX: 1,
    tosa.REDUCE_MIN: 1,
    tosa.REDUCE_SUM: 1,
    tosa.BITWISE_NOT: 1,
    tosa.LOGICAL_NOT: 1,
    tosa.MATMUL: 1,
    tosa.SLICE: 1,
    tosa.BITWISE_AND: 2,
    tosa.BITWISE_OR: 2,
    tosa.EQUAL: 2,
    tosa.GREATER: 2,
    tosa.GREATER_EQUAL: 2,
    tosa.LOGICAL_AND: 2,
    tosa.LOGICAL_OR: 2,
    tosa.LOGICAL_RIGHT_SHIFT: 2,
    tosa.SELECT: 3,
}
"""Operator that may compute each row alone -> how many of its operands may have rows.

It reads each of the others as a whole for every row.
"""
NARROW = DType.INT8
"""The type of activations, where a region begins and ends."""

Readers = dict[Value, list[Operator | None]]
"""Maps a value to its readers, each once; None means a result of the graph."""


def readers_of(graph: Graph) -> Readers:
    """Return the readers of each value of ``graph``."""
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
        """Return whether ``value`` has ``size`` rows, and not one row for all."""
        return value.rank > self.axis and value.shape[self.axis] == self.size

    def operands(self, operator: Operator) -> tuple[Values, Values]:
        """Return the operands that are read by row, and those that are read whole."""
        count = OPERANDS[type(operator)]
        if isinstance(operator, tosa.MATMUL) and self.axis == 0:
            # along axis 0, a product reads one matrix of each operand
            count = 2
        return operator.inputs[:count], operator.inputs[count:]

    def operands_with_rows(self, operator: Operator) -> list[Value]:
        """Return the operands of which a row of the result needs only that row."""
        by_row, _ = self.operands(operator)
        return [value for value in by_row if self.has_rows(value)]

    def fits(self, operator: Operator) -> bool:
        """Return whether ``operator`` computes each row from the same row."""
        if type(operator) not in OPERANDS:
            return False
        result = operator.outputs[0]
        if not self.has_rows(result) or not self.operands_with_rows(operator):
            return False
        if isinstance(operator, tosa.MATMUL):
            # [N,H,C] by [N,C,W]: the rows are N or H
            return self.axis < 2
        if isinstance(operator, tosa.RESCALE) and operator.per_channel:
            # the scales of channels are operands that have no rows
            return self.axis != result.rank - 1
        return True

    def heads(self) -> Region | None:
        """Return the region with the heads of an attention, axis 0, as its rows.

        None if it has no product, or if the heads are not computed separately.
        """
        if not any(isinstance(operator, tosa.MATMUL) for operator in self.operators):
            return None
        along = self._replace(axis=0, size=self.operators[0].outputs[0].shape[0])
        if along.size == 1 or not all(map(along.fits, self.operators)):
            return None
        return along

    def outputs(self, readers: Readers) -> list[Value]:
        """Return the results that are read outside of the region."""
        inside: set[Operator | None] = {*self.operators}
        results = results_of(self.operators)
        return [value for value in results if not inside.issuperset(readers[value])]


def results_of(operators: Iterable[Operator]) -> list[Value]:
    """Return the results of all ``operators``."""
    results: list[Value] = []
    for operator in operators:
        results += operator.outputs
    return results


def regions_of(graph: Graph, readers: Readers) -> list[Region]:
    """Find disjoint regions between int8 values, one around each reduction.

    Other regions are not needed: NPUs compute a chain of element-wise operators in one
    pass, without storing the wide values.
    """
    positions = {operator: k for k, operator in enumerate(graph.operators)}
    taken: set[Operator] = set()
    regions: list[Region] = []
    for operator in graph.operators:
        if not isinstance(operator, REDUCTIONS) or operator in taken:
            continue
        region = _region_around(operator, readers, positions)
        if region is None or not taken.isdisjoint(region.operators):
            continue
        if _can_be_split(region, readers, positions):
            taken.update(region.operators)
            regions.append(region)
    return regions


def _region_around(
    reduction: Operator, readers: Readers, positions: dict[Operator, int]
) -> Region | None:
    """Return all operators around ``reduction`` up to values of int8.

    Rows lie along the largest axis that is not reduced. Returns None if an operator
    that makes or reads a wide value does not compute each row alone.
    """
    shape = reduction.inputs[0].shape
    if len(shape) == 1 or any(map(is_dynamic, shape)):
        return None
    reduced = reduction.attribute_values()["axis"]
    others = [axis for axis in range(len(shape)) if axis != reduced]
    axis = max(others, key=shape.__getitem__)
    region = Region(axis, shape[axis], [])
    found = {reduction}
    pending = [reduction]
    while pending:
        for other in _neighbours(pending.pop(), region, readers):
            if other is None or not region.fits(other):
                return None
            if other not in found:
                found.add(other)
                pending.append(other)
    found |= _tables_between(found, readers)
    return region._replace(operators=sorted(found, key=positions.__getitem__))


def _neighbours(
    operator: Operator, region: Region, readers: Readers
) -> list[Operator | None]:
    """Return the producers and readers of wide values of ``operator``.

    None is an input or a result of the graph.
    """
    operands = region.operands_with_rows(operator)
    neighbours = [value.producer for value in operands if _is_wide(value)]
    for value in operator.outputs:
        if _is_wide(value):
            neighbours += readers[value]
    return neighbours


def _tables_between(found: set[Operator], readers: Readers) -> set[Operator]:
    """Return each TABLE that only ``found`` operators read, and that reads one.

    The exponential of a softmax on Ethos-U55 is such a TABLE of int8.
    """
    tables: set[Operator] = set()
    for value in results_of(found):
        for reader in readers[value]:
            if isinstance(reader, tosa.TABLE):
                tables.add(reader)
    return {table for table in tables if found.issuperset(readers[table.outputs[0]])}


def _is_wide(value: Value) -> bool:
    """Return whether ``value`` is computed, and wider than int8."""
    return value.constant is None and value.dtype is not NARROW


def _can_be_split(
    region: Region, readers: Readers, positions: dict[Operator, int]
) -> bool:
    """Return whether the region can be computed in blocks of rows.

    No operator may need all rows of a value of the region. Readers outside must come
    after the region's last operator, because only then all blocks are computed.
    """
    inside: set[Operator | None] = set(region.operators)
    for operator in region.operators:
        _, whole = region.operands(operator)
        if any(value.producer in inside for value in whole):
            return False
    last = positions[region.operators[-1]]
    for value in region.outputs(readers):
        for reader in readers[value]:
            if reader is None or reader in inside:
                continue
            if positions[reader] <= last:
                return False
    return True

"""Finds which values an NPU has in memory at each operator."""

from __future__ import annotations

import math
from itertools import accumulate

from ..ir.dynamic_sizes import is_dynamic
from ..ir.graph import Graph, Operator, Value
from ..ir.operators import RESCALE, RESHAPE, SLICE, TABLE
from ..ir.types import DType
from .row_regions import Readers, results_of

BYTES = {DType.INT16: 2, DType.INT32: 4, DType.INT48: 8}
"""Bytes of an element; 1 of other types."""
WIDE = DType.INT32, DType.INT48
FUSED = RESCALE, TABLE
"""Operators that an NPU computes together with the operand's producer."""
VIEWS = RESHAPE, SLICE
"""Operators with a result in the memory of the operand."""


def bytes_of(value: Value) -> int:
    """Return the bytes of all elements; 0 if their number is not known."""
    if any(map(is_dynamic, value.shape)):
        return 0
    return math.prod(value.shape) * BYTES.get(value.dtype, 1)


class Memory:
    """Finds which values an NPU has in memory at each operator of a graph."""

    def __init__(self, graph: Graph, readers: Readers) -> None:
        self.places = {
            operator: place for place, operator in enumerate(graph.operators)
        }
        self._readers = readers
        self._last: dict[Value, int] = {}
        # the last use of a value may be that of a view of it, which comes later
        for value in reversed([*graph.inputs, *results_of(graph.operators)]):
            uses = [self._last_use(reader) for reader in readers[value]]
            self._last[value] = max(uses, default=-1)

    def alive(self, values: list[Value]) -> list[int]:
        """Return how many bytes of ``values`` are in memory at each operator."""
        changes = [0] * (len(self.places) + 1)
        for value in values:
            last = self._last[value]
            if last < 0 or self._is_passed_on(value):
                continue
            first = self.places[value.producer] if value.producer else 0
            changes[first] += bytes_of(value)
            changes[last + 1] -= bytes_of(value)
        return list(accumulate(changes))[:-1]

    def _last_use(self, reader: Operator | None) -> int:
        """Return the last place at which the operand of ``reader`` is needed."""
        if reader is None:
            return len(self.places) - 1
        result = reader.outputs[0]
        if self._is_passed_on(result):
            return self._last[result]
        return self.places[reader]

    def _is_passed_on(self, value: Value) -> bool:
        """Return whether ``value`` takes no memory of its own.

        It shares that of its operand, or is computed together with its only reader.
        """
        if isinstance(value.producer, VIEWS):
            return True
        readers = self._readers[value]
        if len(readers) != 1:
            return False
        if isinstance(readers[0], FUSED):
            return True
        return isinstance(value.producer, RESCALE) and value.dtype in WIDE

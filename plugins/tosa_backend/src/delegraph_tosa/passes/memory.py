"""Finds which values an NPU has in memory at each operator.

The position of an operator is its index in the graph.
"""

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
"""Operators that take no memory: their result lies in the memory of the operand."""


def bytes_of(value: Value) -> int:
    """Return the bytes of all elements; 0 if their number is not known."""
    if any(map(is_dynamic, value.shape)):
        return 0
    return math.prod(value.shape) * BYTES.get(value.dtype, 1)


class Memory:
    """Finds which values an NPU has in memory at each operator of a graph."""

    def __init__(self, graph: Graph, readers: Readers) -> None:
        self.positions = {
            operator: position for position, operator in enumerate(graph.operators)
        }
        self._readers = readers
        # value -> position of its last use, or -1 if it has none
        self._last: dict[Value, int] = {}
        # in reverse order: a use of a RESHAPE's result is a use of its operand, too
        for value in reversed([*graph.inputs, *results_of(graph.operators)]):
            uses = [self._last_use(reader) for reader in readers[value]]
            self._last[value] = max(uses, default=-1)

    def alive(self, values: list[Value]) -> list[int]:
        """Return how many bytes of ``values`` are in memory at each operator."""
        # bytes that are added before an operator, minus those freed before it
        changes = [0] * (len(self.positions) + 1)
        for value in values:
            last = self._last[value]
            if last < 0 or self._takes_no_memory(value):
                continue
            first = self.positions[value.producer] if value.producer else 0
            changes[first] += bytes_of(value)
            changes[last + 1] -= bytes_of(value)
        return list(accumulate(changes))[:-1]

    def _last_use(self, reader: Operator | None) -> int:
        """Return the last position at which the operand of ``reader`` is needed.

        A ``reader`` of None is the end of the graph.
        """
        if reader is None:
            return len(self.positions) - 1
        result = reader.outputs[0]
        if self._takes_no_memory(result):
            return self._last[result]
        return self.positions[reader]

    def _takes_no_memory(self, value: Value) -> bool:
        """Return whether ``value`` takes no memory of its own.

        It lies in the memory of its producer's operand, or an NPU computes it together
        with its only reader.
        """
        if isinstance(value.producer, VIEWS):
            return True
        readers = self._readers[value]
        if len(readers) != 1:
            return False
        if isinstance(readers[0], FUSED):
            return True
        # a RESCALE to a wide type is computed while its reader loads operands
        return isinstance(value.producer, RESCALE) and value.dtype in WIDE

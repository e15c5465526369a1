"""Finds which values an NPU has in memory at each operator."""

from __future__ import annotations

import math
from itertools import accumulate

from ..ir.dynamic_sizes import is_dynamic
from ..ir.graph import Graph, Operator, Value
from ..ir.operators import RESCALE, RESHAPE, SLICE, TABLE
from ..ir.types import DType
from .row_regions import Readers

BYTES = {DType.INT16: 2, DType.INT32: 4, DType.INT48: 8}
"""Bytes of an element; 1 of other types."""
WIDE = DType.INT32, DType.INT48
FUSED = RESCALE, TABLE
"""Operators that an NPU computes together with the operand's producer."""
VIEWS = RESHAPE, SLICE
"""Operators with a result in the memory of the operand."""


def bytes_of(value: Value) -> int:
    """Return the bytes of all elements; 0 if their number is not known."""
    return (
        0
        if any(map(is_dynamic, value.shape))
        else math.prod(value.shape) * BYTES.get(value.dtype, 1)
    )


class Memory:
    """Finds which values an NPU has in memory at each operator of a graph."""

    def __init__(self, graph: Graph, readers: Readers) -> None:
        self.places = {
            operator: place for place, operator in enumerate(graph.operators)
        }
        self._readers = readers
        self._last: dict[Value, int] = {}
        for value in reversed(
            [
                *graph.inputs,
                *[v for operator in graph.operators for v in operator.outputs],
            ]
        ):
            self._last[value] = max(
                [self._last_use(reader) for reader in readers[value]], default=-1
            )

    def alive(self, values: list[Value]) -> list[int]:
        """Return how many bytes of ``values`` are in memory at each operator."""
        changes = [0] * (len(self.places) + 1)
        for value in values:
            if self._last[value] >= 0 and not self._is_passed_on(value):
                changes[self.places[value.producer] if value.producer else 0] += (
                    bytes_of(value)
                )
                changes[self._last[value] + 1] -= bytes_of(value)
        return list(accumulate(changes))[:-1]

    def _last_use(self, reader: Operator | None) -> int:
        """Return the last place at which the operand of ``reader`` is needed."""
        if reader is None:
            return len(self.places) - 1
        result = reader.outputs[0]
        return self._last[result] if self._is_passed_on(result) else self.places[reader]

    def _is_passed_on(self, value: Value) -> bool:
        """Return whether ``value`` takes no memory of its own.

        It shares that of its operand, or is computed together with its only reader.
        """
        readers = self._readers[value]
        if isinstance(value.producer, VIEWS) or len(readers) != 1:
            return isinstance(value.producer, VIEWS)
        return isinstance(readers[0], FUSED) or (
            isinstance(value.producer, RESCALE) and value.dtype in WIDE
        )

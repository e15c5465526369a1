"""Makes random inputs for a graph, with indices in range if known."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from delegraph.errors import InputError

from ..evaluate.small_floats import encoded
from ..evaluate.specialize import is_dynamic, specialized
from ..ir import operators as ops
from ..ir.block_scaled_arrays import paired
from ..ir.graph import Array, Graph, Operator, Value
from ..ir.types import (
    ARRAY_DTYPES,
    BLOCK_SCALED,
    SMALL_FLOATS,
    UNKNOWN,
    DType,
    Type,
    stored_types,
)

_GATHERING = (ops.GATHER, ops.ROW_GATHER, ops.ROW_GATHER_BLOCK_SCALED)
_MOVING = (
    ops.IDENTITY,
    ops.RESHAPE,
    ops.TRANSPOSE,
    ops.REVERSE,
    ops.TILE,
    ops.SLICE,
    ops.CONCAT,
)


def sample(
    graph: Graph,
    seed: int,
    ranges: Mapping[int, tuple[int, int]] = MappingProxyType({}),
) -> list[Array]:
    """Return an array for each input: normal floats, small integers.

    Inputs that GATHER and the like read, directly or after data movement, have valid
    indices of rows. Direct indices of SCATTER differ. Sizes that are known at run time
    only are 2, or 1 if the graph does not accept 2. ``ranges`` maps the position of an
    input with indices to their smallest and largest value.
    """
    graph = _static(graph)
    rng = np.random.default_rng(seed)
    row_counts = _row_counts(graph)
    distinct = {op.indices for op in graph.operators if isinstance(op, ops.SCATTER)}
    arrays: list[Array] = []
    for value in graph.inputs:
        if value in row_counts:
            rows = row_counts[value]
            arrays.append(_indices(value, rows, value in distinct, rng))
        else:
            arrays.append(_elements(value.type, rng))
    for position, (low, high) in ranges.items():
        if arrays[position].dtype.kind in "iu":
            arrays[position] = _moved_into(arrays[position], low, high)
    return arrays


def _moved_into(integers: Array, lowest: int, high: int) -> Array:
    """Return integers from ``lowest`` to ``high``, without negative ones if possible.

    The range of labels of a loss contains negative ones, of which only one is valid.
    """
    low = max(lowest, 0) if high >= 0 else lowest
    count = high - low + 1
    inside = low + (integers.astype(np.int64) - low) % count
    return inside.astype(integers.dtype)


def _static(graph: Graph) -> Graph:
    """Return the graph with a number for each size.

    Raises InputError if the graph accepts neither 2 nor 1 for all unknown sizes.
    """
    if not is_dynamic(graph):
        return graph
    try:
        return specialized(graph, _shapes_with(graph, 2))
    except InputError:
        return specialized(graph, _shapes_with(graph, 1))


def _shapes_with(graph: Graph, number: int) -> list[tuple[int, ...]]:
    """Return the shapes of the inputs, with ``number`` for each unknown size."""
    shapes: list[tuple[int, ...]] = []
    for value in graph.inputs:
        declared = value.type.declared
        shapes.append(tuple([number if n == UNKNOWN else n for n in declared]))
    return shapes


def _row_counts(graph: Graph) -> dict[Value, int]:
    """Map each value that is used as indices to the number of rows that it indexes."""
    counts: dict[Value, int] = {}
    for operator in reversed(graph.operators):
        for value, count in _index_operands(operator, counts):
            counts[value] = min(count, counts.get(value, count))
    return counts


def _index_operands(
    operator: Operator, row_counts: dict[Value, int]
) -> list[tuple[Value, int]]:
    """Return the operands that are indices, each with the number of rows.

    ``row_counts`` are those of values that are computed later.
    """
    if isinstance(operator, ops.SCATTER):
        return [(operator.indices, operator.values_in.shape[1])]
    if isinstance(operator, _GATHERING):
        count = operator.inputs[0].shape[1] - _rows_at_once(operator) + 1
        return [(operator.indices, count)]
    if isinstance(operator, _MOVING) and operator.outputs[0] in row_counts:
        count = row_counts[operator.outputs[0]]
        moved = [v for v in operator.inputs if v.dtype is not DType.SHAPE]
        return [(value, count) for value in moved]
    return []


def _rows_at_once(operator: Operator) -> int:
    """Return how many rows an index selects: 1, or the constant ``row_count``."""
    count = getattr(operator, "row_count", None)
    if count is None or count.constant is None:
        return 1
    return int(count.constant.materialize()[0])


def _indices(
    value: Value, rows: int, distinct: bool, rng: np.random.Generator
) -> Array:
    """Return random indices of rows; ``distinct`` ones if there are enough rows."""
    if distinct and value.shape[1] <= rows:
        batches, count = value.shape
        permutations = [rng.permutation(rows)[:count] for _ in range(batches)]
        indices: Array = np.stack(permutations)
    else:
        indices = rng.integers(0, max(rows, 1), value.shape)
    return indices.astype(ARRAY_DTYPES[value.dtype])


def _elements(type: Type, rng: np.random.Generator) -> Array:
    """Return random elements: normal floats, small integers.

    Scales of block-scaled tensors are from 1/2 to 2.
    """
    array = ARRAY_DTYPES[type.dtype]
    if type.dtype in BLOCK_SCALED:
        values, scales = (_elements(t, rng) for t in stored_types(type))
        return paired(values, scales, type)
    if type.dtype is DType.FP8UE8M0:
        return rng.integers(126, 129, type.shape).astype(array)
    if type.dtype in SMALL_FLOATS:
        return encoded(rng.standard_normal(type.shape), type.dtype)
    if type.dtype is DType.BF16:
        bits = rng.standard_normal(type.shape, np.float32).view(np.uint32)
        # the upper half of a float32
        return (bits >> 16).astype(np.uint16)
    if array.kind == "f":
        return rng.standard_normal(type.shape).astype(array)
    if array.kind == "b":
        return rng.integers(0, 2, type.shape).astype(bool)
    most = 8 if type.dtype is DType.INT4 else 128
    least = -most if array.kind == "i" else 0
    return rng.integers(least, most, type.shape).astype(array)

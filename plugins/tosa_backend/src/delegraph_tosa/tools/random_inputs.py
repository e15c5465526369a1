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

    Inputs that choose rows, directly or after they were only moved, have indices of
    rows; those that SCATTER takes itself name none twice. Sizes that are known at run
    time only are 2, or 1 if they cannot all be 2. ``ranges``: position of an input with
    indices -> the range in which they must lie.
    """
    graph = _static(graph)
    rng = np.random.default_rng(seed)
    rows = _rows(graph)
    distinct = {op.indices for op in graph.operators if isinstance(op, ops.SCATTER)}
    arrays = [
        (
            _indices(v, rows[v], v in distinct, rng)
            if v in rows
            else _elements(v.type, rng)
        )
        for v in graph.inputs
    ]
    for position, (lowest, high) in ranges.items():
        array = arrays[position]
        if array.dtype.kind in "iu":
            # Negative labels are in the range, but only one of them is valid.
            low = max(lowest, 0) if high >= 0 else lowest
            inside = low + (array.astype(np.int64) - low) % (high - low + 1)
            arrays[position] = inside.astype(array.dtype)
    return arrays


def _static(graph: Graph) -> Graph:
    """Return the graph with a number for each size.

    InputError if no number does for all of them.
    """
    if not is_dynamic(graph):
        return graph
    given = [v.type.declared for v in graph.inputs]
    twos, ones = (
        [tuple([n if size == UNKNOWN else size for size in shape]) for shape in given]
        for n in (2, 1)
    )
    try:
        return specialized(graph, twos)
    except InputError:
        return specialized(graph, ones)


def _rows(graph: Graph) -> dict[Value, int]:
    """Return the number of rows for each value that is used as indices."""
    rows: dict[Value, int] = {}
    for operator in reversed(graph.operators):
        for value, count in _chosen(operator, rows):
            rows[value] = min(count, rows.get(value, count))
    return rows


def _chosen(operator: Operator, rows: dict[Value, int]) -> list[tuple[Value, int]]:
    if isinstance(operator, ops.SCATTER):
        return [(operator.indices, operator.values_in.shape[1])]
    if isinstance(operator, _GATHERING):
        return [
            (
                operator.indices,
                operator.inputs[0].shape[1] - _rows_at_once(operator) + 1,
            )
        ]
    if isinstance(operator, _MOVING) and operator.outputs[0] in rows:
        return [
            (v, rows[operator.outputs[0]])
            for v in operator.inputs
            if v.dtype is not DType.SHAPE
        ]
    return []


def _rows_at_once(operator: Operator) -> int:
    """Return the tensor that an index selects from."""
    count = getattr(operator, "row_count", None)
    return (
        int(count.constant.materialize()[0])
        if count is not None and count.constant is not None
        else 1
    )


def _indices(
    value: Value, rows: int, distinct: bool, rng: np.random.Generator
) -> Array:
    if distinct and value.shape[1] <= rows:
        each = [rng.permutation(rows)[: value.shape[1]] for _ in range(value.shape[0])]
        given: Array = np.stack(each)
    else:
        given = rng.integers(0, max(rows, 1), value.shape)
    return given.astype(ARRAY_DTYPES[value.dtype])


def _elements(type: Type, rng: np.random.Generator) -> Array:
    """Return elements that are valid in any integer type.

    BF16 is the upper half of a float32, scales are from 1/2 to 2.
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
        return (
            rng.standard_normal(type.shape, np.float32).view(np.uint32) >> 16
        ).astype(np.uint16)
    if array.kind == "f":
        return rng.standard_normal(type.shape).astype(array)
    if array.kind == "b":
        return rng.integers(0, 2, type.shape).astype(bool)
    smallest, largest = (-8, 8) if type.dtype is DType.INT4 else (-128, 128)
    return rng.integers(
        smallest if array.kind == "i" else 0, largest, type.shape
    ).astype(array)

"""Kernels of data movement (specification: Data Layout). They prefer views."""

from __future__ import annotations

import numpy as np
from delegraph.errors import InputError

from ..ir import operators as ops
from ..ir.graph import Array, Operator
from .kernels import computes


@computes(ops.IDENTITY, as_stored=True)
def identity(op: ops.IDENTITY, x: Array) -> Array:
    return x


@computes(ops.CONCAT, as_stored=True)
def concat(op: ops.CONCAT, *arrays: Array) -> Array:
    return np.concatenate(arrays, axis=op.axis)


@computes(ops.PAD, as_stored=True)
def pad(op: ops.PAD, x: Array, padding: Array, pad_const: Array) -> Array:
    shape: list[int] = []
    inside: list[slice] = []
    pairs = padding.reshape(-1, 2).tolist()
    for size, (before, after) in zip(x.shape, pairs, strict=True):
        shape.append(before + size + after)
        inside.append(slice(before, before + size))
    padded = np.full(shape, pad_const.item(), x.dtype)
    padded[tuple(inside)] = x
    return padded


@computes(ops.RESHAPE, as_stored=True)
def reshape(op: ops.RESHAPE, x: Array, shape: Array) -> Array:
    return x.reshape(shape.tolist())


@computes(ops.REVERSE, as_stored=True)
def reverse(op: ops.REVERSE, x: Array) -> Array:
    return np.flip(x, op.axis)


@computes(ops.SLICE, as_stored=True)
def slice_(op: ops.SLICE, x: Array, start: Array, size: Array) -> Array:
    ends = zip(start.tolist(), (start + size).tolist(), strict=True)
    return x[tuple([slice(first, end) for first, end in ends])]


@computes(ops.TILE, as_stored=True)
def tile(op: ops.TILE, x: Array, multiples: Array) -> Array:
    return np.tile(x, multiples.tolist())


@computes(ops.TRANSPOSE, as_stored=True)
def transpose(op: ops.TRANSPOSE, x: Array) -> Array:
    return x.transpose(op.perms)


@computes(ops.GATHER, as_stored=True)
def gather(op: ops.GATHER, values: Array, indices: Array) -> Array:
    """Return the rows [N,W,C] of ``values`` [N,K,C] at ``indices`` [N,W]."""
    rows = values.shape[1]
    return values[_checked_index(indices, rows, op.name)]


@computes(ops.ROW_GATHER, as_stored=True)
def row_gather(op: Operator, values: Array, indices: Array, row_count: Array) -> Array:
    """Return ``row_count`` rows from each index on: [N,W*row_count,C]."""
    offsets = np.arange(int(row_count.item()))
    all_indices = indices[:, :, None].astype(np.int64) + offsets
    flat = all_indices.reshape(len(indices), -1)
    rows = values.shape[1]
    return values[_checked_index(flat, rows, op.name)]


@computes(ops.SCATTER, as_stored=True)
def scatter(op: ops.SCATTER, values_in: Array, indices: Array, input: Array) -> Array:
    """Return ``values_in`` [N,K,C] with rows replaced by those of ``input`` [N,W,C]."""
    result = values_in.copy()
    rows = values_in.shape[1]
    result[_checked_index(indices, rows, op.name)] = input
    return result


def _checked_index(indices: Array, rows: int, name: str) -> tuple[Array, Array]:
    """Return the index of ``values[n, indices[n, w]]``.

    Raises InputError for an index out of range: numpy counts negative ones from the
    end.
    """
    low = int(indices.min())
    high = int(indices.max())
    if low < 0 or high >= rows:
        wrong = low if low < 0 else high
        text = f"{name}: index {wrong} is outside 0 .. {rows - 1}"
        raise InputError("input-invalid", text)
    images = np.arange(indices.shape[0])
    return images[:, None], indices

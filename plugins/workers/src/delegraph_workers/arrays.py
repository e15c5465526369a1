"""Write NumPy arrays into messages: rows of type and shape, and elements in C order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from delegraph.errors import FormatError


def write_arrays(
    arrays: Sequence[np.ndarray[Any, Any]],
) -> tuple[list[Any], list[bytes]]:
    """Return a row for each array, and its bytes."""
    rows: list[Any] = [[array.dtype.name, list(array.shape)] for array in arrays]
    parts = [array.tobytes() for array in arrays]
    return rows, parts


def read_arrays(rows: Any, parts: Sequence[memoryview]) -> list[np.ndarray[Any, Any]]:
    """Return the arrays of rows. Raises FormatError for invalid rows or parts."""
    arrays = []
    try:
        for (name, shape), part in zip(rows, parts, strict=True):
            flat = np.frombuffer(part, _dtype(name))
            arrays.append(flat.reshape(shape).copy())
    except (ValueError, TypeError) as e:
        raise FormatError(
            "format-invalid",
            f"an array in a message of a worker process cannot be read: {e}",
        ) from e
    return arrays


def _dtype(name: Any) -> np.dtype[Any]:
    """Return the dtype of a name. Raises ValueError for Python objects as elements."""
    dtype = np.dtype(str(name))
    if dtype.hasobject:
        raise ValueError(f"elements of type {name!r:.40} are not supported")
    return dtype

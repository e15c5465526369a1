"""NumPy arrays in messages: a row of type and shape, and the elements in C order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from delegraph.errors import FormatError


def write_arrays(
    arrays: Sequence[np.ndarray[Any, Any]],
) -> tuple[list[Any], list[bytes]]:
    """A row for each array, and its bytes."""
    return [[array.dtype.name, list(array.shape)] for array in arrays], [
        array.tobytes() for array in arrays
    ]


def read_arrays(rows: Any, parts: Sequence[memoryview]) -> list[np.ndarray[Any, Any]]:
    """The arrays of rows. Raises FormatError for nonsense."""
    try:
        return [
            np.frombuffer(part, _plain(name)).reshape(shape).copy()
            for (name, shape), part in zip(rows, parts, strict=True)
        ]
    except (ValueError, TypeError) as e:
        raise FormatError(
            "format-invalid", f"arrays in a message that are none: {e}"
        ) from e


def _plain(name: Any) -> np.dtype[Any]:
    dtype = np.dtype(str(name))
    if dtype.hasobject:
        raise ValueError(f"elements {name!r:.40}")
    return dtype

"""Elements of block-scaled tensors in memory, in two forms.

One array of (value, scale) pairs has the tensor's shape, and its axes can be moved like
those of any other array. Two arrays, of values and of scales as in files, take half of
the memory, and a file's bytes need no copy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .types import ARRAY_DTYPES, BLOCK_SCALED, Type

Array = npt.NDArray[Any]


def paired(values: Array, scales: Array, type: Type) -> Array:
    """Return one array [*S,C] of pairs, from values [*S,C] and scales [*S,C/size].

    ``size`` is the number of elements in a block of ``type``.
    """
    array = np.empty(type.shape, ARRAY_DTYPES[type.dtype])
    array["value"] = values
    array["scale"] = np.repeat(scales, BLOCK_SCALED[type.dtype].size, axis=-1)
    return array


def parted(array: Array, type: Type) -> tuple[Array, Array]:
    """Return values [*S,C] and scales [*S,C/size] of ``array`` [*S,C], as views."""
    scales: Array = array["scale"][..., :: BLOCK_SCALED[type.dtype].size]
    return array["value"], scales

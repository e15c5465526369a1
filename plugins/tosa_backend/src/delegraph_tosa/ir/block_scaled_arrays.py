"""Elements of block-scaled tensors in memory, in two forms.

In one array of (value, scale) pairs, the array has the tensor's shape, and its axes can
be moved like those of any other array. In two arrays, values and scales as in files, it
takes half of the memory, and a file's bytes need no copy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .types import ARRAY_DTYPES, BLOCK_SCALED, Type

Array = npt.NDArray[Any]


def paired(values: Array, scales: Array, type: Type) -> Array:
    """[*S,C] values, [*S,C/size] scales -> [*S,C] of ``ARRAY_DTYPES[type.dtype]``."""
    array = np.empty(type.shape, ARRAY_DTYPES[type.dtype])
    array["value"] = values
    array["scale"] = np.repeat(scales, BLOCK_SCALED[type.dtype].size, axis=-1)
    return array


def parted(array: Array, type: Type) -> tuple[Array, Array]:
    """``paired`` [*S,C] -> values [*S,C], scales [*S,C/size], as views."""
    scales: Array = array["scale"][..., :: BLOCK_SCALED[type.dtype].size]
    return array["value"], scales

"""Elements of block-scaled tensors in memory: each value with its scale, or values and scales apart as files have them.

In pairs an array has the tensor's shape and its axes may be moved like those of any other; apart, it takes half of the
memory, and a file's bytes need not be copied.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .types import ARRAY_DTYPES, BLOCK_SCALED, Type

Array = npt.NDArray[Any]


def paired(values: Array, scales: Array, type: Type) -> Array:
    """[*S,C] values and [*S,C/size] scales -> [*S,C] of ``ARRAY_DTYPES[type.dtype]``."""
    array = np.empty(type.shape, ARRAY_DTYPES[type.dtype])
    array["value"] = values
    array["scale"] = np.repeat(scales, BLOCK_SCALED[type.dtype].size, axis=-1)
    return array


def parted(array: Array, type: Type) -> tuple[Array, Array]:
    """The values [*S,C] and the scales [*S,C/size] of pairs; views. Elements of one block have one scale."""
    scales: Array = array["scale"][..., :: BLOCK_SCALED[type.dtype].size]
    return array["value"], scales

"""The passes for targets that name a device, in their order."""

from __future__ import annotations

from .compute_shapes import compute_shapes
from .dce import drop_dead
from .joined_rescales import join_rescales
from .joined_slices import join_slices
from .patch_convolutions import convolve_patches
from .split_rows import split_heads, split_rows
from .transposes_by_convolution import transpose_by_convolution
from .unit_axes import drop_unit_axes

DEVICE_PASSES = (
    join_rescales,
    split_heads,
    split_rows,
    join_slices,
    drop_unit_axes,
    transpose_by_convolution,
    convolve_patches,
    # once more: a joined slice may begin at a size that is known at run time only
    compute_shapes,
    drop_dead,
)

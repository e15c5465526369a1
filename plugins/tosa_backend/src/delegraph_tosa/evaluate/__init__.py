"""What each TOSA operator computes, on numpy arrays: folds constants and runs graphs on the host. Imports no torch."""

from __future__ import annotations

from . import (  # noqa: F401 (registers)
    block_scaled,
    control,
    convert,
    convolution,
    elementwise,
    fourier,
    image,
    layout,
    matmul,
    reduce,
    shape,
    variable,
)
from .constants import materialize
from .control import bounded_iterations
from .kernels import KERNELS, computes, numbers_of, why_not
from .program import Program, See, check_inputs, evaluate

__all__ = [
    "KERNELS",
    "Program",
    "See",
    "bounded_iterations",
    "check_inputs",
    "computes",
    "evaluate",
    "materialize",
    "numbers_of",
    "why_not",
]

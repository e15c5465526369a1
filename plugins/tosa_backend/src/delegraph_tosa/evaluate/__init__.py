"""Computes TOSA operators with numpy, to fold constants and run graphs.

Imports no torch.
"""

from __future__ import annotations

from .constants import materialize
from .control import bounded_iterations
from .kernels import all_kernels, computes, numbers_of, why_not
from .program import Program, See, check_inputs, check_ranges, evaluate

__all__ = [
    "Program",
    "See",
    "all_kernels",
    "bounded_iterations",
    "check_inputs",
    "check_ranges",
    "computes",
    "evaluate",
    "materialize",
    "numbers_of",
    "why_not",
]

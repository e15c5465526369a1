"""What each TOSA operator computes, on numpy arrays: folds constants and runs graphs on the host. Imports no torch."""

from __future__ import annotations

from .constants import materialize
from .control import bounded_iterations
from .kernels import computes, kernels, numbers_of, why_not
from .program import Program, See, check_inputs, evaluate

__all__ = [
    "Program",
    "See",
    "bounded_iterations",
    "check_inputs",
    "computes",
    "evaluate",
    "kernels",
    "materialize",
    "numbers_of",
    "why_not",
]

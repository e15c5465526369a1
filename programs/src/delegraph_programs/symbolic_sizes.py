"""Handles sizes that may be symbolic.

A comparison of a symbolic size with a number fixes the size in the program, so these
functions compare no values.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)


def are_static(numbers: Iterable[Any]) -> bool:
    """Return whether all sizes, strides or offsets are integers, and none a symbol."""
    return all(isinstance(number, int) for number in numbers)


def comparable(numbers: Iterable[Any]) -> tuple[Any, ...]:
    """Return sizes or strides in a form that may be compared: symbols become text."""
    return tuple(n if isinstance(n, int) else str(n) for n in numbers)

"""How far a value is from float64, and how far eager is."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from delegraph.host import OutputStatistics, compare


class Measured(NamedTuple):
    """A value as three runs computed it: the lowered program, eager, and eager with
    float64 in place of its types.
    """

    name: str
    got: torch.Tensor
    eager: torch.Tensor
    exact: torch.Tensor


class Accuracy(NamedTuple):
    """How a value compares with float64, and the relative error of eager."""

    figures: OutputStatistics
    eager_error: float


def measure(value: Measured, known: OutputStatistics | None = None) -> Accuracy:
    """Of one value; against eager where only eager is not finite.

    ``known``: how it compares with float64.
    """
    name, got, eager, exact = value
    ours = known or compare(name, got, exact)
    theirs = compare(name, eager, exact)
    if ours.mismatched and theirs.mismatched:
        ours = compare(name, got, eager)
        theirs = compare(name, eager, eager)
    return Accuracy(ours._replace(dtype=_named(eager.dtype)), theirs.relative_error)


@cache
def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

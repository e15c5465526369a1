"""Measure the error of a value, and that of eager PyTorch, against float64."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from delegraph.host import OutputStatistics, compare


class Measured(NamedTuple):
    """A value of three runs: the lowered program, eager, and eager in float64."""

    name: str
    got: torch.Tensor
    eager: torch.Tensor
    exact: torch.Tensor


class Accuracy(NamedTuple):
    """The comparison of a value with float64, and the relative error of eager."""

    figures: OutputStatistics
    eager_error: float


def measure(value: Measured, known: OutputStatistics | None = None) -> Accuracy:
    """Return the accuracy of one value.

    If both the lowered program and eager have elements that are not finite where those
    of float64 are, such as after an overflow, the reference is eager. ``known`` is the
    comparison with float64, if it was made before.
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

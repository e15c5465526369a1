"""How far values are from float64, and how far eager is: small ones are measured together.

A call of torch takes longer than the arithmetic of a small value, and programs have thousands of those.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
from delegraph.host import OutputStatistics, compare, decibels, divide_error
from torch._utils import _flatten_dense_tensors

SMALL = 1 << 12
"""Elements of a value that is measured with others."""
_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})


class Measured(NamedTuple):
    """A value as three runs computed it: the lowered program, eager, and eager with float64 in place of its types."""

    name: str
    got: torch.Tensor
    eager: torch.Tensor
    exact: torch.Tensor

    @property
    def is_small(self) -> bool:
        """Whether ``measure_together`` takes it."""
        got, exact = self.got, self.exact
        plain = got.is_cpu and exact.is_cpu and got.layout is torch.strided is exact.layout
        floats = got.dtype in _FLOATS and exact.dtype is torch.float64
        return plain and floats and got.shape == exact.shape and 0 < exact.numel() <= SMALL


class Accuracy(NamedTuple):
    """How a value compares with float64, and the relative error of eager."""

    figures: OutputStatistics
    eager_error: float


def measure(value: Measured, known: OutputStatistics | None = None) -> Accuracy:
    """Of one value; against eager where only eager is not finite. ``known``: how it compares with float64."""
    name, got, eager, exact = value
    ours, theirs = known or compare(name, got, exact), compare(name, eager, exact)
    if ours.mismatched and theirs.mismatched:
        ours, theirs = compare(name, got, eager), compare(name, eager, eager)
    return Accuracy(ours._replace(dtype=_named(eager.dtype)), theirs.relative_error)


def measure_together(values: Sequence[Measured]) -> list[Accuracy]:
    """Of small values, in a few calls of torch for all of them. What is not finite is measured by itself."""
    if not values:
        return []
    exact, got = _joined([v.exact for v in values]), _joined([v.got for v in values])
    lengths = torch.tensor([v.exact.numel() for v in values])
    error = eager_error = (got - exact).abs_()
    if any(v.eager is not v.got for v in values):  # what the host made of eager's own values is eager's
        eager_error = (_joined([v.eager for v in values]) - exact).abs_()
    largest = [torch.segment_reduce(x, "max", lengths=lengths).tolist() for x in (error, eager_error, exact.abs())]
    norms = [torch.segment_reduce(x * x, "sum", lengths=lengths).sqrt_().tolist() for x in (exact, error)]
    return [_accuracy(value, *row) for value, *row in zip(values, *largest, *norms, strict=True)]


def _joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    joined: torch.Tensor = _flatten_dense_tensors(tensors)  # type: ignore[no-untyped-call]
    return joined.double()


def _accuracy(value: Measured, error: float, eager: float, largest: float, signal: float, noise: float) -> Accuracy:
    if not math.isfinite(error) or not math.isfinite(eager):
        return measure(value)
    snr = decibels(signal, noise) if error else None
    shape, dtype = tuple(value.exact.shape), _named(value.eager.dtype)
    return Accuracy(
        OutputStatistics(value.name, shape, error, largest, 0, dtype, snr=snr), divide_error(eager, largest)
    )


@cache
def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

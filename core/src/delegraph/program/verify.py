"""Comparing the results of a lowered program with those of eager PyTorch, in numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree


@dataclass(frozen=True)
class OutputStatistics:
    """How one output compares: largest absolute difference, largest value of eager, and elements not comparable.

    ``mismatched`` counts elements where one side is NaN or infinite and the other is not the same. Integer and boolean
    outputs are compared exactly; their ``max_abs_error`` is of integers. What is no number, such as None, counts as one
    element that is the same or not.
    """

    name: str
    shape: tuple[int, ...]
    max_abs_error: float
    max_abs_value: float
    mismatched: int

    @property
    def relative_error(self) -> float:
        """Largest difference divided by the largest value; 0 if both are 0."""
        if self.max_abs_error == 0:
            return 0.0
        return self.max_abs_error / self.max_abs_value if self.max_abs_value else float("inf")

    def __str__(self) -> str:
        odd = f", {self.mismatched} elements differ in being finite" if self.mismatched else ""
        largest = f"largest error {self.max_abs_error:.3g}, largest value {self.max_abs_value:.3g}"
        return f"{self.name} {list(self.shape)}: {largest}, ratio {self.relative_error:.2g}{odd}"


@dataclass(frozen=True)
class Verification:
    """How every output compares with eager."""

    outputs: tuple[OutputStatistics, ...]

    @classmethod
    def of(cls, got: Any, wanted: Any) -> Verification:
        """Compare two results of the same structure, output by output."""
        pairs = zip(pytree.tree_leaves(got), pytree.tree_leaves(wanted), strict=True)
        return cls(tuple(_compare_one(f"output_{k}", a, b) for k, (a, b) in enumerate(pairs)))

    @property
    def relative_error(self) -> float:
        """The largest of all outputs; infinite if an element differs in being finite."""
        if any(o.mismatched for o in self.outputs):
            return float("inf")
        return max((o.relative_error for o in self.outputs), default=0.0)

    def to_json(self) -> dict[str, Any]:
        """As a dictionary; infinite ratios become None."""
        rows = [{**asdict(o), "relative_error": _finite(o.relative_error)} for o in self.outputs]
        return {"relative_error": _finite(self.relative_error), "outputs": rows}

    def __str__(self) -> str:
        return "\n".join(["compared with eager:", *(f"  {o}" for o in self.outputs)])


def _finite(x: float) -> float | None:
    return x if x != float("inf") else None


def _compare_one(name: str, got: Any, wanted: Any) -> OutputStatistics:
    if not all(isinstance(v, (torch.Tensor, bool, int, float, complex)) for v in (got, wanted)):
        return OutputStatistics(name, (), 0.0, 0.0, int(type(got) is not type(wanted) or got != wanted))
    a, b = map(_wide, (got, wanted))
    if a.shape != b.shape:
        return OutputStatistics(name, tuple(b.shape), float("inf"), _largest(b), b.numel())
    same = (a == b) | (a.isnan() & b.isnan())
    finite = a.isfinite() & b.isfinite()
    error = torch.where(finite, (a - b).abs(), 0.0)
    if isinstance(got, torch.Tensor) and got.dtype is torch.int64 is wanted.dtype:  # float64 holds 53 bits
        error = error.maximum((got != wanted).to(error.dtype))
    odd = int((~finite & ~same).sum())
    return OutputStatistics(name, tuple(b.shape), _largest(error), _largest(torch.where(finite, b, 0.0)), odd)


def _wide(value: Any) -> torch.Tensor:
    """In float64, or complex128."""
    tensor = torch.as_tensor(value).detach()
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _largest(tensor: torch.Tensor) -> float:
    return float(tensor.abs().max()) if tensor.numel() else 0.0

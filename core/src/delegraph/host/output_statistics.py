"""Compares one value of a program with the same value in eager PyTorch, in figures."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

TOLERANCES = {
    "float64": 1e-6,
    "complex128": 1e-6,
    "float32": 1e-3,
    "complex64": 1e-3,
    "float": 1e-3,
    "complex": 1e-3,
    "float16": 1e-2,
    "bfloat16": 5e-2,
}
"""Type -> difference, relative to the largest value, that counts as agreement. Other types have to be equal."""


class OutputStatistics(NamedTuple):  # no frozen dataclass, which takes thrice as long: a verification makes thousands
    """How one output compares with eager's.

    ``max_abs_error``: the largest absolute difference. ``max_abs_value``: the largest absolute value of eager. Both
    leave out elements that are not finite. ``mismatched``: the number of elements that are NaN or infinite on one side,
    and not the same on the other. Integers and booleans have to be equal. An output that is no number, such as None,
    counts as one element, which is mismatched unless it is equal. ``dtype`` is eager's.

    ``remark``: a note that eager disagrees with itself; the figures then compare with the nearest result that eager
    gave. ``snr``: the signal-to-noise ratio in dB, 10 log10(sum of eager's squares / sum of squared differences) over
    finite elements; None if there is no difference, or no signal.
    """

    name: str
    shape: tuple[int, ...]
    max_abs_error: float
    max_abs_value: float
    mismatched: int
    dtype: str = ""
    remark: str = ""
    snr: float | None = None

    @property
    def relative_error(self) -> float:
        """The largest difference divided by the largest value; 0 if there is no difference."""
        return divide_error(self.max_abs_error, self.max_abs_value)

    def to_json(self) -> dict[str, Any]:
        """As a dictionary of plain values; infinite figures become None."""
        return {k: finite(v) for k, v in {**self._asdict(), "relative_error": self.relative_error}.items()}

    def agrees(self, tolerance: float | None = None) -> bool:
        """Whether the relative error is within ``tolerance``; None takes that of ``TOLERANCES``."""
        accepted = TOLERANCES.get(self.dtype, 0.0) if tolerance is None else tolerance
        return not self.mismatched and self.relative_error <= accepted

    def __str__(self) -> str:
        """The figures in a line, then the remark, and whether the difference is more than the type's tolerance."""
        mismatched = f", {self.mismatched} elements differ in being finite" if self.mismatched else ""
        largest = f"largest error {self.max_abs_error:.3g}, largest value {self.max_abs_value:.3g}"
        differs = "" if self.agrees() else f"differs, by more than {TOLERANCES.get(self.dtype, 0):g}"
        remarks = "".join(f"; {remark}" for remark in (self.remark, differs) if remark)
        return f"{self.name} {list(self.shape)}: {largest}, ratio {self.relative_error:.2g}{mismatched}{remarks}"


def compare(name: str, got: Any, wanted: Any) -> OutputStatistics:
    """Compare the value ``got`` with eager's, ``wanted``; ``name`` is the name of the output.

    Values of different shapes differ in all elements: the error is infinite. See ``OutputStatistics`` for the figures.
    """
    dtype = str(wanted.dtype).removeprefix("torch.") if isinstance(wanted, torch.Tensor) else type(wanted).__name__
    if not all(isinstance(v, (torch.Tensor, bool, int, float, complex)) for v in (got, wanted)):  # such as None
        return OutputStatistics(name, (), 0.0, 0.0, int(type(got) is not type(wanted) or got != wanted), dtype)
    a, b = map(_wide, (got, wanted))
    if a.shape != b.shape:
        return OutputStatistics(name, tuple(b.shape), float("inf"), _largest(b), b.numel(), dtype)
    error = (a - b).abs()
    # float64 has 53 bits and may hide a difference of integers
    if isinstance(got, torch.Tensor) and got.dtype is torch.int64 is wanted.dtype:
        error = error.maximum((got != wanted).to(error.dtype))
    value, largest, mismatched = b, _largest(error), 0
    if not math.isfinite(largest):
        # elements that are not finite in both are the same or mismatched; the other figures leave them out
        both_finite = a.isfinite() & b.isfinite()
        same = (a == b) | (a.isnan() & b.isnan())
        mismatched = int((~both_finite & ~same).sum())
        error, value = torch.where(both_finite, error, 0.0), torch.where(both_finite, b, 0.0)
        largest = _largest(error)
    norms = [float(torch.linalg.vector_norm(x)) for x in (value, error)]
    snr = decibels(*norms) if largest else None
    return OutputStatistics(name, tuple(b.shape), largest, _largest(value), mismatched, dtype, snr=snr)


def finite(value: Any) -> Any:
    """``value``, or None for an infinite float or NaN, which JSON does not have."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def divide_error(error: float, largest: float) -> float:
    """``error / largest``; 0 if there is no error, infinite if only ``largest`` is 0."""
    if error == 0:
        return 0.0
    return error / largest if largest else math.inf


def decibels(signal: float, noise: float) -> float | None:
    """The ratio of two norms in dB; None if it is 0, infinite or NaN."""
    ratio = signal / noise if noise else math.inf
    # norms are roots of sums of squares, hence 20 and not 10
    return 20 * math.log10(ratio) if 0 < ratio < math.inf else None


def _wide(value: Any) -> torch.Tensor:
    """A number or tensor as a tensor of float64 or complex128."""
    tensor = torch.as_tensor(value).detach()
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _largest(tensor: torch.Tensor) -> float:
    """The largest absolute value; 0 if the tensor is empty."""
    return float(tensor.abs().max()) if tensor.numel() else 0.0

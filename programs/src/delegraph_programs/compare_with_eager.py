"""Compares a value of a compiled program with the same value in eager PyTorch."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
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
"""Type -> the largest relative error that counts as agreement.

Values of other types must be equal.
"""
_NUMBERS = (torch.Tensor, bool, int, float, complex)


class NonFinite(NamedTuple):
    """The numbers of elements that are NaN, infinity and negative infinity.

    A complex number with a NaN part counts as NaN. Any other complex number with an
    infinite part counts as infinity.
    """

    nan: int = 0
    inf: int = 0
    negative_inf: int = 0

    def __str__(self) -> str:
        """Return the counts that are not 0: ``3 NaN, 1 -inf``."""
        counts = {"NaN": self.nan, "inf": self.inf, "-inf": self.negative_inf}
        parts = [f"{count:,} {name}" for name, count in counts.items() if count]
        return ", ".join(parts) or "none"


# no frozen dataclass: that takes three times as long, and a verification makes
# thousands of these
class OutputStatistics(NamedTuple):
    """The differences between one output of a program and eager's.

    ``shape`` and ``dtype`` are those of eager. ``max_abs_error``: the largest absolute
    difference. ``max_abs_value``: the largest absolute value of eager. Both leave out
    elements that are not finite. ``mismatched``: the number of elements that are NaN or
    infinite on one side, and differ from the other side.

    Integers and booleans have to be equal. The error is infinite for an output of
    another shape. It is also infinite for a value that is no number, such as None, and
    is not equal.

    ``remark``: a note about the output, such as why a difference may be no error of the
    backend. ``snr``: the signal-to-noise ratio in dB, 10 log10(sum of eager's squares /
    sum of squared differences) over finite elements. It is None without a difference,
    and without a signal.

    ``lowered`` and ``eager``: the elements that are not finite, on both sides.
    """

    name: str
    shape: tuple[int, ...]
    max_abs_error: float
    max_abs_value: float
    mismatched: int = 0
    dtype: str = ""
    remark: str = ""
    snr: float | None = None
    lowered: NonFinite = NonFinite()
    eager: NonFinite = NonFinite()

    @property
    def relative_error(self) -> float:
        """The largest difference divided by the largest value.

        It is 0 without a difference, and infinite if only the value is 0.
        """
        if self.max_abs_error == 0:
            return 0.0
        if self.max_abs_value == 0:
            return math.inf
        return self.max_abs_error / self.max_abs_value

    @property
    def elements(self) -> int:
        """The number of elements of eager's output."""
        return math.prod(self.shape)

    @property
    def has_only_non_finite(self) -> bool:
        """Whether there are elements, and none is finite: then no error was measured."""
        return self.elements > 0 and sum(self.eager) == self.elements

    def to_json(self) -> dict[str, Any]:
        """Return the statistics as plain values; infinite figures become None.

        ``agrees`` is by the tolerance of the type.
        """
        figures = {**self._asdict(), "relative_error": self.relative_error}
        content = {name: finite(value) for name, value in figures.items()}
        content["lowered"] = self.lowered._asdict()
        content["eager"] = self.eager._asdict()
        content["agrees"] = self.agrees()
        return content

    def agrees(self, tolerance: float | None = None) -> bool:
        """Return whether the relative error is within ``tolerance``.

        None means the tolerance in ``TOLERANCES``.
        """
        return not self.mismatched and self.relative_error <= self._accepted(tolerance)

    def _accepted(self, tolerance: float | None) -> float:
        return TOLERANCES.get(self.dtype, 0.0) if tolerance is None else tolerance

    def __str__(self) -> str:
        """Return ``line`` with the tolerance of the type."""
        return self.line()

    def line(self, tolerance: float | None = None) -> str:
        """Return one line with the figures, the remark and the verdict.

        An example is ``output [2]: largest error 0.001, ...; agrees``.
        """
        figures = "no elements"
        if self.elements:
            figures = (
                f"largest error {self.max_abs_error:.3g}, largest value"
                f" {self.max_abs_value:.3g}, ratio {self.relative_error:.2g}"
            )
        parts = [figures, self.non_finite(), self.remark, self.verdict(tolerance)]
        return f"{self.name} {list(self.shape)}: {'; '.join(filter(None, parts))}"

    def non_finite(self) -> str:
        """Describe the elements that are not finite, on both sides; "" if all are."""
        if not sum(self.lowered) and not sum(self.eager):
            return ""
        of_all = f"of {self.elements:,} elements"
        if self.lowered == self.eager:
            return f"{self.eager} {of_all} on both sides"
        return f"lowered: {self.lowered}, eager: {self.eager} {of_all}"

    def verdict(self, tolerance: float | None = None) -> str:
        """Return whether the output agrees with eager's, and if not, how it differs."""
        if self.mismatched:
            return (
                f"differs, as {self.mismatched:,} elements are NaN or infinite on one"
                " side only, or of another sign"
            )
        if not self.agrees(tolerance):
            return f"differs, by more than {self._accepted(tolerance):g}"
        if self.has_only_non_finite:
            return "agrees, but no element is finite"
        return "agrees"


def compare(name: str, got: Any, wanted: Any) -> OutputStatistics:
    """Compare ``got``, the value of the output ``name``, with eager's value ``wanted``."""
    if not isinstance(got, _NUMBERS) or not isinstance(wanted, _NUMBERS):
        kind = type(wanted).__name__
        is_equal = type(got) is type(wanted) and got == wanted
        largest = 0.0 if is_equal else math.inf
        remark = f"a value of type {kind}"
        return OutputStatistics(name, (), largest, 0.0, dtype=kind, remark=remark)
    lowered = _wide(got)
    eager = _wide(wanted)
    result = OutputStatistics(
        name, tuple(eager.shape), math.inf, 0.0, dtype=_type_name(wanted)
    )
    if lowered.shape != eager.shape:
        return result._replace(
            max_abs_value=_largest(torch.where(eager.isfinite(), eager, 0.0)),
            remark=f"the lowered program returns the shape {list(lowered.shape)}",
            lowered=_count_non_finite(lowered),
            eager=_count_non_finite(eager),
        )
    value = eager
    error = (lowered - eager).abs()
    # float64 has 53 bits and may hide a difference of integers
    if _is_integer(got) and _is_integer(wanted):
        differs = np.asarray(got) != np.asarray(wanted)
        error = error.maximum(torch.as_tensor(differs).to(error.dtype))
    # An element that is NaN or infinite makes the largest error NaN or infinite. Only
    # then are such elements counted: it takes five times as long as all the rest.
    if not math.isfinite(_largest(error)):
        both_finite = lowered.isfinite() & eager.isfinite()
        is_same = (lowered == eager) | (lowered.isnan() & eager.isnan())
        # the error and the largest value leave such elements out
        error = torch.where(both_finite, error, 0.0)
        value = torch.where(both_finite, eager, 0.0)
        result = result._replace(
            mismatched=int((~both_finite & ~is_same).sum()),
            lowered=_count_non_finite(lowered),
            eager=_count_non_finite(eager),
        )
    return result._replace(
        max_abs_error=_largest(error),
        max_abs_value=_largest(value),
        snr=_decibels(value, error),
    )


def finite(value: Any) -> Any:
    """Return ``value``, or None for an infinite float or NaN, which JSON lacks."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _decibels(signal: torch.Tensor, noise: torch.Tensor) -> float | None:
    """Return the signal-to-noise ratio in dB; None if it is 0, infinite or NaN."""
    norm = float(torch.linalg.vector_norm(noise))
    if norm == 0:
        return None
    ratio = float(torch.linalg.vector_norm(signal)) / norm
    # 20 and not 10, because a norm is the root of a sum of squares
    return 20 * math.log10(ratio) if 0 < ratio < math.inf else None


def _count_non_finite(wide: torch.Tensor) -> NonFinite:
    """Return the counts of a tensor of float64 or complex128."""
    is_nan = wide.isnan()
    nan = int(is_nan.sum())
    infinite = int((wide.isinf() & ~is_nan).sum())
    negative = 0 if wide.is_complex() else int((wide == -math.inf).sum())
    return NonFinite(nan, infinite - negative, negative)


def _type_name(value: Any) -> str:
    """Return the name of a tensor's dtype, or of a number's class."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype).removeprefix("torch.")
    return type(value).__name__


def _is_integer(value: Any) -> bool:
    """Return whether a tensor or number is an integer or a boolean."""
    if isinstance(value, torch.Tensor):
        return not value.is_floating_point() and not value.is_complex()
    return isinstance(value, int)


def _wide(value: Any) -> torch.Tensor:
    """Return a number or tensor as a tensor of float64 or complex128."""
    if isinstance(value, torch.Tensor):
        tensor = value.detach()
    else:
        # as float, because an integer of Python may be too large for int64
        tensor = torch.tensor(value if isinstance(value, complex) else float(value))
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _largest(tensor: torch.Tensor) -> float:
    """Return the largest absolute value; 0 if the tensor is empty."""
    return float(tensor.abs().max()) if tensor.numel() else 0.0

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
"""Type -> difference, relative to the largest value, that counts as agreement. Other
types have to be equal.
"""


class NonFinite(NamedTuple):
    """How many elements of a value are NaN, infinity and negative infinity.

    A complex number with a NaN part is NaN. Any other one with an infinite part counts
    as infinity.
    """

    nan: int = 0
    inf: int = 0
    negative_inf: int = 0

    def __str__(self) -> str:
        """The counts that are not 0: ``3 NaN, 1 -inf``."""
        counts = {"NaN": self.nan, "inf": self.inf, "-inf": self.negative_inf}
        return (
            ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
            or "none"
        )


# no frozen dataclass, which takes thrice as long: a verification makes thousands
class OutputStatistics(NamedTuple):
    """How one output compares with eager's.

    ``max_abs_error``: the largest absolute difference. ``max_abs_value``: the largest
    absolute value of eager. Both leave out elements that are not finite.
    ``mismatched``: the number of elements that are NaN or infinite on one side, and not
    the same on the other. Integers and booleans have to be equal. An output that is no
    number, such as None, counts as one element, which is mismatched unless it is equal.
    ``shape`` and ``dtype`` are eager's.

    ``remark``: why a difference may be no error of the backend. ``snr``: the
    signal-to-noise ratio in dB, 10 log10(sum of eager's squares / sum of squared
    differences) over finite elements; None if there is no difference, or no signal.

    ``lowered`` and ``eager``: the elements that are not finite, on both sides.
    ``lowered_shape``: the shape that the lowered program returned, if it is another
    than eager's.
    """

    name: str
    shape: tuple[int, ...]
    max_abs_error: float
    max_abs_value: float
    mismatched: int
    dtype: str = ""
    remark: str = ""
    snr: float | None = None
    lowered: NonFinite = NonFinite()
    eager: NonFinite = NonFinite()
    lowered_shape: tuple[int, ...] | None = None

    @property
    def relative_error(self) -> float:
        """The largest difference divided by the largest value; 0 for no difference,
        infinite if only the value is 0.
        """
        if self.max_abs_error == 0:
            return 0.0
        return (
            self.max_abs_error / self.max_abs_value if self.max_abs_value else math.inf
        )

    @property
    def elements(self) -> int:
        """The number of elements of eager's output."""
        return math.prod(self.shape)

    @property
    def has_only_non_finite(self) -> bool:
        """Whether there are elements, and none is finite: then no error was measured."""
        return self.elements > 0 and sum(self.eager) == self.elements

    def to_json(self) -> dict[str, Any]:
        """As a dictionary of plain values; infinite figures become None. ``agrees`` is
        by the type's tolerance.
        """
        plain = {
            k: finite(v)
            for k, v in {
                **self._asdict(),
                "relative_error": self.relative_error,
            }.items()
        }
        sides = {"lowered": self.lowered._asdict(), "eager": self.eager._asdict()}
        return {**plain, **sides, "agrees": self.agrees()}

    def agrees(self, tolerance: float | None = None) -> bool:
        """Whether the relative error is within ``tolerance``; None takes that of
        ``TOLERANCES``.
        """
        return not self.mismatched and self.relative_error <= self._accepted(tolerance)

    def _accepted(self, tolerance: float | None) -> float:
        return TOLERANCES.get(self.dtype, 0.0) if tolerance is None else tolerance

    def __str__(self) -> str:
        """See ``line``, with the tolerance of the type."""
        return self.line()

    def line(self, tolerance: float | None = None) -> str:
        """The figures in a line, the remark, and last one verdict, within
        ``tolerance``.
        """
        parts = [
            self._figures(),
            self.non_finite(),
            self.remark,
            self.verdict(tolerance),
        ]
        return f"{self.name} {list(self.shape)}: {'; '.join(filter(None, parts))}"

    def _figures(self) -> str:
        """The largest error, value and their ratio; another text for an output that has
        none.
        """
        if self.lowered_shape is not None:
            return f"the lowered program returns the shape {list(self.lowered_shape)}"
        if not self._is_number:
            return f"a value of type {self.dtype}"
        if self.elements == 0:
            return "no elements"
        largest = (
            f"largest error {self.max_abs_error:.3g}, largest value"
            f" {self.max_abs_value:.3g}"
        )
        return f"{largest}, ratio {self.relative_error:.2g}"

    @property
    def _is_number(self) -> bool:
        # torch.complex is a function
        return (
            not self.dtype
            or self.dtype == "complex"
            or isinstance(getattr(torch, self.dtype, None), torch.dtype)
        )

    def non_finite(self) -> str:
        """The elements that are not finite on both sides, as text; "" if all are."""
        if not sum(self.lowered) and not sum(self.eager):
            return ""
        if self.lowered == self.eager:
            return f"{self.eager} of {self.elements:,} elements on both sides"
        return (
            f"lowered: {self.lowered}, eager: {self.eager} of {self.elements:,}"
            " elements"
        )

    def verdict(self, tolerance: float | None = None) -> str:
        """Whether the output agrees with eager's, and if not, in which way it differs."""
        if self.agrees(tolerance):
            return (
                "agrees, but no element is finite"
                if self.has_only_non_finite
                else "agrees"
            )
        if self.lowered_shape is not None:
            return "differs in its shape"
        if not self._is_number:
            return "differs"
        if self.mismatched:
            return (
                f"differs, as {self.mismatched:,} elements are NaN or infinite on one"
                " side only, or of another sign"
            )
        return f"differs, by more than {self._accepted(tolerance):g}"


def compare(name: str, got: Any, wanted: Any) -> OutputStatistics:
    """Compare the value ``got`` with eager's, ``wanted``; ``name`` is the name of the
    output.

    Values of different shapes differ in all elements: the error is infinite. See
    ``OutputStatistics`` for the figures.
    """
    dtype = (
        str(wanted.dtype).removeprefix("torch.")
        if isinstance(wanted, torch.Tensor)
        else type(wanted).__name__
    )
    # such as None
    if not all(
        isinstance(v, (torch.Tensor, bool, int, float, complex)) for v in (got, wanted)
    ):
        differs = type(got) is not type(wanted) or got != wanted
        return OutputStatistics(name, (), 0.0, 0.0, int(differs), dtype)
    a, b = map(_wide, (got, wanted))
    shape = tuple(b.shape)
    if a.shape != b.shape:
        return OutputStatistics(
            name,
            shape,
            math.inf,
            _largest(torch.where(b.isfinite(), b, 0.0)),
            b.numel(),
            dtype,
            lowered=_count_non_finite(a),
            eager=_count_non_finite(b),
            lowered_shape=tuple(a.shape),
        )
    error = (a - b).abs()
    # float64 has 53 bits and may hide a difference of integers
    if not _is_float(got) and not _is_float(wanted):
        error = error.maximum(_differ_exactly(got, wanted).to(error.dtype))
    value = b
    largest = _largest(error)
    mismatched = 0
    lowered = NonFinite()
    eager = NonFinite()
    if not math.isfinite(largest):
        # elements that are not finite in both are the same or mismatched; the other
        # figures leave them out
        both_finite = a.isfinite() & b.isfinite()
        same = (a == b) | (a.isnan() & b.isnan())
        mismatched = int((~both_finite & ~same).sum())
        error = torch.where(both_finite, error, 0.0)
        value = torch.where(both_finite, b, 0.0)
        largest = _largest(error)
        lowered = _count_non_finite(a)
        eager = _count_non_finite(b)
    norms = [float(torch.linalg.vector_norm(x)) for x in (value, error)]
    snr = decibels(*norms) if largest else None
    return OutputStatistics(
        name,
        shape,
        largest,
        _largest(value),
        mismatched,
        dtype,
        snr=snr,
        lowered=lowered,
        eager=eager,
    )


def finite(value: Any) -> Any:
    """``value``, or None for an infinite float or NaN, which JSON does not have."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def decibels(signal: float, noise: float) -> float | None:
    """The ratio of two norms in dB; None if it is 0, infinite or NaN."""
    ratio = signal / noise if noise else math.inf
    # norms are roots of sums of squares, hence 20 and not 10
    return 20 * math.log10(ratio) if 0 < ratio < math.inf else None


def _count_non_finite(wide: torch.Tensor) -> NonFinite:
    """The counts of a tensor of float64 or complex128."""
    nan = wide.isnan()
    infinite = wide.isinf() & ~nan
    negative = (
        infinite & (wide < 0) if not wide.is_complex() else torch.zeros_like(infinite)
    )
    return NonFinite(
        int(nan.sum()), int((infinite & ~negative).sum()), int(negative.sum())
    )


def _is_float(value: Any) -> bool:
    """Whether a number or tensor is floating or complex."""
    tensor = isinstance(value, torch.Tensor)
    return (
        value.is_floating_point() or value.is_complex()
        if tensor
        else isinstance(value, (float, complex))
    )


def _differ_exactly(got: Any, wanted: Any) -> torch.Tensor:
    """Where two integers or tensors of integers of one shape differ."""
    if not isinstance(got, torch.Tensor) and not isinstance(wanted, torch.Tensor):
        return torch.tensor(int(got) != int(wanted))  # numbers of Python have any size
    ours = torch.as_tensor(got)
    theirs = torch.as_tensor(wanted)
    if ours.dtype is theirs.dtype is torch.uint64:  # which torch does not compare
        return ours.view(torch.int64) != theirs.view(torch.int64)
    if torch.uint64 in (ours.dtype, theirs.dtype):
        return torch.tensor(False)
    return ours != theirs


def _wide(value: Any) -> torch.Tensor:
    """A number or tensor as a tensor of float64 or complex128."""
    # an integer of Python may be larger than int64
    tensor = (
        value.detach()
        if isinstance(value, torch.Tensor)
        else torch.tensor(_as_float(value))
    )
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _as_float(number: complex) -> complex:
    """A number of Python as a float, or complex if it is; integers beyond all floats
    are infinite.
    """
    if isinstance(number, complex):
        return number
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def _largest(tensor: torch.Tensor) -> float:
    """The largest absolute value; 0 if the tensor is empty."""
    return float(tensor.abs().max()) if tensor.numel() else 0.0

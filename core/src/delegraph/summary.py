"""What is in a file: the same facts in the same form for every kind of file.

A format's ``summarize`` returns them; ``delegraph inspect --summary``, of delegraph-analysis, shows them. Importing
this module imports neither torch nor numpy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["ConstantSummary", "DelegateSummary", "MethodSummary", "Summary", "TensorSummary"]

LARGEST = 5
"""Constants that a summary lists."""
_NAME = 60
"""Characters of a name that the text of a tensor shows."""


@dataclass(frozen=True)
class TensorSummary:
    """An input or output. ``dtype`` is torch's name of the type where it has one; a size of None is not fixed.

    ``shape`` is None for a number. ``name`` is empty where the file has none. ``bounded``: the sizes are the largest
    that are taken. ``scale`` and ``zero_point`` say what integers stand for, ``(integer - zero_point) * scale``; None
    where the file does not.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...] | None
    bounded: bool = False
    scale: float | None = None
    zero_point: int | None = None

    def __str__(self) -> str:
        shown = self.name if len(self.name) <= _NAME else f"{self.name[:_NAME]}…"
        name = f"{shown}: " if self.name else ""
        quantized = "" if self.scale is None else f", scale {self.scale:.9g}, zero point {self.zero_point}"
        return f"{name}{self.dtype}{self._sizes()}{quantized}"

    def _sizes(self) -> str:
        """The shape as text: ``?`` for an unknown size, ``<=`` before sizes that are only bounded."""
        if self.shape is None:
            return ""
        bound = "<=" if self.bounded else ""
        return f"[{', '.join('?' if size is None else f'{bound}{size}' for size in self.shape)}]"


@dataclass(frozen=True)
class ConstantSummary:
    """A constant of a file, and the bytes that it takes there."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int


@dataclass(frozen=True)
class DelegateSummary:
    """A delegate of a file: its backend, what made it (empty where the file does not say), the bytes of its blob."""

    backend: str
    producer: str
    bytes: int


@dataclass(frozen=True)
class MethodSummary:
    """A method. ``operators``: what the file's own operators are, those in delegates apart -> how often."""

    name: str
    inputs: tuple[TensorSummary, ...]
    outputs: tuple[TensorSummary, ...]
    operators: Mapping[str, int]
    delegates: tuple[DelegateSummary, ...] = ()


@dataclass(frozen=True)
class Summary:
    """A whole file. ``kind`` is such as ``TOSA program``, ``version`` that of the format.

    ``needs`` says what a device or runtime must have, by kind, such as profiles and extensions. ``producer`` is empty
    where the file does not say. ``largest`` are the ``LARGEST`` largest of the ``constants``, largest first.
    """

    kind: str
    version: str
    bytes: int
    needs: Mapping[str, Sequence[str]]
    methods: tuple[MethodSummary, ...]
    constants: int
    constant_bytes: int
    largest: tuple[ConstantSummary, ...] = field(default=())
    producer: str = ""

    @staticmethod
    def largest_of(constants: Sequence[ConstantSummary]) -> tuple[ConstantSummary, ...]:
        """The first ``LARGEST`` by size."""
        return tuple(sorted(constants, key=lambda c: (-c.bytes, c.name))[:LARGEST])

    def to_json(self) -> dict[str, Any]:
        """As a dictionary of plain values."""
        return asdict(self)

"""Summaries of files, in the same form for every file format.

``ProgramFormat.summarize`` returns a Summary, and ``delegraph inspect --summary`` (of
delegraph-analysis) prints it. Importing this module imports neither torch nor numpy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = [
    "ConstantSummary",
    "DelegateSummary",
    "MethodSummary",
    "Summary",
    "TensorSummary",
]

LARGEST = 5
"""The number of constants that a summary lists."""
_NAME = 60
"""The most characters of a name that the text of a tensor shows."""


@dataclass(frozen=True)
class TensorSummary:
    """An input or output of a method.

    ``name``: "" if the file has none. ``dtype``: torch's name of the type, if torch has
    it. ``shape``: None for a number; a size of None is not known. ``bounded``: the
    sizes are upper limits. ``scale`` and ``zero_point``: an integer stands for
    ``(integer - zero_point) * scale``; None if the file does not have them. ``within``:
    the lowest and the highest integer that calls may give, where the program was
    lowered for such; None for all of the type.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...] | None
    bounded: bool = False
    scale: float | None = None
    zero_point: int | None = None
    within: tuple[int, int] | None = None

    def __str__(self) -> str:
        """Name, type, sizes and quantization, as far as they are known: ``x: int8[1,
        3], scale 0.5, zero point 0``.
        """
        shown = self.name if len(self.name) <= _NAME else f"{self.name[:_NAME]}…"
        name = f"{shown}: " if self.name else ""
        quantized = (
            ""
            if self.scale is None
            else f", scale {self.scale:.9g}, zero point {self.zero_point}"
        )
        within = (
            ""
            if self.within is None
            else f", from {self.within[0]} to {self.within[1]}"
        )
        return f"{name}{self.dtype}{self._sizes()}{quantized}{within}"

    def _sizes(self) -> str:
        """The shape as text: ``?`` for an unknown size, ``<=`` before upper limits; ""
        for a number.
        """
        if self.shape is None:
            return ""
        bound = "<=" if self.bounded else ""
        return f"[{', '.join('?' if size is None else f'{bound}{size}' for size in self.shape)}]"


@dataclass(frozen=True)
class ConstantSummary:
    """A constant of a file; ``bytes`` is its size there."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int


@dataclass(frozen=True)
class DelegateSummary:
    """A delegate of a file. ``producer``: what compiled it, "" if not known. ``bytes``:
    size of its blob.
    """

    backend: str
    producer: str
    bytes: int


@dataclass(frozen=True)
class MethodSummary:
    """A method. ``operators``: operator of the file -> count; operators inside of
    delegates are not included.
    """

    name: str
    inputs: tuple[TensorSummary, ...]
    outputs: tuple[TensorSummary, ...]
    operators: Mapping[str, int]
    delegates: tuple[DelegateSummary, ...] = ()


@dataclass(frozen=True)
class Summary:
    """A whole file.

    ``kind``: a name for such files, such as "TOSA program". ``version``: of the format.
    ``needs``: what a device or runtime must have, such as {"profiles": ["FP"]}.
    ``constants`` and ``constant_bytes``: number and total size of the constants.
    ``largest``: the LARGEST largest of them, largest first. ``producer``: what wrote
    the file, "" if not known.
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
        """The LARGEST largest of ``constants``, largest first."""
        return tuple(sorted(constants, key=lambda c: (-c.bytes, c.name))[:LARGEST])

    def to_json(self) -> dict[str, Any]:
        """The summary as a dictionary of plain values."""
        return asdict(self)

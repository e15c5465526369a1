"""What is in a file, on one screen: the same facts in the same form for every kind of file.

A format's ``summarize`` makes one; ``delegraph inspect --summary`` shows it. Importing this module imports neither
torch nor numpy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .io.escape import printable

__all__ = ["ConstantSummary", "DelegateSummary", "MethodSummary", "Summary", "TensorSummary"]

LARGEST = 5
"""Constants that a summary lists."""
_LISTED = 12
"""Methods, inputs, outputs, delegates and kinds of operators that the text lists; the data have all."""
_NAME = 60
"""Characters of a name in the text."""


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
        name = f"{_short(self.name)}: " if self.name else ""
        quantized = "" if self.scale is None else f", scale {self.scale:.9g}, zero point {self.zero_point}"
        return f"{name}{self.dtype}{self._sizes()}{quantized}"

    def _sizes(self) -> str:
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

    def __str__(self) -> str:
        return printable("\n".join(self._lines()), kept="\n")

    def _lines(self) -> Iterator[str]:
        made = f", made by {_short(self.producer)}" if self.producer else ""
        yield f"{self.kind}, version {self.version}, {self.bytes:,} bytes{made}"
        yield from (f"needs {what}: {_listed(names)}" for what, names in self.needs.items() if names)
        for method in self.methods[:_LISTED]:
            yield from _method_lines(method)
        yield from [f"and {len(self.methods) - _LISTED} more methods"] if len(self.methods) > _LISTED else []
        yield f"constants: {self.constants:,}, {self.constant_bytes:,} bytes" + (", largest:" if self.largest else "")
        rows = [(f"{c.bytes:,}", f"{_short(c.name)}: {c.dtype}{list(c.shape)}") for c in self.largest]
        width = max((len(size) for size, _ in rows), default=0)
        yield from (f"  {size:>{width}} bytes  {shown}" for size, shown in rows)


def _method_lines(method: MethodSummary) -> Iterator[str]:
    yield f"method {_short(method.name)}"
    for what, tensors in (("in ", method.inputs), ("out", method.outputs)):
        yield from (f"  {what}  {tensor}" for tensor in tensors[:_LISTED])
        yield from [f"  {what}  and {len(tensors) - _LISTED} more"] if len(tensors) > _LISTED else []
    for delegate in method.delegates[:_LISTED]:
        made = f" ({delegate.producer})" if delegate.producer else ""
        yield f"  delegate  {_short(delegate.backend)}{made}, {delegate.bytes:,} bytes"
    if len(method.delegates) > _LISTED:
        yield f"  delegate  and {len(method.delegates) - _LISTED} more"
    ordered = sorted(method.operators.items(), key=lambda item: (-item[1], item[0]))
    counts = _listed([f"{count} {name}" for name, count in ordered])
    yield f"  operators: {sum(method.operators.values()):,}" + (f" ({counts})" if method.operators else "")


def _listed(names: Sequence[str]) -> str:
    more = [f"and {len(names) - _LISTED} more"] if len(names) > _LISTED else []
    return ", ".join([*(_short(name) for name in names[:_LISTED]), *more]) or "none"


def _short(name: str) -> str:
    return name if len(name) <= _NAME else f"{name[:_NAME]}…"

"""Writes a graph as a TOSA flatbuffer: first the structure, then the constants.

The structure is built once, with offsets to the constants. Each constant's vector
follows it, 16-byte aligned. So no weight passes through the builder, which would copy
it several times. Sizes follow from types, so the length of the file is known before any
weight is read.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from ..evaluate.constant_elements import stored_elements
from ..ir.graph import Array, Folded, Graph, Value
from ..ir.operators import CONCAT, RESHAPE
from ..ir.types import FLOATS
from ..spec import TosaSpec
from .elements import pack, size_in_file
from .structure import LENGTH_BYTES, Placed, Structure, lay_out

OFFSET_LIMIT = 1 << 31
"""Larger files use ``TosaTensor.offset``. Many readers treat offsets as signed."""


@dataclass(frozen=True)
class Constant:
    """A constant of a file, packed when written (``delegraph.backend.Blob``).

    ``start`` is the position of its elements in the file, ``size`` their bytes.
    """

    placed: Placed
    start: int
    size: int

    def __len__(self) -> int:
        return self.size

    def write_to(self, file: BinaryIO) -> None:
        """Append the elements."""
        elements = stored_elements(self.placed.value)[self.placed.part]
        file.write(pack(elements, self.placed.type))


class TosaFile:
    """A graph as a ``.tosa`` file, assembled when written (``delegraph.backend.Blob``).

    Inputs and outputs keep the name of their value if it is unique, and are numbered
    otherwise. A result that is an input, a constant or repeated gets an IDENTITY. The
    same graph gives the same bytes in any process.

    ``locations=True`` stores each operator's source for debugging; such files contain
    local paths. ``numbers`` maps an operator to its number in the file, which also
    counts CONST and CONST_SHAPE, region by region. ``trailer`` follows the flatbuffer
    (``trailer.py``).
    """

    def __init__(
        self,
        graph: Graph,
        spec: TosaSpec,
        *,
        locations: bool = False,
        trailer: bytes = b"",
    ) -> None:
        self._trailer = trailer
        kind = _older_structure() if spec.version < (1, 0) else None
        layout = lay_out(graph, spec.version, locations, OFFSET_LIMIT, kind)
        self._structure, self._placed, self._size, self.numbers = layout

    def __len__(self) -> int:
        return self._size + len(self._trailer)

    def write_to(self, file: BinaryIO) -> None:
        """Append the bytes to ``file``, with one constant in memory at a time."""
        file.write(self._structure)
        position = len(self._structure)
        parts: tuple[Array, ...] = ()
        for placed in self._placed:
            type = placed.type
            size = size_in_file(type)
            length = size.to_bytes(LENGTH_BYTES, "little") if placed.has_length else b""
            file.write(bytes(placed.start - position) + length)
            position = placed.start + len(length) + size
            if type.dtype in FLOATS:
                for weight in _consecutive_weights(placed.value):
                    file.write(pack(stored_elements(weight)[0], weight.type))
                continue
            # a block-scaled constant's scales follow its values: compute both at once
            if placed.part == 0:
                parts = stored_elements(placed.value)
            file.write(pack(parts[placed.part], type))
        file.write(self._trailer)

    def constants(self) -> Iterator[Constant]:
        """Return the constants in file order. A concatenation counts as several."""
        for placed in self._placed:
            start = placed.start + (LENGTH_BYTES if placed.has_length else 0)
            weights: Iterable[Value] = (placed.value,)
            if placed.type.dtype in FLOATS:
                weights = _consecutive_weights(placed.value)
            for weight in weights:
                piece = Placed(weight, placed.part, start, has_length=False)
                yield Constant(piece, start, size_in_file(piece.type))
                start += size_in_file(piece.type)

    def join(self) -> bytes:
        """Return all bytes at once."""
        stream = io.BytesIO()
        # allocate once; getvalue() then returns the buffer without a copy
        stream.seek(len(self) - 1)
        stream.write(b"\0")
        stream.seek(0)
        self.write_to(stream)
        return stream.getvalue()


def _older_structure() -> type[Structure]:
    """Return the class for TOSA 0.80, imported only if it is needed."""
    from .older import OlderStructure

    return OlderStructure


def _consecutive_weights(value: Value) -> Iterator[Value]:
    """Yield weights that, one after another, have the elements of ``value``.

    If ``value`` is a CONCAT of weights, this avoids computing and copying it.
    """
    operator = value.constant.operator if isinstance(value.constant, Folded) else None
    if isinstance(operator, RESHAPE):
        yield from _consecutive_weights(operator.inputs[0])
    elif isinstance(operator, CONCAT) and operator.axis == 0:
        for part in operator.inputs:
            yield from _consecutive_weights(part)
    else:
        yield value

"""Writing a graph as a TOSA flatbuffer in two parts: the structure, then the constants
behind it.

The structure is built once. A constant's vector lies behind it, 16-byte aligned, and
the tensor's ``data`` field is a forward offset to it: legal, and no weight goes through
the builder, which would copy it several times. Sizes follow from the types, so the
length is known before a weight is touched.
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
"""Files beyond this size name their constants by ``TosaTensor.offset``: many readers
take offsets as signed.
"""


@dataclass(frozen=True)
class Constant:
    """The elements of a constant as the file has them, packed when they are written (a
    ``delegraph.backend.Blob``).
    """

    placed: Placed
    start: int
    size: int

    def __len__(self) -> int:
        return self.size

    def write_to(self, file: BinaryIO) -> None:
        """Append the elements."""
        file.write(
            pack(stored_elements(self.placed.value)[self.placed.part], self.placed.type)
        )


class TosaFile:
    """A graph as the bytes of a ``.tosa`` file, joined when they are written (a
    ``delegraph.backend.Blob``).

    Inputs and outputs carry the name of their value where it is given and unique,
    otherwise their position. A result that is an input, a constant or there twice gets
    an IDENTITY. The same graph gives the same bytes in any process. ``locations=True``
    stores each operator's source, for debugging; such files name paths of this machine.
    ``numbers``: operator -> its number in the file, CONST and CONST_SHAPE counted, one
    region after the other. ``trailer`` is what stands behind the flatbuffer
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
        kind = _older() if spec.version < (1, 0) else None
        layout = lay_out(graph, spec.version, locations, OFFSET_LIMIT, kind)
        self._structure, self._placed, self._size, self.numbers = layout

    def __len__(self) -> int:
        return self._size + len(self._trailer)

    def write_to(self, file: BinaryIO) -> None:
        """Append the bytes to ``file``; one constant is in memory at a time."""
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
                for weight in _in_order(placed.value):
                    file.write(pack(stored_elements(weight)[0], weight.type))
                continue
            # the scales of a block-scaled constant follow its values
            if placed.part == 0:
                parts = stored_elements(placed.value)
            file.write(pack(parts[placed.part], type))
        file.write(self._trailer)

    def constants(self) -> Iterator[Constant]:
        """The constants in the order of the file, each where its elements start; one of
        joined weights is several.
        """
        for placed in self._placed:
            start = placed.start + (LENGTH_BYTES if placed.has_length else 0)
            is_joined = placed.type.dtype in FLOATS
            weights: Iterable[Value] = (
                _in_order(placed.value) if is_joined else (placed.value,)
            )
            for weight in weights:
                piece = Placed(weight, placed.part, start, False)
                yield Constant(piece, start, size_in_file(piece.type))
                start += size_in_file(piece.type)

    def join(self) -> bytes:
        """All bytes at once."""
        stream = io.BytesIO()
        # one allocation of the right size, which getvalue() hands out without a copy
        stream.seek(len(self) - 1)
        stream.write(b"\0")
        stream.seek(0)
        self.write_to(stream)
        return stream.getvalue()


def _older() -> type[Structure]:
    from .older import OlderStructure

    return OlderStructure


def _in_order(value: Value) -> Iterator[Value]:
    """Weights whose elements, one after another, are those of ``value``: nothing is
    computed, nor copied into one.
    """
    operator = value.constant.operator if isinstance(value.constant, Folded) else None
    if isinstance(operator, RESHAPE):
        yield from _in_order(operator.inputs[0])
    elif isinstance(operator, CONCAT) and operator.axis == 0:
        for part in operator.inputs:
            yield from _in_order(part)
    else:
        yield value

"""Store large constants of a program as named data, which delegates share.

The rest of the bytecode is the blob. So a lowered program refers to the tensors of the
model and does not copy them. The bytecode holds constants as they are in memory, so
their places are found by their bytes. A constant that is not found, such as one of four
bits, stays in the blob.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from delegraph.backend import NamedDataStore
from delegraph.errors import FormatError
from delegraph_engines import add_by_content, expect_data
from delegraph_programs import constant_placeholders, constant_tensor, placeholders
from torch.export import ExportedProgram

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
SMALLEST = 4096
"""The fewest bytes of a constant that becomes named data."""
WEIGHT = "coreai/"
"""The beginning of the keys of weights; a fingerprint follows."""
_HEAD = 64
"""The number of bytes that are searched before a whole constant is compared."""
_TRIES = 16
"""The most places that are compared with a constant, such as one full of zeros."""


class Hole(NamedTuple):
    """A part of the bytecode that is named data."""

    place: int
    """The number of bytes before it in the whole bytecode."""
    size: int
    key: str


class Stripped(NamedTuple):
    """Bytecode without its ``holes``, which are in order."""

    content: bytes
    holes: list[Hole]


def take_weights(
    bytecode: bytes, program: ExportedProgram, store: NamedDataStore
) -> Stripped:
    """Add large constants of ``program`` to ``store``; return the rest of its bytecode."""
    view = memoryview(bytecode)
    whole = np.frombuffer(bytecode, np.uint8)
    found = dict[int, torch.Tensor]()
    end = 0
    for tensor in _constants(program):
        content = tensor.reshape(-1).view(torch.uint8).numpy()
        place = _find(bytecode, whole, content, end)
        if place is not None:
            found[place] = tensor
            end = place + content.size
    holes = list[Hole]()
    rest = list[memoryview]()
    start = 0
    for place, tensor in sorted(found.items(), key=lambda item: item[0]):
        if place < start:  # a constant of zeros may lie within another one
            continue
        key = add_by_content(store, WEIGHT, tensor, alignment=64)
        holes.append(Hole(place, tensor.nbytes, key))
        rest.append(view[start:place])
        start = place + tensor.nbytes
    rest.append(view[start:])
    return Stripped(b"".join(rest), holes)


def filled(
    content: memoryview, facts: Mapping[str, Any], named_data: Mapping[str, bytes]
) -> Iterator[bytes | memoryview]:
    """Yield the parts of the whole bytecode.

    The fact "weights" lists the holes. Raises FormatError if it is wrong, or if data
    are missing.
    """
    start = 0
    length = 0
    for hole in _holes_of(facts):
        end = start + hole.place - length
        if end < start or end > len(content):
            raise FormatError(
                "format-invalid", "the blob of CoreAIBackend lists wrong weights"
            )
        yield content[start:end]
        yield expect_data(named_data, hole.key, hole.size)
        start = end
        length = hole.place + hole.size
    yield content[start:]


def _holes_of(facts: Mapping[str, Any]) -> list[Hole]:
    """Return the holes that a blob lists. Raises FormatError for other data."""
    try:
        holes = [Hole(*row) for row in facts.get("weights", [])]
    except TypeError as error:
        raise FormatError(
            "format-invalid", f"the blob of CoreAIBackend lists no weights: {error}"
        ) from error
    for hole in holes:
        if [type(field) for field in hole] != [int, int, str]:
            raise FormatError("format-invalid", f"{hole!r:.80} is no weight of a blob")
    return holes


def _constants(program: ExportedProgram) -> Iterator[torch.Tensor]:
    """Yield the large constants of a program, in C order."""
    constant = constant_placeholders(program)
    for node, spec in placeholders(program):
        if node not in constant:
            continue
        tensor = constant_tensor(program, spec)
        if tensor.nbytes >= SMALLEST:
            yield tensor.detach().resolve_neg().contiguous()


def _find(bytecode: bytes, whole: Bytes, content: Bytes, start: int) -> int | None:
    """Return the place of ``content`` in the bytecode, or None.

    ``start``: the likely place. Constants mostly follow each other in the order of the
    program.
    """
    head = content[:_HEAD].tobytes()
    for begin in (start, 0):
        place = bytecode.find(head, begin)
        for _ in range(_TRIES):
            if place < 0:
                break
            if np.array_equal(whole[place : place + content.size], content):
                return place
            place = bytecode.find(head, place + 1)
    return None

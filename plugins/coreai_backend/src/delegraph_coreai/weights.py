"""Stores large constants of a program as named data, which delegates share.

The constants are cut out of the bytecode, and the rest is the blob. So a lowered program
refers to the tensors of the model and does not copy them. The bytecode holds constants
as they are in memory, so their offsets are found by comparing bytes. A constant that is
not found, such as one of four bits, stays in the blob.
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
"""The most offsets that are tried. The first bytes of a constant may occur often."""


class Hole(NamedTuple):
    """A part of the bytecode that is named data."""

    offset: int
    """The number of bytes before it in the whole bytecode."""
    size: int
    key: str


class Stripped(NamedTuple):
    """Bytecode without the parts ``holes``, which are in order."""

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
        offset = _find(bytecode, whole, content, end)
        if offset is not None:
            found[offset] = tensor
            end = offset + content.size
    holes = list[Hole]()
    rest = list[memoryview]()
    start = 0
    for offset in sorted(found):
        tensor = found[offset]
        if offset < start:  # a constant of zeros may lie within another one
            continue
        key = add_by_content(store, WEIGHT, tensor, alignment=64)
        holes.append(Hole(offset, tensor.nbytes, key))
        rest.append(view[start:offset])
        start = offset + tensor.nbytes
    rest.append(view[start:])
    return Stripped(b"".join(rest), holes)


def filled(
    content: memoryview, facts: Mapping[str, Any], named_data: Mapping[str, bytes]
) -> Iterator[bytes | memoryview]:
    """Yield the parts of the whole bytecode: ``content`` with its holes filled.

    The fact "weights" lists the holes. Raises FormatError if it is wrong, or if data
    are missing.
    """
    start = 0  # in ``content``
    whole_start = 0  # the same place in the whole bytecode
    for hole in _holes_of(facts):
        end = start + hole.offset - whole_start
        if end < start or end > len(content):
            raise FormatError(
                "format-invalid",
                f"the blob of CoreAIBackend has no place for the weight {hole!r:.80}",
            )
        yield content[start:end]
        yield expect_data(named_data, hole.key, hole.size)
        start = end
        whole_start = hole.offset + hole.size
    yield content[start:]


def _holes_of(facts: Mapping[str, Any]) -> list[Hole]:
    """Return the holes that a blob lists. Raises FormatError for other data."""
    try:
        holes = [Hole(*row) for row in facts.get("weights", [])]
    except TypeError as error:
        raise FormatError(
            "format-invalid",
            f"the list of weights in the blob of CoreAIBackend is damaged: {error}",
        ) from error
    for hole in holes:
        if [type(field) for field in hole] != [int, int, str]:
            raise FormatError(
                "format-invalid", f"the blob lists an invalid weight: {hole!r:.80}"
            )
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
    """Return the offset of ``content`` in the bytecode, or None.

    ``whole``: the bytecode as an array. ``start``: the offset from which to search
    first. Constants mostly follow each other in the order of the program.
    """
    head = content[:_HEAD].tobytes()
    for begin in (start, 0):
        offset = bytecode.find(head, begin)
        for _ in range(_TRIES):
            if offset < 0:
                break
            if np.array_equal(whole[offset : offset + content.size], content):
                return offset
            offset = bytecode.find(head, offset + 1)
    return None

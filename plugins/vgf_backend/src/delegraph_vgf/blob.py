"""The blob of ``VgfBackend``: a VGF file, then what its caller has to know, as a trailer that readers of VGF skip.

The trailer is JSON (inputs, outputs), the SHA-256 of file and JSON, the length of the JSON (8 bytes, little endian) and
a magic. Vulkan drivers compile the SPIR-V of a file without looking for damage; the digest finds damage, not attackers.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from delegraph.errors import FormatError

_MAGIC = b"delegraph-vgf-1"
_TAIL = 32 + 8 + len(_MAGIC)
_CHUNK = 1 << 20

Side = tuple[tuple[str, tuple[int, ...]], ...]
"""For each input, or each output: torch's name of the type, and the shape."""


@dataclass(frozen=True)
class Signature:
    """How a delegate is called. VGF files cannot tell it: uint8 that went through TOSA is int8 there."""

    inputs: Side
    outputs: Side


def seal(path: Path, signature: Signature) -> None:
    """Append the trailer to the VGF file at ``path``, without having all of it in memory."""
    told = json.dumps([signature.inputs, signature.outputs]).encode()
    digest = hashlib.sha256()
    with path.open("rb+") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
        digest.update(told)
        file.write(b"".join([told, digest.digest(), len(told).to_bytes(8, "little"), _MAGIC]))


def unseal(blob: bytes) -> tuple[memoryview, Signature]:
    """The VGF file in a blob, and its signature. FormatError if the blob is damaged, or another's."""
    if blob[-len(_MAGIC) :] != _MAGIC or len(blob) < _TAIL:
        raise FormatError("format-invalid", "no VGF file that delegraph compiled, or one that was cut")
    length = int.from_bytes(blob[-len(_MAGIC) - 8 : -len(_MAGIC)], "little")
    end = len(blob) - _TAIL
    if length > end or hashlib.sha256(memoryview(blob)[:end]).digest() != blob[end : end + 32]:
        raise FormatError("format-invalid", "a damaged VGF file: its digest is another")
    sides = (tuple((dtype, tuple(shape)) for dtype, shape in side) for side in json.loads(blob[end - length : end]))
    return memoryview(blob)[: end - length], Signature(*sides)

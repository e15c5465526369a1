"""The blob of ``IREEBackend``: an IREE module, then what its caller has to know, as a trailer that IREE skips.

The trailer is JSON (target, inputs, outputs), the SHA-256 of module and JSON, the length of the JSON (8 bytes, little
endian) and a magic. IREE runs native code from a module without looking for damage; the digest finds damage, not
attackers.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from delegraph.errors import FormatError

_MAGIC = b"delegraph-iree-1"
_TAIL = 32 + 8 + len(_MAGIC)


@dataclass(frozen=True)
class Signature:
    """How a module is called: ``target`` of iree-compile, and a torch dtype and a shape for each input and output.

    A size of -1 is one that each call chooses.
    """

    target: str
    inputs: tuple[tuple[str, tuple[int, ...]], ...]
    outputs: tuple[tuple[str, tuple[int, ...]], ...]


def pack(module: bytes, signature: Signature) -> bytes:
    """The blob of a module."""
    told = json.dumps([signature.target, signature.inputs, signature.outputs]).encode()
    digest = hashlib.sha256(module + told).digest()
    return b"".join([module, told, digest, len(told).to_bytes(8, "little"), _MAGIC])


def unpack(blob: bytes) -> tuple[memoryview, Signature]:
    """The module in a blob, and its signature. FormatError if the blob is damaged, or another's."""
    if blob[-len(_MAGIC) :] != _MAGIC or len(blob) < _TAIL:
        raise FormatError("format-invalid", "no IREE module that delegraph compiled, or one that was cut")
    length = int.from_bytes(blob[-len(_MAGIC) - 8 : -len(_MAGIC)], "little")
    end = len(blob) - _TAIL
    if length > end or hashlib.sha256(memoryview(blob)[:end]).digest() != blob[end : end + 32]:
        raise FormatError("format-invalid", "a damaged IREE module: its digest is another")
    try:
        target, inputs, outputs = json.loads(blob[end - length : end])
        sides = [tuple((str(dtype), tuple(shape)) for dtype, shape in side) for side in (inputs, outputs)]
    except (ValueError, TypeError, RecursionError) as error:
        raise FormatError("format-invalid", f"an IREE module without a signature: {error}") from error
    return memoryview(blob)[: end - length], Signature(str(target), *sides)

"""The payload that ExecuTorch's Ethos-U delegate reads: named blocks with headers.

A header of 32 bytes precedes each block. It has the block's name (16 bytes, padded with
zeros), the length of its content (uint32), a byte, and 11 zeros. The byte is 1 if the
content is the key of named data. The content is padded to a multiple of 16 bytes. All
numbers are little endian (ExecuTorch 1.5.1: backends/arm/arm_vela.py).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping
from typing import Any

from delegraph.backend import NamedDataStore
from delegraph.errors import FormatError, Unsupported

_HEADER = struct.Struct("<16sIB11x")
_ALIGNMENT = 16
_RANK = 6
"""The number of sizes that each input and output has in the payload."""
_FIRST = "vela_bin_stream"
_LAST = "vela_end_stream"


def pack(
    compiled: Mapping[str, Any], tags: Mapping[str, str], store: NamedDataStore
) -> bytes:
    """Return the payload of Vela's results.

    ``compiled``: the arrays of Vela's ``.npz`` file. ``tags``: block -> external tag.
    These blocks go into ``store`` as named data, and a program file writes them as
    ``<tag>.ptd``.
    """
    blocks = {
        _FIRST: b"",
        "cmd_data": compiled["cmd_data"].tobytes(),
        "weight_data": compiled["weight_data"].tobytes(),
        "scratch_size": struct.pack("<I", int(compiled["scratch_shape"][0])),
        "inputs": _tensors(compiled, "input"),
        "outputs": _tensors(compiled, "output"),
        _LAST: b"",
    }
    return b"".join(
        _block(name, content, tags.get(name), store) for name, content in blocks.items()
    )


def _block(name: str, content: bytes, tag: str | None, store: NamedDataStore) -> bytes:
    """Return one block; with a ``tag``, its content is a key of data in ``store``."""
    if tag is not None:
        key = hashlib.sha256(tag.encode() + b"\0" + content).hexdigest()
        store.add_named_data(key, content, alignment=_ALIGNMENT, external_tag=tag)
        content = key.encode()
    header = _HEADER.pack(name.encode(), len(content), tag is not None)
    padding = bytes(_padded_size(len(content)) - len(content))
    return header + content + padding


def _padded_size(length: int) -> int:
    """Return ``length`` rounded up to a multiple of the alignment."""
    return -(-length // _ALIGNMENT) * _ALIGNMENT


def _tensors(compiled: Mapping[str, Any], side: str) -> bytes:
    """Return the table of inputs or outputs.

    It has their number, then six sizes, element size, offset and region of each. Vela
    up to 4.2 writes fewer sizes; they are filled up with ones in front, as by later
    versions.
    """
    fields = ("shape", "elem_size", "offset", "region")
    columns = [compiled[f"{side}_{field}"] for field in fields]
    packed = struct.pack("<i", len(columns[0]))
    for shape, *others in zip(*columns, strict=True):
        if len(shape) > _RANK:
            text = f"Vela's {side} has {len(shape)} sizes; a payload has {_RANK}"
            raise Unsupported("unsupported", text)
        sizes = [1] * (_RANK - len(shape)) + [int(size) for size in shape]
        packed += struct.pack(f"<{_RANK + 3}i", *sizes, *map(_signed, others))
    return packed


def _signed(number: Any) -> int:
    """Return a number of Vela as int; it may write -1 as 2**64 - 1."""
    value = int(number)
    return value - 2**64 if value >= 2**63 else value


def blocks(payload: bytes | memoryview) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each block of a payload.

    Raises FormatError if the payload is cut, or none.
    """
    position = 0
    name = ""
    while name != _LAST:
        if position + _HEADER.size > len(payload):
            raise _invalid()
        raw, length, _ = _HEADER.unpack_from(payload, position)
        is_first = position == 0
        position += _HEADER.size
        name = raw.rstrip(b"\0").decode("ascii", "replace")
        if position + _padded_size(length) > len(payload):
            raise _invalid()
        if is_first and name != _FIRST:
            raise _invalid()
        yield name, bytes(payload[position : position + length])
        position += _padded_size(length)


def _invalid() -> FormatError:
    return FormatError(
        "format-invalid", "the data is no payload for Ethos-U, or is truncated"
    )

"""The payload that ExecuTorch's Ethos-U delegate reads: named blocks, each behind a
header of 32 bytes.

A header is the block's name (16 bytes, padded with zeros), the length of its content
(uint32), one byte that is 1 if the content is the key of named data in its place, and
11 zeros. The content is padded to a multiple of 16 bytes. All numbers are little endian
(ExecuTorch 1.5.1: backends/arm/arm_vela.py).
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
    """The payload of what Vela compiled.

    ``compiled``: the arrays of Vela's ``.npz`` file. ``tags``: block -> external tag;
    these blocks go into ``store`` as named data, which a program file writes beside
    itself as ``<tag>.ptd``.
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
    """One block. With a ``tag`` its content is the key under which the data are in
    ``store``.
    """
    if tag is not None:
        key = hashlib.sha256(tag.encode() + b"\0" + content).hexdigest()
        store.add_named_data(key, content, alignment=_ALIGNMENT, external_tag=tag)
        content = key.encode()
    header = _HEADER.pack(name.encode(), len(content), tag is not None)
    return header + content + bytes(_padded(len(content)) - len(content))


def _padded(length: int) -> int:
    """The bytes that a content of ``length`` takes."""
    return -(-length // _ALIGNMENT) * _ALIGNMENT


def _tensors(compiled: Mapping[str, Any], side: str) -> bytes:
    """The table of inputs or outputs: their number, then six sizes, element size,
    offset and region of each.

    Vela up to 4.2 gives fewer sizes: ones are put in front of them, as later versions
    do.
    """
    columns = [
        compiled[f"{side}_{what}"]
        for what in ("shape", "elem_size", "offset", "region")
    ]
    given = [
        ([1] * (_RANK - len(shape)) + [*map(int, shape)], others)
        for shape, *others in zip(*columns, strict=True)
    ]
    rows = [[*sizes, *map(_signed, others)] for sizes, others in given]
    if any(len(row) != _RANK + 3 for row in rows):
        raise Unsupported("unsupported", f"Vela gave an {side} more sizes than {_RANK}")
    return struct.pack("<i", len(rows)) + b"".join(
        struct.pack(f"<{_RANK + 3}i", *row) for row in rows
    )


def _signed(number: Any) -> int:
    """A number of Vela's; it writes -1 as 2**64 - 1 as well."""
    value = int(number)
    return value - 2**64 if value >= 2**63 else value


def blocks(payload: bytes | memoryview) -> Iterator[tuple[str, bytes]]:
    """Name and content of each block of a payload. FormatError if it is cut or none."""
    position = 0
    name = ""
    while name != _LAST:
        if position + _HEADER.size > len(payload):
            raise FormatError(
                "format-invalid", "no payload for Ethos-U, or one that was cut"
            )
        raw, length, _ = _HEADER.unpack_from(payload, position)
        position = position + _HEADER.size
        name = raw.rstrip(b"\0").decode("ascii", "replace")
        if position + _padded(length) > len(payload) or (
            position == _HEADER.size and name != _FIRST
        ):
            raise FormatError(
                "format-invalid", "no payload for Ethos-U, or one that was cut"
            )
        yield name, bytes(payload[position : position + length])
        position += _padded(length)

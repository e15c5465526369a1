"""Values that cross the border of a delegate, in messages: tensors as bytes in C order,
numbers as JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from delegraph.errors import FormatError

_NAMES = {
    str(v).removeprefix("torch."): v
    for v in vars(torch).values()
    if isinstance(v, torch.dtype)
}


def write_values(values: Sequence[Any]) -> tuple[list[Any], list[bytes]]:
    """A row for each value, and the bytes of those that are tensors."""
    rows = list[Any]()
    parts = list[bytes]()
    for value in values:
        if isinstance(value, torch.Tensor):
            # no lazy conjugate, no strides
            plain = torch.empty(value.shape, dtype=value.dtype).copy_(value.detach())
            rows.append(
                ["tensor", str(value.dtype).removeprefix("torch."), list(value.shape)]
            )
            parts.append(
                bytes(plain.reshape(-1).view(torch.uint8).numpy())
                if plain.numel()
                else b""
            )
        elif isinstance(value, float):
            rows.append(["float", value.hex()])
        else:
            rows.append(["plain", value])
    return rows, parts


def read_values(rows: Any, parts: Sequence[memoryview]) -> list[Any]:
    """The values of rows. Raises FormatError for nonsense."""
    made = list[Any]()
    left = iter(parts)
    try:
        for kind, *row in rows:
            if kind == "tensor":
                made.append(_tensor(row[0], row[1], next(left)))
            elif kind == "float":
                made.append(float.fromhex(row[0]))
            elif isinstance(row[0], (int, bool)) or row[0] is None:
                made.append(row[0])
            else:
                raise ValueError(f"a value {row[0]!r:.40}")
    except (
        ValueError,
        TypeError,
        KeyError,
        IndexError,
        StopIteration,
        RuntimeError,
        OverflowError,
    ) as e:
        raise FormatError(
            "format-invalid",
            f"values in a message that are none: {type(e).__name__}: {e}",
        ) from e
    return made


def _tensor(name: str, shape: list[int], data: memoryview) -> torch.Tensor:
    """A tensor of a dtype and a shape, with elements in C order."""
    made = torch.empty([int(size) for size in shape], dtype=_NAMES[name])
    if made.nbytes != len(data):
        raise ValueError(f"{len(data)} bytes for {name}{shape}")
    if made.numel():
        made.reshape(-1).view(torch.uint8).copy_(
            torch.frombuffer(bytearray(data), dtype=torch.uint8)
        )
    return made

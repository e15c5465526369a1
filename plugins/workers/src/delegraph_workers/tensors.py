"""Write inputs and outputs of delegates into messages.

Tensors become bytes in C order, numbers become JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from delegraph.errors import FormatError

from .forms import DTYPES


def write_values(values: Sequence[Any]) -> tuple[list[Any], list[bytes]]:
    """Return a row for each value, and the bytes of tensors."""
    rows = list[Any]()
    parts = list[bytes]()
    for value in values:
        if isinstance(value, torch.Tensor):
            name = str(value.dtype).removeprefix("torch.")
            rows.append(["tensor", name, list(value.shape)])
            parts.append(_bytes(value))
        elif isinstance(value, float):
            rows.append(["float", value.hex()])
        else:
            rows.append(["plain", value])
    return rows, parts


def _bytes(tensor: torch.Tensor) -> bytes:
    """Return the bytes of a tensor's elements in C order."""
    if not tensor.numel():
        return b""
    # ``copy_`` applies strides and lazy conjugation
    in_order = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())
    return bytes(in_order.reshape(-1).view(torch.uint8).numpy())


def read_values(rows: Any, parts: Sequence[memoryview]) -> list[Any]:
    """Return the values of rows. Raises FormatError for invalid rows or parts."""
    values = list[Any]()
    left = iter(parts)
    try:
        for kind, *row in rows:
            if kind == "tensor":
                values.append(_tensor(row[0], row[1], next(left)))
            elif kind == "float":
                values.append(float.fromhex(row[0]))
            elif isinstance(row[0], (int, bool)) or row[0] is None:
                values.append(row[0])
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
            "a value in a message of a worker process is invalid:"
            f" {type(e).__name__}: {e}",
        ) from e
    return values


def _tensor(name: str, shape: list[int], data: memoryview) -> torch.Tensor:
    """Return a tensor of a dtype and a shape, with elements in C order."""
    tensor = torch.empty([int(size) for size in shape], dtype=DTYPES[name])
    if tensor.nbytes != len(data):
        raise ValueError(f"{len(data)} bytes do not fit a tensor of {name}{shape}")
    if tensor.numel():
        elements = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        tensor.reshape(-1).view(torch.uint8).copy_(elements)
    return tensor

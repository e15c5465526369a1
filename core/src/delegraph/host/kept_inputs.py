"""Checks that runtimes leave their inputs as they are.

These belong to the caller, or the host goes on computing with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

_KINDS = (torch.Tensor, torch.nn.Parameter)


def versions(inputs: Sequence[Any]) -> list[int]:
    """torch's count of writes for each tensor, which also counts writes to other views of the same memory.

    Writes by numpy or native code are not counted. Takes a quarter of a microsecond for each tensor.
    """
    return [v._version if isinstance(v, torch.Tensor) and not v.is_inference() else 0 for v in inputs]


class KeptInputs(NamedTuple):
    """Copies of a call's inputs, which tell whether the call wrote to them."""

    inputs: Sequence[Any]
    before: list[torch.Tensor | None]

    @classmethod
    def of(cls, inputs: Sequence[Any]) -> KeptInputs:
        """Copy the tensors. Those without elements in memory (sparse, meta) are not watched."""
        watched = (type(v) in _KINDS and v.layout is torch.strided and v.device.type != "meta" for v in inputs)
        return cls(inputs, [v.detach().clone() if w else None for v, w in zip(inputs, watched, strict=True)])

    def put_back(self) -> list[int]:
        """Restore inputs that were written; returns their positions."""
        pairs = [(k, v, b) for k, (v, b) in enumerate(zip(self.inputs, self.before, strict=True)) if b is not None]
        written = [(k, v, b) for k, v, b in pairs if not torch.equal(_bytes(v), _bytes(b))]
        for _, value, before in written:
            _fill(value, before)
        return [k for k, _, _ in written]


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The elements as bytes, so that NaN equals itself; without a copy if they lie in order."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    return plain.contiguous().reshape(-1).view(torch.uint8)


def _fill(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Write ``values`` into ``tensor``. Where an expanded tensor has many elements in one place, write it once."""
    once = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in tensor.stride())
    with torch.inference_mode():  # inference tensors can be written only in this mode
        tensor.detach()[once].copy_(values[once])

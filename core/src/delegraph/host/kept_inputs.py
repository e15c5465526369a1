"""Checks that runtimes do not write to their inputs, which belong to the caller or are still needed by the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

_KINDS = (torch.Tensor, torch.nn.Parameter)


def versions(inputs: Sequence[Any]) -> list[int]:
    """torch's count of writes to each tensor; 0 for other values and for inference tensors.

    Writes to other views of the same memory are counted, too; those by numpy or native code are not. Takes a quarter of
    a microsecond for each tensor.
    """
    return [v._version if isinstance(v, torch.Tensor) and not v.is_inference() else 0 for v in inputs]


class KeptInputs(NamedTuple):
    """The inputs of a call, and copies from before the call (None for an input that is not watched)."""

    inputs: Sequence[Any]
    before: list[torch.Tensor | None]

    @classmethod
    def of(cls, inputs: Sequence[Any]) -> KeptInputs:
        """Copy the tensors among ``inputs``, except those without plain memory: sparse, meta, and of other classes."""
        watched = (type(v) in _KINDS and v.layout is torch.strided and v.device.type != "meta" for v in inputs)
        return cls(inputs, [v.detach().clone() if w else None for v, w in zip(inputs, watched, strict=True)])

    def put_back(self) -> list[int]:
        """Restore the inputs that were written; returns their positions."""
        inputs = enumerate(zip(self.inputs, self.before, strict=True))
        watched = [(position, value, before) for position, (value, before) in inputs if before is not None]
        written = [entry for entry in watched if not torch.equal(_bytes(entry[1]), _bytes(entry[2]))]
        for _, value, before in written:  # all are compared first: two inputs may share memory
            _fill(value, before)
        return [position for position, _, _ in written]


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The elements as bytes, so that a NaN equals itself; without a copy if they are contiguous."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    return plain.contiguous().reshape(-1).view(torch.uint8)


def _fill(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Copy ``values`` into ``tensor``. Elements of an expanded tensor share memory, which is written once."""
    # along a dimension of stride 0 all elements are one: only the first is written
    once = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in tensor.stride())
    with torch.inference_mode():  # inference tensors can be written only in this mode
        tensor.detach()[once].copy_(values[once])

"""Do runtimes leave their inputs as they are? These are the caller's tensors, and those that the host computes with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

_KINDS = (torch.Tensor, torch.nn.Parameter)


def versions(inputs: Sequence[Any]) -> list[int]:
    """What torch counts for each tensor with every write, also with one to another view of the same memory.

    What numpy or native code writes is not counted. A quarter of a microsecond for each tensor.
    """
    return [v._version if isinstance(v, torch.Tensor) and not v.is_inference() else 0 for v in inputs]


class KeptInputs(NamedTuple):
    """Copies of a call's inputs, which tell whether it wrote them."""

    inputs: Sequence[Any]
    before: list[torch.Tensor | None]

    @classmethod
    def of(cls, inputs: Sequence[Any]) -> KeptInputs:
        """Copy the tensors; those without elements in memory (sparse, meta) are not watched."""
        watched = (type(v) in _KINDS and v.layout is torch.strided and v.device.type != "meta" for v in inputs)
        return cls(inputs, [v.detach().clone() if w else None for v, w in zip(inputs, watched, strict=True)])

    def put_back(self) -> list[int]:
        """The positions of inputs that were written; they have their values again."""
        pairs = [(k, v, b) for k, (v, b) in enumerate(zip(self.inputs, self.before, strict=True)) if b is not None]
        written = [(k, v, b) for k, v, b in pairs if not torch.equal(_bytes(v), _bytes(b))]
        for _, value, before in written:
            _fill(value, before)
        return [k for k, _, _ in written]


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The elements' bits, so that NaN is the same as itself; without a copy where they lie in order."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    return plain.contiguous().reshape(-1).view(torch.uint8)


def _fill(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Write the values, once where an expanded tensor has many elements in one place."""
    once = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in tensor.stride())
    with torch.inference_mode():  # in which tensors that were made in it may be written as well
        tensor.detach()[once].copy_(values[once])

"""Finds writes to the inputs of a call, and restores the inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from .tensor_bytes import is_dense


def count_writes(inputs: Sequence[Any]) -> list[int]:
    """Return torch's count of the writes to each of ``inputs``.

    It is 0 for inference tensors and for values that are no tensors. Writes to other
    views of the same memory are counted; writes by numpy or native code are not.
    """
    return [
        v._version if isinstance(v, torch.Tensor) and not v.is_inference() else 0
        for v in inputs
    ]


class KeptInputs(NamedTuple):
    """The inputs of a call, and copies from before the call.

    ``copies``: position of an input -> its copy. Only dense tensors have one: sparse,
    quantized and meta tensors, and subclasses, have no plain memory.
    """

    inputs: Sequence[Any]
    copies: Mapping[int, torch.Tensor]

    @classmethod
    def of(cls, inputs: Sequence[Any]) -> KeptInputs:
        """Copy the tensors among ``inputs``."""
        copies = {
            position: value.detach().clone()
            for position, value in enumerate(inputs)
            if is_dense(value)
        }
        return cls(inputs, copies)

    def put_back(self) -> list[int]:
        """Restore the inputs that were written; return their positions."""
        # compare all before restoring one: inputs may share memory
        written = [
            position
            for position, copy in self.copies.items()
            if not torch.equal(_bytes(self.inputs[position]), _bytes(copy))
        ]
        for position in written:
            _fill(self.inputs[position], self.copies[position])
        return written


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements as bytes, in which a NaN equals itself."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    contiguous = plain.contiguous()
    # a contiguous tensor of one element may have any stride, which ``view`` refuses
    return contiguous.as_strided((contiguous.numel(),), (1,)).view(torch.uint8)


def _fill(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Copy ``values`` into ``tensor``, which may be expanded."""
    # along a dimension of stride 0, all elements share one place in memory: write it
    # once
    once = tuple(
        slice(0, 1) if stride == 0 else slice(None) for stride in tensor.stride()
    )
    with torch.inference_mode():  # inference tensors can be written only in this mode
        tensor.detach()[once].copy_(values[once])

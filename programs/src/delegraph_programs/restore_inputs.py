"""Finds writes to the inputs of a call, and restores the inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

_KINDS = (torch.Tensor, torch.nn.Parameter)


def count_writes(inputs: Sequence[Any]) -> list[int]:
    """Return torch's count of writes to each tensor; 0 for other values and for
    inference tensors.

    Writes to other views of the same memory are counted, too; those by numpy or native
    code are not. Takes a quarter of a microsecond for each tensor.
    """
    return [
        v._version if isinstance(v, torch.Tensor) and not v.is_inference() else 0
        for v in inputs
    ]


class KeptInputs(NamedTuple):
    """The inputs of a call, and copies from before the call.

    ``copies``: position of an input -> its copy. Sparse, quantized and meta tensors,
    and those of other classes, have none, because they have no plain memory.
    """

    inputs: Sequence[Any]
    copies: Mapping[int, torch.Tensor]

    @classmethod
    def of(cls, inputs: Sequence[Any]) -> KeptInputs:
        """Copy the tensors among ``inputs``."""
        return cls(
            inputs,
            {
                position: value.detach().clone()
                for position, value in enumerate(inputs)
                if type(value) in _KINDS
                and not value.is_quantized
                and value.layout is torch.strided
                and value.device.type != "meta"
            },
        )

    def put_back(self) -> list[int]:
        """Restore the inputs that were written; returns their positions."""
        # all are compared first: two inputs may share memory
        written = [
            position
            for position, copy in self.copies.items()
            if not torch.equal(_bytes(self.inputs[position]), _bytes(copy))
        ]
        for position in written:
            _fill(self.inputs[position], self.copies[position])
        return written


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements as bytes, so that a NaN equals itself; without a copy if they
    are contiguous.
    """
    plain = tensor.detach().resolve_conj().resolve_neg()
    contiguous = plain.contiguous()
    # a contiguous tensor of one element may have any stride, which ``view`` refuses
    return contiguous.as_strided((contiguous.numel(),), (1,)).view(torch.uint8)


def _fill(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Copy ``values`` into ``tensor``. Elements of an expanded tensor share memory,
    which is written once.
    """
    # along a dimension of stride 0 all elements are one: only the first is written
    once = tuple(
        slice(0, 1) if stride == 0 else slice(None) for stride in tensor.stride()
    )
    with torch.inference_mode():  # inference tensors can be written only in this mode
        tensor.detach()[once].copy_(values[once])

"""Tensors of a program on this host: views of planned memory, or of the file's bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from delegraph.errors import FormatError, InputError

from ..program.scalar_types import TORCH_NAMES, ScalarType
from ..program.tables import Dynamism, Tensor
from ..serialize.check import nbytes


@dataclass(eq=False)
class HostTensor:
    """A tensor value: what the file says of it, its memory if it has any, and what it
    is now.
    """

    table: Tensor
    memory: torch.Tensor | None = None
    now: torch.Tensor | None = None

    @property
    def dtype(self) -> torch.dtype:
        return dtype_of(self.table)

    def read(self) -> torch.Tensor:
        """The current content. Raises FormatError if nothing was ever written,
        InputError for a caller's buffer.
        """
        if self.now is None:
            if self.table.allocation is None and self.table.extra is not None:
                name = self.table.extra.fully_qualified_name
                text = (
                    f"the buffer {name!r} has no memory in the file: its callers"
                    " bring it"
                )
                hint = (
                    "a file that is saved without alloc_mutable_buffers=False runs here"
                )
                raise InputError("input-invalid", text, hint=hint)
            raise FormatError(
                "format-invalid",
                "damaged .pte file: a tensor is read before it is written",
            )
        return self.now

    def write(self, value: torch.Tensor) -> None:
        """Store a content in the tensor's memory. Raises FormatError if it does not fit
        there.
        """
        self.expect(value, "damaged .pte file: a tensor is computed")
        if self.now is None or self.now.shape != value.shape:
            if self.memory is None:  # what the caller gets has no place in the plan
                self.memory = reserve(nbytes(self.table))
            self.now = arrange(
                self.memory, self.dtype, value.shape, self.table.dim_order
            )
        self.now.copy_(value)

    def expect(self, value: torch.Tensor, what: str) -> None:
        """Raise FormatError unless a content has the type and the sizes that the file
        says.
        """
        if value.dtype != self.dtype or not self.fits(value.shape):
            text = (
                f"{what} as {value.dtype} of sizes {list(value.shape)}; the file says"
                f" {self}"
            )
            raise FormatError("format-invalid", text)

    def expect_input(self, value: object, name: str) -> torch.Tensor:
        """The caller's tensor for an input. Raises InputError for anything else."""
        if isinstance(value, torch.Tensor) and value.is_nested:  # it has no sizes
            given = "a nested tensor"
        elif isinstance(value, torch.Tensor):
            here = value.device.type == "cpu" and value.layout is torch.strided
            if here and value.dtype == self.dtype and self.fits(value.shape):
                return value
            layout = (
                ""
                if value.layout is torch.strided
                else f"{str(value.layout).removeprefix('torch.')} "
            )
            where = "" if value.device.type == "cpu" else f" on {value.device}"
            given = f"{layout}{value.dtype} of sizes {list(value.shape)}{where}"
        else:
            given = (
                repr(value)
                if isinstance(value, (int, float, str, type(None)))
                else f"of type {type(value).__name__}"
            )
        raise InputError(
            "input-invalid", f"input {name} is to be {self}; it is {given}"
        )

    def fits(self, sizes: Sequence[int]) -> bool:
        """Whether sizes are those of the file, or within them where it has bounds."""
        if len(sizes) != len(self.table.sizes):
            return False
        if self.table.dynamism == Dynamism.STATIC:
            return tuple(sizes) == self.table.sizes
        return all(s <= bound for s, bound in zip(sizes, self.table.sizes, strict=True))

    def __str__(self) -> str:
        upper = "" if self.table.dynamism == Dynamism.STATIC else " at most"
        return f"{self.dtype} of sizes{upper} {list(self.table.sizes)}"


def reserve(size: int) -> torch.Tensor:
    """Bytes that are zero. The system gives pages of a large memory when they are first
    written.
    """
    import numpy as np

    return (
        torch.from_numpy(np.zeros(size, np.uint8))
        if size
        else torch.empty(0, dtype=torch.uint8)
    )


def dtype_of(table: Tensor) -> torch.dtype:
    """The element type of a tensor; the file was checked to have one that PyTorch
    knows.
    """
    dtype: torch.dtype = getattr(torch, TORCH_NAMES[ScalarType(table.scalar_type)])
    return dtype


def arrange(
    memory: torch.Tensor, dtype: torch.dtype, sizes: Sequence[int], order: Sequence[int]
) -> torch.Tensor:
    """The first bytes of ``memory`` as a tensor whose dimensions lie in ``order``
    there, the outermost first.
    """
    count = math.prod(sizes)
    flat = memory[: count * dtype.itemsize].view(dtype)
    strides = [1] * len(sizes)
    step = 1
    for dimension in reversed(order):
        strides[dimension] = step
        step *= max(1, sizes[dimension])
    return flat.as_strided(tuple(sizes), strides)

"""Represent tensors of a program that runs on this host.

A tensor is a view of planned memory or of the file's bytes, or it is the caller's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from delegraph.errors import FormatError, InputError

from ..program.pte_tables import Dynamism, Tensor
from ..program.scalar_types import TORCH_NAMES, ScalarType
from ..serialize.check import nbytes


@dataclass(eq=False)
class HostTensor:
    """A tensor: its record in the file, its memory if any, and its current content.

    ``content`` is a view of ``memory``, or a tensor of the caller or of the file. It is
    None before the tensor is written.
    """

    table: Tensor
    memory: torch.Tensor | None = None
    content: torch.Tensor | None = None

    @property
    def dtype(self) -> torch.dtype:
        """The element type in the file."""
        return dtype_of(self.table)

    def read(self) -> torch.Tensor:
        """Return the current content.

        Raises FormatError if nothing was written yet. Raises InputError for a buffer that
        the caller has to provide.
        """
        if self.content is None:
            if self.table.allocation is None and self.table.extra is not None:
                name = self.table.extra.fully_qualified_name
                text = (
                    f"the buffer {name!r} has no memory in the file, and this runtime"
                    " cannot provide it"
                )
                hint = "save the program without alloc_mutable_buffers=False"
                raise InputError("input-invalid", text, hint=hint)
            raise FormatError(
                "format-invalid",
                "damaged .pte file: a tensor is read before it is written",
            )
        return self.content

    def write(self, value: torch.Tensor) -> None:
        """Copy ``value`` to the tensor's memory; FormatError if it does not fit."""
        self.expect(value, "damaged .pte file: a tensor is computed")
        if self.content is None or self.content.shape != value.shape:
            if self.memory is None:
                # an output without planned memory: ExecuTorch's caller provides it
                self.memory = reserve(nbytes(self.table))
            self.content = arrange(
                self.memory, self.dtype, value.shape, self.table.dim_order
            )
        self.content.copy_(value)

    def expect(self, value: torch.Tensor, action: str) -> None:
        """Raise FormatError unless ``value`` has the type and sizes in the file.

        ``action`` begins the error text. Example: with "a tensor is computed", the text
        is "a tensor is computed as torch.float32 of sizes [2]; the file declares ...".
        """
        if value.dtype != self.dtype or not self.fits(value.shape):
            text = (
                f"{action} as {value.dtype} of sizes {list(value.shape)}; the file"
                f" declares {self}"
            )
            raise FormatError("format-invalid", text)

    def expect_input(self, value: object, name: str) -> torch.Tensor:
        """Return ``value`` if it fits this input; raise InputError otherwise.

        ``name`` is that of the input.
        """
        if isinstance(value, torch.Tensor) and value.is_nested:
            given = "a nested tensor"
        elif isinstance(value, torch.Tensor):
            is_strided = value.layout is torch.strided
            is_on_host = value.device.type == "cpu"
            is_plain = is_strided and is_on_host
            if is_plain and value.dtype == self.dtype and self.fits(value.shape):
                return value
            given = f"{value.dtype} of sizes {list(value.shape)}"
            if not is_strided:
                given = f"{str(value.layout).removeprefix('torch.')} {given}"
            if not is_on_host:
                given = f"{given} on {value.device}"
        elif isinstance(value, (int, float, str, type(None))):
            given = repr(value)
        else:
            given = f"of type {type(value).__name__}"
        raise InputError("input-invalid", f"input {name} must be {self}; it is {given}")

    def fits(self, sizes: Sequence[int]) -> bool:
        """Return whether sizes are those of the file, or within its upper bounds."""
        if len(sizes) != len(self.table.sizes):
            return False
        if self.table.dynamism == Dynamism.STATIC:
            return tuple(sizes) == self.table.sizes
        return all(s <= bound for s, bound in zip(sizes, self.table.sizes, strict=True))

    def __str__(self) -> str:
        upper = "" if self.table.dynamism == Dynamism.STATIC else " at most"
        return f"{self.dtype} of sizes{upper} {list(self.table.sizes)}"


def reserve(size: int) -> torch.Tensor:
    """Return a tensor of ``size`` zero bytes."""
    import numpy as np

    if size == 0:
        return torch.empty(0, dtype=torch.uint8)
    # unlike torch.zeros, numpy takes no memory for a page before it is written
    return torch.from_numpy(np.zeros(size, np.uint8))


def dtype_of(table: Tensor) -> torch.dtype:
    """Return the element type of a tensor that passed ``check_program``."""
    dtype: torch.dtype = getattr(torch, TORCH_NAMES[ScalarType(table.scalar_type)])
    return dtype


def arrange(
    memory: torch.Tensor, dtype: torch.dtype, sizes: Sequence[int], order: Sequence[int]
) -> torch.Tensor:
    """Return a tensor of these sizes that is a view of the first bytes of ``memory``.

    ``order`` lists the dimensions from the outermost to the innermost in memory.
    """
    count = math.prod(sizes)
    flat = memory[: count * dtype.itemsize].view(dtype)
    strides = [1] * len(sizes)
    step = 1
    for dim in reversed(order):
        strides[dim] = step
        step *= max(1, sizes[dim])
    return flat.as_strided(tuple(sizes), strides)

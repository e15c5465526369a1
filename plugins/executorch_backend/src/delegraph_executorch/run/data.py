"""The contents of a program's tensors: constants and initial states in its segments,
named ones in other files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from delegraph.errors import FormatError, InputError

from ..program.flat_tensor import TensorLayout
from ..program.tables import Location, SubsegmentOffsets, Tensor
from ..serialize.check import nbytes
from ..serialize.reader import Bytes, DataFile, ProgramFile


@dataclass(frozen=True)
class Data:
    """A program file, and the named data of files that were given with it."""

    file: ProgramFile
    external: Mapping[str, tuple[Bytes, TensorLayout | None]] = field(
        default_factory=dict
    )

    @staticmethod
    def of(file: ProgramFile, others: Sequence[DataFile]) -> Data:
        """Raises InputError if two files have data under one key."""
        external: dict[str, tuple[Bytes, TensorLayout | None]] = {}
        for other in others:
            for named in other.data.named_data:
                if named.key in external:
                    raise InputError(
                        "input-invalid",
                        f"two of the data files have data under the key {named.key!r}",
                    )
                external[named.key] = other.segments[named.segment_index], named.layout
        return Data(file, external)

    def content(self, tensor: Tensor) -> torch.Tensor:
        """The bytes of a constant or of an initial state, not copied. Nobody may write
        to them.
        """
        size = nbytes(tensor)
        content = (
            self._external(tensor) if is_external(tensor) else self._internal(tensor)
        )
        if len(content) < size:
            raise FormatError(
                "format-invalid",
                f"a tensor has {size} bytes, and its data {len(content)}",
            )
        return as_tensor(content[:size])

    def _internal(self, tensor: Tensor) -> Bytes:
        program = self.file.program
        index = tensor.data_buffer_idx
        if tensor.allocation is None and program.constant_buffer:
            return program.constant_buffer[index].storage
        number = 0 if tensor.extra is None else tensor.extra.mutable_data_segments_idx
        offsets = (
            program.constant_segment
            if tensor.allocation is None
            else program.mutable_data_segments[number]
        )
        offsets = offsets or SubsegmentOffsets()
        return self.file.segments[offsets.segment_index][offsets.offsets[index] :]

    def _external(self, tensor: Tensor) -> Bytes:
        assert tensor.extra is not None
        name = tensor.extra.fully_qualified_name
        if name not in self.external:
            text = f"the tensor {name!r} is in another file"
            raise InputError(
                "input-invalid",
                text,
                hint=(
                    "put the .ptd files that came with it beside it: model.pte,"
                    " model.weights.ptd"
                ),
            )
        return self.external[name][0]


def is_external(tensor: Tensor) -> bool:
    return tensor.extra is not None and tensor.extra.location == Location.EXTERNAL


def as_tensor(content: Bytes) -> torch.Tensor:
    """The bytes as a tensor, without a copy where they may be written. They are all of
    its storage.

    Kernels of torch that clone a tensor with its strides clone its storage, and refuse
    one that is no whole number of elements: a slice of a larger tensor would not do.
    """
    if not len(content):
        return torch.empty(0, dtype=torch.uint8)
    import numpy as np

    array = np.frombuffer(content, np.uint8)
    address: torch.Tensor = torch.from_numpy(
        array if array.flags.writeable else array.copy()
    )
    return address

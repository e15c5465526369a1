"""Find the contents of a program's tensors.

Constants and first values of states are in the program file. External tensors are in
data files, under their names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from delegraph.errors import FormatError, InputError

from ..program.flat_tensor import TensorLayout
from ..program.pte_tables import Location, SubsegmentOffsets, Tensor
from ..serialize.check import nbytes
from ..serialize.reader import Bytes, DataFile, ProgramFile


@dataclass(frozen=True)
class Data:
    """A program file, and the named data of its data files."""

    file: ProgramFile
    external: Mapping[str, tuple[Bytes, TensorLayout | None]] = field(
        default_factory=dict
    )

    @staticmethod
    def of(file: ProgramFile, others: Sequence[DataFile]) -> Data:
        """Return the data of a file.

        Raises InputError if two data files have the same key.
        """
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
        """Return the bytes of a constant, or of the first value of a state.

        Do not write to the result: it may share the memory of the loaded file.
        """
        size = nbytes(tensor)
        if is_external(tensor):
            content = self._external(tensor)
        else:
            content = self._internal(tensor)
        if len(content) < size:
            text = f"a tensor has {size} bytes, but its data only {len(content)}"
            raise FormatError("format-invalid", text)
        return as_tensor(content[:size])

    def _internal(self, tensor: Tensor) -> Bytes:
        """Return the bytes of the program file that begin with the tensor's data.

        Bytes of other tensors may follow.
        """
        program = self.file.program
        index = tensor.data_buffer_idx
        # old files have constants in the tables, not in a segment
        if tensor.allocation is None and program.constant_buffer:
            return program.constant_buffer[index].storage
        if tensor.allocation is None:
            offsets = program.constant_segment or SubsegmentOffsets()
        else:
            # the first value of a state
            extra = tensor.extra
            number = 0 if extra is None else extra.mutable_data_segments_idx
            offsets = program.mutable_data_segments[number]
        return self.file.segments[offsets.segment_index][offsets.offsets[index] :]

    def _external(self, tensor: Tensor) -> Bytes:
        """Return the bytes of a tensor in a data file; InputError without this file."""
        assert tensor.extra is not None
        name = tensor.extra.fully_qualified_name
        if name not in self.external:
            text = f"the tensor {name!r} is in another file"
            hint = (
                "put the program's .ptd files into its folder: model.pte and"
                " model.weights.ptd"
            )
            raise InputError("input-invalid", text, hint=hint)
        return self.external[name][0]


def is_external(tensor: Tensor) -> bool:
    """Return whether the content of a tensor is in a data file."""
    return tensor.extra is not None and tensor.extra.location == Location.EXTERNAL


def as_tensor(content: Bytes) -> torch.Tensor:
    """Return the bytes as a tensor, without a copy if they are writable.

    The tensor's storage has these bytes only. Otherwise torch could not clone views of
    it: torch clones the whole storage, which must be a whole number of elements.
    """
    if not len(content):
        return torch.empty(0, dtype=torch.uint8)
    import numpy as np

    array = np.frombuffer(content, np.uint8)
    if not array.flags.writeable:
        array = array.copy()
    tensor: torch.Tensor = torch.from_numpy(array)
    return tensor

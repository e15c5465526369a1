"""Choose the memory of buffers that methods write, for programs of several methods.

Such buffers are called states. All of them are in one memory, number ``MEMORY``, which
has nothing else. ExecuTorch's Python bindings give all methods the same memories, so
one method overwrites what another one left in them. Therefore each state has an offset
of its own. Only methods that share a buffer have it at the same offset.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from delegraph.delegates import LoweredBackendModule, delegate_calls
from delegraph.errors import OptionError, Unsupported
from delegraph.formats import ProgramContents
from delegraph_programs import constant_tensor as tensor_of
from delegraph_programs import placeholders, written_targets
from delegraph_programs.exported_program import CONSTANT_KINDS, trained_targets
from torch.export import ExportedProgram

from ..program.shared_memory import MEMORY


@dataclass(frozen=True)
class StateOffsets:
    """The offsets of states in their memory.

    ``offsets`` maps (method, buffer name) to the buffer's first byte. ``size`` is the
    memory's size in bytes. ``shared``: whether methods share their buffers.
    """

    offsets: Mapping[tuple[str, str], int] = field(default_factory=dict)
    size: int = 0
    shared: bool = False

    def are_shared_by(self, method: str) -> bool:
        """Return whether a method has buffers that others read or write."""
        return self.shared and any(name == method for name, _ in self.offsets)


def separate_states(program: ProgramContents, alignment: int) -> StateOffsets:
    """Return a separate offset for each buffer that a method writes or trains.

    A program of one method needs none: the memory plan of the method is enough.
    """
    programs = {name: program.exported_program(name) for name in program.methods}
    if len(programs) == 1:
        return StateOffsets()
    offsets = {}
    size = 0
    for method, each in programs.items():
        kept = written_targets(each).union(trained_targets(each))
        for name, tensor in _tensors(each):
            if name in kept:
                offsets[method, name] = size
                size += tensor.nbytes + -tensor.nbytes % alignment
    return StateOffsets(offsets, size)


class _SharedBuffer(NamedTuple):
    """A buffer as the first method has it that uses it."""

    method: str
    tensor: torch.Tensor
    offset: int


def share_states(program: ProgramContents, alignment: int) -> StateOffsets:
    """Return one offset for each buffer that a method writes.

    All methods that write or read the buffer have it there. Raises Unsupported if
    buffers of one name differ, or if a delegate contains such a buffer.
    """
    programs = {name: program.exported_program(name) for name in program.methods}
    writers = {
        name: method
        for method, each in reversed(programs.items())
        for name in written_targets(each)
    }
    shared: dict[str, _SharedBuffer] = {}
    offsets = {}
    size = 0
    for method, each in programs.items():
        _check_delegates(method, each, writers)
        for name, tensor in _tensors(each):
            if name not in writers:
                continue
            if name not in shared:
                shared[name] = _SharedBuffer(method, tensor, size)
                size += tensor.nbytes + -tensor.nbytes % alignment
            first = shared[name]
            offsets[method, name] = first.offset
            if not _is_same(tensor, first.tensor):
                text = (
                    f"methods {first.method} and {method} cannot share the buffer {name}:"
                    " its sizes, type or first values differ"
                )
                hint = "export both methods from one module, or rename one buffer"
                raise Unsupported("unsupported", text, hint=hint)
    return StateOffsets(offsets, size, shared=True)


def _tensors(program: ExportedProgram) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the name and value of each parameter and buffer in use, unless empty."""
    written = written_targets(program)
    for node, spec in placeholders(program):
        is_used = bool(node.users) or spec.target in written
        if spec.kind in CONSTANT_KINDS and is_used:
            tensor = tensor_of(program, spec)
            if tensor.nbytes:
                yield str(spec.target), tensor


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two buffers have the same type, sizes and bytes."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return one is other or torch.equal(_bytes_of(one), _bytes_of(other))


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes: unlike values, equal bytes are equal even for NaN."""
    return tensor.detach().reshape(-1).view(torch.uint8)


def _check_delegates(
    method: str, program: ExportedProgram, writers: Mapping[str, str]
) -> None:
    """Raise Unsupported if a delegate contains a buffer that a method writes.

    ``writers`` maps each written buffer to a method that writes it.
    """
    module: LoweredBackendModule
    for _, module in delegate_calls(program):
        held = {
            str(s.target)
            for s in module.original_module.graph_signature.input_specs
            if s.kind in CONSTANT_KINDS
        }
        for name in sorted(held & writers.keys()):
            text = (
                f"a {module.backend_id} delegate of method {method} contains the"
                f" buffer {name}, so it does not see the values that method"
                f" {writers[name]} writes"
            )
            hint = (
                "lower both methods in one call: the buffers that they share then stay"
                " outside of delegates"
            )
            raise Unsupported("unsupported", text, hint=hint)


def check_default_memories(memory_of: object) -> None:
    """Raise OptionError if the user chooses memories: one may be number ``MEMORY``."""
    if memory_of is not None:
        text = (
            "share_mutable_buffers and memory_of exclude each other: shared buffers"
            f" need memory {MEMORY} for themselves"
        )
        raise OptionError("option-invalid", text, hint="leave out one of them")

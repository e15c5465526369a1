"""Where written buffers lie in a program of several methods: in a memory of their own,
each in a place of its own.

A runtime may give all methods of a program the same memories, as ExecuTorch's bindings
for Python do: what one method leaves in the memory of its results is lost when another
one runs. Methods that are to share a buffer find it in one place; for all others the
places are apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

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
class StatePlaces:
    """``offsets``: (method, name of a buffer) -> its first byte in the memory of
    states, which has ``size`` bytes.

    ``shared``: whether methods find each other's values there.
    """

    offsets: Mapping[tuple[str, str], int] = field(default_factory=dict)
    size: int = 0
    shared: bool = False

    def are_shared_by(self, method: str) -> bool:
        """Whether a method has buffers that others read or write."""
        return self.shared and any(name == method for name, _ in self.offsets)


def place_states(program: ProgramContents, alignment: int) -> StatePlaces:
    """Places of the buffers that methods write or train, apart for each method; none
    for a program of one method.
    """
    programs = {name: program.exported_program(name) for name in program.methods}
    if len(programs) == 1:
        return StatePlaces()
    offsets = {}
    size = 0
    for method, each in programs.items():
        kept = written_targets(each).union(trained_targets(each))
        for name, tensor in _tensors(each):
            if name in kept:
                offsets[method, name] = size
                size += tensor.nbytes + -tensor.nbytes % alignment
    return StatePlaces(offsets, size)


def share_states(program: ProgramContents, alignment: int) -> StatePlaces:
    """One place for each buffer that a method writes, also in methods that only read
    it.

    Raises Unsupported where buffers of one name are not the same, and where a delegate
    has such a buffer in itself.
    """
    programs = {name: program.exported_program(name) for name in program.methods}
    writers = {
        name: method
        for method, each in reversed(programs.items())
        for name in written_targets(each)
    }
    first: dict[str, tuple[str, torch.Tensor, int]] = {}
    offsets = {}
    size = 0
    for method, each in programs.items():
        _expect_none_in_delegates(method, each, writers)
        for name, tensor in _tensors(each):
            if name not in writers:
                continue
            if name not in first:
                first[name] = method, tensor, size
                size += tensor.nbytes + -tensor.nbytes % alignment
            owner, known, offsets[method, name] = first[name]
            if not _is_same(tensor, known):
                text = (
                    f"the methods {owner} and {method} each have a buffer {name}, of"
                    " other sizes, type or values"
                )
                raise Unsupported(
                    "unsupported",
                    text,
                    hint="export both of one module, or name one of them otherwise",
                )
    return StatePlaces(offsets, size, shared=True)


def _tensors(program: ExportedProgram) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and value of each parameter and buffer that takes memory and is read or
    written.
    """
    written = written_targets(program)
    for node, spec in placeholders(program):
        if spec.kind in CONSTANT_KINDS and (node.users or spec.target in written):
            if (tensor := tensor_of(program, spec)).nbytes:
                yield str(spec.target), tensor


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two buffers have the same type, sizes and bytes."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return one is other or torch.equal(
        *(t.detach().reshape(-1).view(torch.uint8) for t in (one, other))
    )


def _expect_none_in_delegates(
    method: str, program: ExportedProgram, writers: Mapping[str, str]
) -> None:
    """Raise Unsupported for a buffer in ``writers`` that a delegate has as a constant,
    or keeps as its own state.
    """
    modules: list[LoweredBackendModule] = [
        module for _, module in delegate_calls(program)
    ]
    for module in modules:
        held = {
            str(s.target)
            for s in module.original_module.graph_signature.input_specs
            if s.kind in CONSTANT_KINDS
        }
        for name in sorted(held & writers.keys()):
            text = (
                f"a delegate of {module.backend_id} in method {method} has the buffer"
                f" {name} in itself, "
            )
            text += f"and does not see what method {writers[name]} writes"
            hint = (
                "lower both methods in one call: a buffer that they share then stays"
                " outside of delegates"
            )
            raise Unsupported("unsupported", text, hint=hint)


def expect_default_memories(memory_of: object) -> None:
    """Raise OptionError for memories of the caller's, which the memory of shared
    buffers would be one of.
    """
    if memory_of is not None:
        text = (
            f"share_mutable_buffers puts buffers into memory {MEMORY}, and memory_of"
            " may put other tensors there"
        )
        raise OptionError("option-invalid", text, hint="leave out one of them")

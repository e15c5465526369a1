"""A lowered program as a program file: methods, then the segments that they refer to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from delegraph.backend import Blob, NamedDataStoreOutput
from torch.export import ExportedProgram

from ..kernels import KernelSet, kernel_set
from ..program.tables import BlobLocation, ExecutionPlan, NamedData, Program, SubsegmentOffsets
from ..serialize.file import Segment, SegmentedFile, program_file
from .context import Context
from .method import DebugHandles, emit_method
from .pool import Concatenation, Pool

TENSOR_ALIGNMENT = 16
"""Bytes that every tensor in a segment is aligned to."""


@dataclass(frozen=True)
class EmitOptions:
    """``kernels``: the kernels that the device's runtime has, a path of a JSON list of them, None for the stock ones.

    ``plan_inputs`` and ``plan_outputs``: whether the method has memory for its inputs and outputs, or the caller.
    """

    kernels: KernelSet | str | Path | None = None
    plan_inputs: bool = True
    plan_outputs: bool = True


@dataclass(frozen=True)
class EmittedProgram:
    """The file, and what it leaves out: debug handles by method."""

    file: SegmentedFile
    program: Program
    debug_handles: dict[str, DebugHandles]


def emit_program(
    methods: Mapping[str, ExportedProgram], named_data: NamedDataStoreOutput, options: EmitOptions | None = None
) -> EmittedProgram:
    """Emit all methods. Raises Unsupported, with the operator and the user's line, for what no file can hold."""
    options = options or EmitOptions()
    context = Context(kernel_set(options.kernels), options.plan_inputs, options.plan_outputs)
    emitted = {name: emit_method(name, program, context) for name, program in methods.items()}
    segments = _Segments()
    constants = segments.add_tensors(context.constants)
    states = segments.add_tensors(context.states)
    blobs = [segments.add(content) for content in context.blobs.contents]
    program = Program(
        plans=tuple(_place_blobs(plan, blobs) for plan, _ in emitted.values()),
        constant_segment=constants or SubsegmentOffsets(0, (0,)),
        mutable_data_segments=(states,) if states else (),
        named_data=segments.add_named_data(named_data),
    )
    file = program_file(program, segments.listed)
    return EmittedProgram(file, program, {name: handles for name, (_, handles) in emitted.items()})


class _Segments:
    """The segments of a file, in their order."""

    def __init__(self) -> None:
        self.listed: list[Segment] = []

    def add(self, content: bytes | Blob, alignment: int = 1) -> int:
        self.listed.append(Segment(content, alignment))
        return len(self.listed) - 1

    def add_tensors(self, pool: Pool) -> SubsegmentOffsets | None:
        """One segment of all tensors of a pool; None if there are none."""
        if not pool.contents:
            return None
        joined = Concatenation(pool.contents, TENSOR_ALIGNMENT)
        return SubsegmentOffsets(self.add(joined), (0, *joined.offsets))

    def add_named_data(self, data: NamedDataStoreOutput) -> tuple[NamedData, ...]:
        """A segment for each buffer that a key names, in the order of the keys."""
        alignment: dict[int, int] = {}
        for entry in data.pte_data.values():
            alignment[entry.buffer_index] = max(alignment.get(entry.buffer_index, 1), entry.alignment)
        places = {index: self.add(data.buffers[index], a) for index, a in alignment.items()}
        return tuple(NamedData(key, places[entry.buffer_index]) for key, entry in data.pte_data.items())


def _place_blobs(plan: ExecutionPlan, segments: list[int]) -> ExecutionPlan:
    """Delegates name their blob's position in the pool; from now on they name its segment."""
    delegates = []
    for delegate in plan.delegates:
        assert delegate.processed is not None and delegate.processed.location == BlobLocation.SEGMENT
        processed = replace(delegate.processed, index=segments[delegate.processed.index])
        delegates.append(replace(delegate, processed=processed))
    return replace(plan, delegates=tuple(delegates))

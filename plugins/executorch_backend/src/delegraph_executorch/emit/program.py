"""A lowered program as files: its methods, the segments that they refer to, and data files beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from delegraph.backend import Blob, DataEntry, NamedDataStoreOutput
from delegraph.errors import OptionError
from delegraph.formats import ProgramContents
from torch.fx import Node

from ..kernels import KernelSet, kernel_set
from ..memory import ALIGNMENT
from ..program.flat_tensor import FlatTensor, NamedTensor, TensorLayout
from ..program.tables import BlobLocation, ExecutionPlan, NamedData, Program, SubsegmentOffsets
from ..serialize.file import Segment, SegmentedFile, data_file, program_file
from .context import Context
from .dispatch import emitter_of
from .kernel_calls import CODES
from .method import DebugHandles, emit_constant_method, emit_method, training_methods
from .pool import Concatenation, Pool

TENSOR_ALIGNMENT = 16
"""Bytes that every tensor in a segment is aligned to."""


@dataclass(frozen=True)
class EmitOptions:
    """``kernels``: the kernels that the device's runtime has, a path of a JSON list of them, None for the stock ones.

    ``plan_inputs`` and ``plan_outputs``: whether the method has memory for its inputs and outputs, or the caller.
    ``memory_of``: function from a node to the memory of its results, from 1, for devices with several.
    ``alignment``: bytes that tensors in planned memory are aligned to, a power of two.
    ``stack_traces``: whether the file has the user's line of each instruction, as runtimes and ``inspect`` show it.
    ``external_constants``: name of a data file that gets parameters and constant buffers, by their names in the model.
    """

    kernels: KernelSet | str | Path | None = None
    plan_inputs: bool = True
    plan_outputs: bool = True
    external_constants: str = ""
    memory_of: Callable[[Node], int] | None = None
    alignment: int = ALIGNMENT
    stack_traces: bool = False

    def __post_init__(self) -> None:
        for name in ("plan_inputs", "plan_outputs", "stack_traces"):
            if not isinstance(getattr(self, name), bool):
                raise OptionError("option-invalid", f"{name} is True or False, not {getattr(self, name)!r}")
        if type(self.alignment) is not int or self.alignment < 1 or self.alignment & (self.alignment - 1):
            raise OptionError("option-invalid", f"alignment is a power of two, not {self.alignment!r}")
        name = self.external_constants
        if not isinstance(name, str) or any(c in name for c in "/\\\0"):
            raise OptionError("option-invalid", f"external_constants is the name of a file, not {name!r}")


@dataclass(frozen=True)
class EmittedProgram:
    """The program's file, data files by name, and what both leave out: debug handles by method."""

    file: SegmentedFile
    data_files: dict[str, SegmentedFile]
    program: Program
    debug_handles: dict[str, DebugHandles]


def emit_program(program: ProgramContents, options: EmitOptions | None = None) -> EmittedProgram:
    """Emit all methods. Raises Unsupported, with the operator and the user's line, for what no file can hold."""
    options = options or EmitOptions()
    kernels = kernel_set(options.kernels)
    context = Context(
        kernels,
        emitter_of,
        options.plan_inputs,
        options.plan_outputs,
        options.external_constants,
        memory_of=options.memory_of or (lambda node: 1),
        alignment=options.alignment,
        stack_traces=options.stack_traces,
    )
    emitted = {name: _emit(program, name, context) for name in program.methods}
    training = {k: v for m in program.methods for k, v in training_methods(m, program.exported_program(m)).items()}
    values = {**program.constant_methods, **training}
    constant = [emit_constant_method(name, value, context) for name, value in values.items()]
    segments = _Segments()
    constants, states = segments.add_tensors(context.constants), segments.add_tensors(context.states)
    blobs = [segments.add(content) for content in context.blobs.contents]
    tables = Program(
        plans=tuple(_place_blobs(plan, blobs) for plan in (*(plan for plan, _ in emitted.values()), *constant)),
        constant_segment=constants or SubsegmentOffsets(0, (0,)),
        mutable_data_segments=(states,) if states else (),
        named_data=segments.add_named_data(program.named_data),
    )
    context.external_data.merge_named_data_store(_external_of(program.named_data))
    return EmittedProgram(
        program_file(tables, segments.listed),
        _data_files(context.external_data.get_named_data_store_output()),
        tables,
        {name: handles for name, (_, handles) in emitted.items()},
    )


def _emit(program: ProgramContents, name: str, context: Context) -> tuple[ExecutionPlan, DebugHandles]:
    delegates = [d for d in program.delegates if d.method == name]
    return emit_method(name, program.exported_program(name), delegates, context)


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

    def add_buffers(self, entries: Mapping[str, DataEntry], buffers: list[bytes | Blob]) -> dict[str, int]:
        """A segment for each buffer that a key names, in the order of the keys; key -> segment."""
        alignment: dict[int, int] = {}
        for entry in entries.values():
            alignment[entry.buffer_index] = max(alignment.get(entry.buffer_index, 1), entry.alignment)
        places = {index: self.add(buffers[index], a) for index, a in alignment.items()}
        return {key: places[entry.buffer_index] for key, entry in entries.items()}

    def add_named_data(self, data: NamedDataStoreOutput) -> tuple[NamedData, ...]:
        return tuple(NamedData(key, segment) for key, segment in self.add_buffers(data.pte_data, data.buffers).items())


def _external_of(data: NamedDataStoreOutput) -> NamedDataStoreOutput:
    return NamedDataStoreOutput(data.buffers, {}, data.external_data)


def _data_files(data: NamedDataStoreOutput) -> dict[str, SegmentedFile]:
    files = {}
    for tag, entries in data.external_data.items():
        segments = _Segments()
        places = segments.add_buffers(entries, data.buffers)
        named = tuple(NamedTensor(key, places[key], _layout(entry)) for key, entry in entries.items())
        files[tag] = data_file(FlatTensor(named_data=named), segments.listed)
    return files


def _layout(entry: DataEntry) -> TensorLayout | None:
    layout = entry.tensor_layout
    if layout is None:
        return None
    dtype: torch.dtype = layout.dtype
    return TensorLayout(CODES[dtype], tuple(layout.sizes), tuple(range(len(layout.sizes))))


def _place_blobs(plan: ExecutionPlan, segments: list[int]) -> ExecutionPlan:
    """Delegates name their blob's position in the pool; from now on they name its segment."""
    delegates = []
    for delegate in plan.delegates:
        assert delegate.processed is not None and delegate.processed.location == BlobLocation.SEGMENT
        processed = replace(delegate.processed, index=segments[delegate.processed.index])
        delegates.append(replace(delegate, processed=processed))
    return replace(plan, delegates=tuple(delegates))

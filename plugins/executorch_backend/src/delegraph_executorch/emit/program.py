"""A lowered program as files: its methods, the segments that they refer to, and data
files beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from delegraph.backend import Blob, DataEntry, NamedDataStoreOutput
from delegraph.errors import OptionError
from delegraph.formats import ProgramContents
from delegraph_programs import copy_program, erase, find_checks
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from ..kernels import KernelSet, kernel_set
from ..memory import ALIGNMENT
from ..program.conventions import without_conventions
from ..program.flat_tensor import FlatTensor, NamedTensor, TensorLayout
from ..program.tables import (
    BlobLocation,
    ExecutionPlan,
    NamedData,
    Program,
    SubsegmentOffsets,
)
from ..serialize.file import Part, Segment, SegmentedFile, data_file, program_file
from .context import Context
from .dispatch import emitter_of
from .kernel_calls import CODES
from .method import DebugHandles, emit_constant_method, emit_method, training_methods
from .pool import Concatenation, Pool
from .states import StatePlaces, expect_default_memories, place_states, share_states
from .tied_weights import use_tied_weights

EXTERNAL_CONSTANTS = "_default_external_constant"
"""The data file of ``external_constants=True``, called as ExecuTorch calls it."""


_SWITCHES = (
    "stack_traces",
    "external_mutable_weights",
    "alloc_mutable_buffers",
    "emit_mutable_buffer_names",
    "enable_non_cpu_memory_planning",
    "share_mutable_buffers",
)
_BY_METHOD = (
    "plan_inputs",
    "plan_outputs",
    "skip_h2d_for_method_inputs",
    "skip_d2h_for_method_outputs",
)


@dataclass(frozen=True)
class EmitOptions:
    """``kernels``: the kernels that the device's runtime has, a path of a JSON list of
    them, None for the stock ones.

    ``plan_inputs`` and ``plan_outputs``: whether the method has memory for its inputs
    and outputs, or the caller; a mapping says it by method, and methods that it leaves
    out have memory. ``memory_of``: function from a node to the memory of its results,
    from 1, for devices with several. ``alignment``: bytes that tensors in planned
    memory are aligned to, a power of two. ``stack_traces``: whether the file has the
    user's lines of each instruction, as runtimes and ``inspect`` show them.
    ``external_constants``: which parameters, constant buffers and tensor attributes go
    to data files, by their names in the model: all to one of this name (True: of
    ExecuTorch's name), or each to the one that a function of its placeholder names,
    None for the program's own file. What export lifted out of the code stays in that.
    ``external_mutable_weights``: the same, for the parameters that the program returns
    gradients of. ``alloc_mutable_buffers``: whether the method has memory for the
    buffers that it writes. Without, the caller brings it, with what is in it at the
    start, and finds the buffers by name: that needs ``emit_mutable_buffer_names``,
    which puts their names into the file. ``share_mutable_buffers``: whether methods
    share the buffers that one of them writes, by name, so that one method reads what
    another one wrote. Without, each method has its own.
    ``enable_non_cpu_memory_planning``: whether what delegates with the compile spec
    ``target_device`` take and return is planned in that device's memory, with copies
    from and to the host's. ``skip_h2d_for_method_inputs`` and
    ``skip_d2h_for_method_outputs``: whether inputs and outputs of the method are left
    on such a device, by method too.
    """

    kernels: KernelSet | str | Path | None = None
    plan_inputs: bool | Mapping[str, bool] = True
    plan_outputs: bool | Mapping[str, bool] = True
    external_constants: bool | str | Callable[[Node], str | None] = ""
    memory_of: Callable[[Node], int] | None = None
    alignment: int = ALIGNMENT
    stack_traces: bool = False
    external_mutable_weights: bool = False
    alloc_mutable_buffers: bool = True
    emit_mutable_buffer_names: bool = False
    share_mutable_buffers: bool = False
    enable_non_cpu_memory_planning: bool = True
    skip_h2d_for_method_inputs: bool | Mapping[str, bool] = False
    skip_d2h_for_method_outputs: bool | Mapping[str, bool] = False

    def __post_init__(self) -> None:
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise OptionError(
                    "option-invalid",
                    f"{name} is True or False, not {getattr(self, name)!r}",
                )
        for name in _BY_METHOD:
            given = getattr(self, name)
            if not all(
                isinstance(v, bool)
                for v in (given.values() if isinstance(given, Mapping) else [given])
            ):
                raise OptionError(
                    "option-invalid",
                    f"{name} is True or False, or that by method, not {given!r}",
                )
        if (
            type(self.alignment) is not int
            or self.alignment < 1
            or self.alignment & (self.alignment - 1)
        ):
            raise OptionError(
                "option-invalid", f"alignment is a power of two, not {self.alignment!r}"
            )
        if isinstance(self.external_constants, str):
            check_file_name(self.external_constants)
        elif not isinstance(self.external_constants, bool) and not callable(
            self.external_constants
        ):
            text = (
                "external_constants is the name of a file, a function or a bool, not"
                f" {self.external_constants!r}"
            )
            raise OptionError("option-invalid", text)
        if not (self.alloc_mutable_buffers or self.emit_mutable_buffer_names):
            text = (
                "a caller finds buffers without memory (alloc_mutable_buffers=False) by"
                " their names"
            )
            raise OptionError(
                "option-invalid",
                text,
                hint="say emit_mutable_buffer_names=True as well",
            )
        if self.share_mutable_buffers:
            expect_default_memories(self.memory_of)
            if not self.alloc_mutable_buffers:
                text = (
                    "share_mutable_buffers plans memory for the buffers, which"
                    " alloc_mutable_buffers=False leaves out"
                )
                raise OptionError("option-invalid", text)
        if not self.enable_non_cpu_memory_planning:
            for name in ("skip_h2d_for_method_inputs", "skip_d2h_for_method_outputs"):
                if getattr(self, name):
                    text = (
                        f"{name} leaves out copies, which"
                        " enable_non_cpu_memory_planning=False does not make"
                    )
                    raise OptionError("option-invalid", text)


@dataclass(frozen=True)
class EmittedProgram:
    """The program's file, data files by name, and what both leave out: debug handles by
    method.
    """

    file: SegmentedFile
    data_files: dict[str, SegmentedFile]
    program: Program
    debug_handles: dict[str, DebugHandles]


def emit_program(
    program: ProgramContents, options: EmitOptions | None = None
) -> EmittedProgram:
    """Emit all methods. Raises Unsupported, with the operator and the user's line, for
    what no file can hold.
    """
    options = options or EmitOptions()
    for option in _BY_METHOD:
        _check_methods(option, getattr(options, option), program)
    context = Context(
        kernel_set(options.kernels),
        emitter_of,
        _file_of(options),
        memory_of=options.memory_of or (lambda node: 1),
        alignment=options.alignment,
        stack_traces=options.stack_traces,
        plans_states=options.alloc_mutable_buffers,
        names_states=options.emit_mutable_buffer_names,
        plans_devices=options.enable_non_cpu_memory_planning,
        places=_places_of(program, options),
    )
    cores = {
        name: copy_program(_without_checks(program.core_program(name)))
        for name in program.methods
    }
    use_tied_weights(cores.values(), context.kernels)
    emitted = {
        name: _emit(program, name, core, context, options)
        for name, core in cores.items()
    }
    training = {
        k: v
        for m in program.methods
        for k, v in training_methods(m, program.exported_program(m)).items()
    }
    values = {**program.constant_methods, **training}
    constant = [
        emit_constant_method(name, value, context) for name, value in values.items()
    ]
    segments = _Segments()
    named = without_conventions(program.named_data)
    shared = _find_constants(named, context.constants)
    constants = segments.add_tensors(context.constants)
    states = segments.add_tensors(context.states)
    blobs = [
        segments.add(*blob)
        for blob in zip(context.blobs.contents, context.blobs.alignments, strict=True)
    ]
    tables = Program(
        plans=tuple(
            _place_blobs(plan, blobs)
            for plan in (*(plan for plan, _ in emitted.values()), *constant)
        ),
        constant_segment=constants or SubsegmentOffsets(0, (0,)),
        mutable_data_segments=(states,) if states else (),
        named_data=segments.add_named_data(named, constants, shared),
    )
    context.external_data.merge_named_data_store(_external_of(program.named_data))
    return EmittedProgram(
        program_file(tables, segments.listed),
        _data_files(context.external_data.get_named_data_store_output()),
        tables,
        {name: handles for name, (_, handles) in emitted.items()},
    )


def _emit(
    program: ProgramContents,
    name: str,
    core: ExportedProgram,
    context: Context,
    options: EmitOptions,
) -> tuple[ExecutionPlan, DebugHandles]:
    delegates = [d for d in program.delegates if d.method == name]
    return emit_method(
        name,
        core,
        delegates,
        context,
        _of_method(options.plan_inputs, name, True),
        _of_method(options.plan_outputs, name, True),
        _of_method(options.skip_h2d_for_method_inputs, name, False),
        _of_method(options.skip_d2h_for_method_outputs, name, False),
    )


def _places_of(program: ProgramContents, options: EmitOptions) -> StatePlaces:
    """Where written buffers lie; nowhere yet if the caller has memory for them, or
    memories of its own.
    """
    if options.share_mutable_buffers:
        return share_states(program, options.alignment)
    if options.alloc_mutable_buffers and options.memory_of is None:
        return place_states(program, options.alignment)
    return StatePlaces()


def _without_checks(program: ExportedProgram) -> ExportedProgram:
    """A program of our own without what only checks something, for which a runtime has
    no kernels.
    """
    for module in program.graph_module.modules():
        if isinstance(module, GraphModule):
            erase(module.graph, find_checks(module.graph))
    return program


def _of_method(option: bool | Mapping[str, bool], method: str, usual: bool) -> bool:
    return option.get(method, usual) if isinstance(option, Mapping) else option


def _check_methods(
    option: str, given: bool | Mapping[str, bool], program: ProgramContents
) -> None:
    unknown = (
        [m for m in given if m not in program.methods]
        if isinstance(given, Mapping)
        else []
    )
    if unknown:
        text = (
            f"{option} names a method {unknown[0]!r}; the program has"
            f" {', '.join(program.methods)}"
        )
        raise OptionError("option-invalid", text)


def check_file_name(name: object) -> None:
    """Raise OptionError for what cannot be a part of the name of a data file."""
    if not isinstance(name, str) or any(c in name for c in "/\\\0"):
        raise OptionError(
            "option-invalid", f"external_constants is the name of a file, not {name!r}"
        )


def _file_of(options: EmitOptions) -> Callable[[Node, bool], str]:
    """The data file that a constant of the model goes to, and whether the program
    returns its gradient -> the name.
    """
    given = options.external_constants
    name = EXTERNAL_CONSTANTS if given is True else given or ""

    def file_of(node: Node, is_trained: bool) -> str:
        chosen = (name(node) or "") if callable(name) else name
        check_file_name(chosen)
        return chosen or (
            EXTERNAL_CONSTANTS
            if is_trained and options.external_mutable_weights
            else ""
        )

    return file_of


class _Segments:
    """The segments of a file, in their order."""

    def __init__(self) -> None:
        self.listed: list[Segment | Part] = []

    def add(self, content: bytes | Blob, alignment: int = 1) -> int:
        self.listed.append(Segment(content, alignment))
        return len(self.listed) - 1

    def add_part(self, tensors: SubsegmentOffsets, position: int, size: int) -> int:
        """A segment that is one of the ``tensors`` of another segment."""
        self.listed.append(
            Part(tensors.segment_index, tensors.offsets[1 + position], size)
        )
        return len(self.listed) - 1

    def add_tensors(self, pool: Pool) -> SubsegmentOffsets | None:
        """One segment of all tensors of a pool; None if there are none."""
        if not pool.contents:
            return None
        joined = Concatenation(pool.contents, pool.alignments)
        return SubsegmentOffsets(
            self.add(joined, math.lcm(*pool.alignments)), (0, *joined.offsets)
        )

    def add_buffers(
        self,
        entries: Mapping[str, DataEntry],
        buffers: list[bytes | Blob],
        known: Mapping[int, int],
    ) -> dict[str, int]:
        """A segment for each buffer that a key names, in the order of the keys; key ->
        segment.

        ``known``: the segments of buffers that have one.
        """
        places = dict(known)
        for index, alignment in _alignments(entries).items():
            if index not in places:
                places[index] = self.add(buffers[index], alignment)
        return {key: places[entry.buffer_index] for key, entry in entries.items()}

    def add_named_data(
        self,
        data: NamedDataStoreOutput,
        constants: SubsegmentOffsets | None,
        shared: Mapping[int, int],
    ) -> tuple[NamedData, ...]:
        """``shared``: index of a buffer -> position of the constant that has the same
        bytes.
        """
        known = {}
        for index, position in shared.items():
            assert constants is not None, "one of them was found"
            known[index] = self.add_part(constants, position, len(data.buffers[index]))
        places = self.add_buffers(data.pte_data, data.buffers, known)
        return tuple(NamedData(key, segment) for key, segment in places.items())


def _find_constants(named: NamedDataStoreOutput, constants: Pool) -> dict[int, int]:
    """Index of a buffer of named data -> position of the constant with the same bytes,
    which then has its alignment.

    A head that is tied to the embedding is one: the host looks rows up in what a
    delegate multiplies by.
    """
    found = {
        i: constants.find(named.buffers[i], alignment)
        for i, alignment in _alignments(named.pte_data).items()
    }
    return {
        index: position for index, position in found.items() if position is not None
    }


def _alignments(entries: Mapping[str, DataEntry]) -> dict[int, int]:
    """Index of a buffer that a key names -> the bytes that it is aligned to."""
    alignments: dict[int, int] = {}
    for entry in entries.values():
        alignments[entry.buffer_index] = math.lcm(
            alignments.get(entry.buffer_index, 1), entry.alignment
        )
    return alignments


def _external_of(data: NamedDataStoreOutput) -> NamedDataStoreOutput:
    return NamedDataStoreOutput(data.buffers, {}, data.external_data)


def _data_files(data: NamedDataStoreOutput) -> dict[str, SegmentedFile]:
    files = {}
    for tag, entries in data.external_data.items():
        segments = _Segments()
        places = segments.add_buffers(entries, data.buffers, known={})
        named = tuple(
            NamedTensor(key, places[key], _layout(entry))
            for key, entry in entries.items()
        )
        files[tag] = data_file(FlatTensor(named_data=named), segments.listed)
    return files


def _layout(entry: DataEntry) -> TensorLayout | None:
    layout = entry.tensor_layout
    if layout is None:
        return None
    dtype: torch.dtype = layout.dtype
    return TensorLayout(
        CODES[dtype], tuple(layout.sizes), tuple(range(len(layout.sizes)))
    )


def _place_blobs(plan: ExecutionPlan, segments: list[int]) -> ExecutionPlan:
    """Delegates name their blob's position in the pool; from now on they name its
    segment.
    """
    delegates = []
    for delegate in plan.delegates:
        assert (
            delegate.processed is not None
            and delegate.processed.location == BlobLocation.SEGMENT
        )
        processed = replace(
            delegate.processed, index=segments[delegate.processed.index]
        )
        delegates.append(replace(delegate, processed=processed))
    return replace(plan, delegates=tuple(delegates))

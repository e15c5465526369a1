"""Write a lowered program as a program file and data files."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
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
from ..program.pte_tables import (
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
from .method import (
    DebugHandles,
    MethodOptions,
    emit_constant_method,
    emit_method,
    training_methods,
)
from .pool import Concatenation, Pool
from .state_memory import (
    StateOffsets,
    check_default_memories,
    separate_states,
    share_states,
)
from .tied_weights import use_tied_weights

EXTERNAL_CONSTANTS = "_default_external_constant"
"""ExecuTorch's name of the data file for ``external_constants=True``."""
_BOOLEAN_OPTIONS = (
    "stack_traces",
    "external_mutable_weights",
    "alloc_mutable_buffers",
    "emit_mutable_buffer_names",
    "enable_non_cpu_memory_planning",
    "share_mutable_buffers",
)
_OPTIONS_BY_METHOD = (
    "plan_inputs",
    "plan_outputs",
    "skip_h2d_for_method_inputs",
    "skip_d2h_for_method_outputs",
)


@dataclass(frozen=True)
class EmitOptions:
    """Options of a program file.

      Four options are a bool, or a mapping from methods to bools: ``plan_inputs``,
      ``plan_outputs``, ``skip_h2d_for_method_inputs`` and ``skip_d2h_for_method_outputs``.

      - ``kernels``: the runtime's kernels, or the path of a JSON list of them. None means
        the runtime as ExecuTorch ships it.
      - ``plan_inputs``, ``plan_outputs``: whether inputs and outputs get planned memory.
        Otherwise the caller provides it.
      - ``external_constants``: name of a data file for the model's parameters, constant
        buffers and tensor attributes. True means ExecuTorch's name. A function may choose
        for each placeholder: it returns a name, or None for the program's own file.
        Tensors that export lifted out of code always stay in the program's file.
      - ``memory_of``: function that returns the number of the memory for a node's results.
    The first memory is 1.
      - ``alignment``: alignment of planned tensors in bytes, a power of two.
      - ``stack_traces``: whether to store the model's source lines for each instruction.
      - ``external_mutable_weights``: whether parameters with gradients go to a data file.
      - ``alloc_mutable_buffers``: whether buffers that the model writes get planned
        memory. Otherwise the caller finds them by name, and provides memory and values.
      - ``emit_mutable_buffer_names``: whether to store the names of written buffers.
      - ``share_mutable_buffers``: whether methods share the buffers of the same name.
      - ``enable_non_cpu_memory_planning``: whether tensors of delegates with the compile
        spec ``target_device`` are in that device's memory, with copies from and to it.
      - ``skip_h2d_for_method_inputs``, ``skip_d2h_for_method_outputs``: whether inputs
        and outputs of the method stay in device memory.
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
        """Raise OptionError for values of wrong types, and for options in conflict."""
        self._check_types()
        self._check_conflicts()

    def _check_types(self) -> None:
        for name in _BOOLEAN_OPTIONS:
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise _invalid(f"{name} must be True or False, not {value!r}")
        for name in _OPTIONS_BY_METHOD:
            given = getattr(self, name)
            values = given.values() if isinstance(given, Mapping) else [given]
            if not all(isinstance(value, bool) for value in values):
                raise _invalid(
                    f"{name} must be True or False, or a mapping from methods to these,"
                    f" not {given!r}"
                )
        alignment = self.alignment
        # a power of two has a single bit, and the number below it all lower bits
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            raise _invalid(f"alignment must be a power of two, not {alignment!r}")
        constants = self.external_constants
        if isinstance(constants, str):
            check_file_name(constants)
        elif not isinstance(constants, bool) and not callable(constants):
            raise _invalid(
                "external_constants must be a file name, a function or a bool; got"
                f" {constants!r}"
            )

    def _check_conflicts(self) -> None:
        if not self.alloc_mutable_buffers and not self.emit_mutable_buffer_names:
            raise _invalid(
                "with alloc_mutable_buffers=False, a caller finds buffers by their names",
                "set emit_mutable_buffer_names=True as well",
            )
        if self.share_mutable_buffers:
            check_default_memories(self.memory_of)
            if not self.alloc_mutable_buffers:
                raise _invalid(
                    "share_mutable_buffers needs planned memory for the buffers, which"
                    " alloc_mutable_buffers=False excludes",
                    "leave out one of them",
                )
        if not self.enable_non_cpu_memory_planning:
            for name in ("skip_h2d_for_method_inputs", "skip_d2h_for_method_outputs"):
                if getattr(self, name):
                    raise _invalid(
                        f"{name} has no effect with enable_non_cpu_memory_planning=False,"
                        " which makes no copies",
                        "leave out one of them",
                    )


def _invalid(text: str, hint: str | None = None) -> OptionError:
    return OptionError("option-invalid", text, hint=hint)


@dataclass(frozen=True)
class EmittedProgram:
    """A program's file, its data files by name, and its debug handles by method."""

    file: SegmentedFile
    data_files: dict[str, SegmentedFile]
    program: Program
    debug_handles: dict[str, DebugHandles]


def emit_program(
    program: ProgramContents, options: EmitOptions | None = None
) -> EmittedProgram:
    """Emit all methods of a program.

    Raises Unsupported, with the operator and the model's line, if no file can hold it.
    """
    options = options or EmitOptions()
    for option in _OPTIONS_BY_METHOD:
        _check_methods(option, getattr(options, option), program)
    context = Context(
        kernels=kernel_set(options.kernels),
        emitter_of=emitter_of,
        file_of=_file_of(options),
        memory_of=options.memory_of or (lambda node: 1),
        alignment=options.alignment,
        stack_traces=options.stack_traces,
        plans_states=options.alloc_mutable_buffers,
        names_states=options.emit_mutable_buffer_names,
        plans_devices=options.enable_non_cpu_memory_planning,
        state_offsets=_state_offsets(program, options),
    )
    cores = {}
    for name in program.methods:
        core = program.core_program(name)
        _remove_checks(core)
        cores[name] = copy_program(core)
    use_tied_weights(cores.values(), context.kernels)
    plans = []
    handles = {}
    for name, core in cores.items():
        delegates = [d for d in program.delegates if d.method == name]
        method_options = _options_of_method(options, name)
        plan, handles[name] = emit_method(
            name, core, delegates, context, method_options
        )
        plans.append(plan)
    constant_methods = dict(program.constant_methods)
    for name in program.methods:
        constant_methods |= training_methods(name, program.exported_program(name))
    for name, value in constant_methods.items():
        plans.append(emit_constant_method(name, value, context))
    segments = _Segments()
    tables = _add_segments(plans, program.named_data, context, segments)
    context.external_data.merge_named_data_store(_external_of(program.named_data))
    return EmittedProgram(
        program_file(tables, segments.listed),
        _data_files(context.external_data.get_named_data_store_output()),
        tables,
        handles,
    )


def _add_segments(
    plans: Sequence[ExecutionPlan],
    named_data: NamedDataStoreOutput,
    context: Context,
    segments: _Segments,
) -> Program:
    """Add all contents of the program's file to ``segments``; return its tables.

    The order is that of the file: constants, states, blobs, named data.
    """
    named = without_conventions(named_data)
    shared = _find_constants(named, context.constants)
    constants = segments.add_tensors(context.constants)
    states = segments.add_tensors(context.states)
    blobs = [
        segments.add(content, alignment)
        for content, alignment in zip(
            context.blobs.contents, context.blobs.alignments, strict=True
        )
    ]
    return Program(
        plans=tuple(_number_blob_segments(plan, blobs) for plan in plans),
        # without constants, there is only the placeholder for "no data"
        constant_segment=constants or SubsegmentOffsets(0, (0,)),
        mutable_data_segments=(states,) if states else (),
        named_data=segments.add_named_data(named, constants, shared),
    )


def _options_of_method(options: EmitOptions, method: str) -> MethodOptions:
    """Return the options of one method, from options that may be mappings by method."""
    return MethodOptions(
        plan_inputs=_of_method(options.plan_inputs, method, default=True),
        plan_outputs=_of_method(options.plan_outputs, method, default=True),
        inputs_on_device=_of_method(
            options.skip_h2d_for_method_inputs, method, default=False
        ),
        outputs_on_device=_of_method(
            options.skip_d2h_for_method_outputs, method, default=False
        ),
    )


def _state_offsets(program: ProgramContents, options: EmitOptions) -> StateOffsets:
    """Return the offsets of written buffers that are fixed before methods are planned.

    None are fixed if the caller provides the buffers' memory or chooses memories.
    """
    if options.share_mutable_buffers:
        return share_states(program, options.alignment)
    if options.alloc_mutable_buffers and options.memory_of is None:
        return separate_states(program, options.alignment)
    return StateOffsets()


def _remove_checks(program: ExportedProgram) -> None:
    """Remove assertions from ``program``: runtimes have no kernels for them."""
    for module in program.graph_module.modules():
        if isinstance(module, GraphModule):
            erase(module.graph, find_checks(module.graph))


def _of_method(option: bool | Mapping[str, bool], method: str, default: bool) -> bool:
    """Return an option's value for one method; ``default`` if a mapping lacks it."""
    return option.get(method, default) if isinstance(option, Mapping) else option


def _check_methods(
    option: str, given: bool | Mapping[str, bool], program: ProgramContents
) -> None:
    """Raise OptionError if an option names a method that the program does not have."""
    names = given if isinstance(given, Mapping) else ()
    for name in names:
        if name not in program.methods:
            raise _invalid(
                f"{option} names the method {name!r}; the program has"
                f" {', '.join(program.methods)}"
            )


def check_file_name(name: object) -> None:
    """Raise OptionError if ``name`` is no string, or has characters of a path."""
    if not isinstance(name, str) or any(c in name for c in "/\\\0"):
        raise _invalid(f"external_constants must return a file name; got {name!r}")


def _file_of(options: EmitOptions) -> Callable[[Node, bool], str]:
    """Return the function that chooses the data file of a constant.

    It takes the constant's placeholder, and whether the program returns its gradient.
    "" means the program's own file.
    """
    given = options.external_constants

    def file_of(node: Node, is_trained: bool) -> str:
        if callable(given):
            chosen = given(node) or ""
        elif given is True:
            chosen = EXTERNAL_CONSTANTS
        else:
            chosen = given or ""
        check_file_name(chosen)
        if not chosen and is_trained and options.external_mutable_weights:
            return EXTERNAL_CONSTANTS
        return chosen

    return file_of


class _Segments:
    """The segments of a file, numbered in the order in which they are added."""

    def __init__(self) -> None:
        self.listed: list[Segment | Part] = []

    def add(self, content: bytes | Blob, alignment: int = 1) -> int:
        """Append a segment, and return its number."""
        self.listed.append(Segment(content, alignment))
        return len(self.listed) - 1

    def add_part(self, tensors: SubsegmentOffsets, position: int, size: int) -> int:
        """Append a segment that is a part of another one, and return its number.

        The part is the tensor at ``position`` in the pool of ``tensors``.
        """
        # the first offset is that of an empty tensor, which the format demands
        offset = tensors.offsets[1 + position]
        self.listed.append(Part(tensors.segment_index, offset, size))
        return len(self.listed) - 1

    def add_tensors(self, pool: Pool) -> SubsegmentOffsets | None:
        """Append one segment with all tensors of a pool; None if there are none.

        The result has the number of the segment and the offsets of the tensors. In the
        table of values, index 0 means "no data", so the first offset is a placeholder.
        """
        if not pool.contents:
            return None
        joined = Concatenation(pool.contents, pool.alignments)
        segment = self.add(joined, math.lcm(*pool.alignments))
        return SubsegmentOffsets(segment, (0, *joined.offsets))

    def add_buffers(
        self,
        entries: Mapping[str, DataEntry],
        buffers: list[bytes | Blob],
        known: Mapping[int, int],
    ) -> dict[str, int]:
        """Add a segment for each buffer of ``entries``; return key -> segment.

        ``known`` maps buffers to the segments that they have already.
        """
        segments = dict(known)
        for index, alignment in _alignments(entries).items():
            if index not in segments:
                segments[index] = self.add(buffers[index], alignment)
        return {key: segments[entry.buffer_index] for key, entry in entries.items()}

    def add_named_data(
        self,
        data: NamedDataStoreOutput,
        constants: SubsegmentOffsets | None,
        shared: Mapping[int, int],
    ) -> tuple[NamedData, ...]:
        """Add the segments of named data, and return the table of their keys.

        ``shared`` maps a buffer to the position of the constant with the same bytes.
        """
        known = {}
        for index, position in shared.items():
            assert constants is not None
            known[index] = self.add_part(constants, position, len(data.buffers[index]))
        segments = self.add_buffers(data.pte_data, data.buffers, known)
        return tuple(NamedData(key, segment) for key, segment in segments.items())


def _find_constants(named: NamedDataStoreOutput, constants: Pool) -> dict[int, int]:
    """Return buffer of named data -> position of the constant with the same bytes.

    Buffers without such a constant are left out. The file then stores the bytes once. In language models, the weight of the last layer
    is often that of the embedding: a delegate multiplies by it, and the host reads rows.
    """
    found = {}
    for index, alignment in _alignments(named.pte_data).items():
        position = constants.find(named.buffers[index], alignment)
        if position is not None:
            found[index] = position
    return found


def _alignments(entries: Mapping[str, DataEntry]) -> dict[int, int]:
    """Return buffer -> the least alignment that satisfies all keys of that buffer."""
    alignments: dict[int, int] = {}
    for entry in entries.values():
        alignments[entry.buffer_index] = math.lcm(
            alignments.get(entry.buffer_index, 1), entry.alignment
        )
    return alignments


def _external_of(data: NamedDataStoreOutput) -> NamedDataStoreOutput:
    """Return the named data that belong to data files, not to the program's file."""
    return NamedDataStoreOutput(data.buffers, {}, data.external_data)


def _data_files(data: NamedDataStoreOutput) -> dict[str, SegmentedFile]:
    """Return the data files by their names."""
    files = {}
    for tag, entries in data.external_data.items():
        segments = _Segments()
        segment_of = segments.add_buffers(entries, data.buffers, known={})
        named = tuple(
            NamedTensor(key, segment_of[key], _layout(entry))
            for key, entry in entries.items()
        )
        files[tag] = data_file(FlatTensor(named_data=named), segments.listed)
    return files


def _layout(entry: DataEntry) -> TensorLayout | None:
    """Return type, sizes and dimension order of a named tensor; None for plain bytes."""
    layout = entry.tensor_layout
    if layout is None:
        return None
    dtype: torch.dtype = layout.dtype
    c_order = tuple(range(len(layout.sizes)))
    return TensorLayout(CODES[dtype], tuple(layout.sizes), c_order)


def _number_blob_segments(plan: ExecutionPlan, segments: list[int]) -> ExecutionPlan:
    """Replace the blobs' positions in the pool by the numbers of their segments."""
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

"""Describe the tables of ``program.fbs``: methods with their values and instructions."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from .scalar_types import ScalarType
from .schema import numbers, raw, scalar, sub, tables, text, union

IDENTIFIER = "ET12"
VERSION = 0
"""The only version of the schema."""


class Dynamism(enum.IntEnum):
    """Whether the sizes of a tensor are final, upper bounds, or unknown."""

    STATIC = 0
    BOUND = 1
    UNBOUND = 2


class Location(enum.IntEnum):
    """Where the data of a named tensor are: in this file, or in a data file."""

    SEGMENT = 0
    EXTERNAL = 1


class BlobLocation(enum.IntEnum):
    """Where a blob is: in ``Program.backend_delegate_data``, or in a segment."""

    INLINE = 0
    SEGMENT = 1


class Device(enum.IntEnum):
    """The kind of device that has a tensor."""

    CPU = 0
    CUDA = 1


@dataclass(frozen=True, slots=True)
class ContainerMetadata:
    """The structure of a method's flat inputs and outputs. Runtimes ignore it."""

    inputs: str = text(0)
    outputs: str = text(1)


@dataclass(frozen=True, slots=True)
class AllocationDetails:
    """The first byte of a tensor in planned memory.

    Memories are numbered from 1. The offset in bytes is stored in two halves.
    """

    memory_id: int = scalar(0, "I")
    offset_low: int = scalar(1, "I")
    offset_high: int = scalar(2, "I")

    @property
    def offset(self) -> int:
        """Return the offset in bytes from the start of the memory."""
        return self.offset_high << 32 | self.offset_low

    @staticmethod
    def at(memory_id: int, offset: int) -> AllocationDetails:
        """Return the record for the byte at ``offset`` of a memory."""
        return AllocationDetails(memory_id, offset & 0xFFFFFFFF, offset >> 32)


@dataclass(frozen=True, slots=True)
class ExtraTensorInfo:
    """Properties that only few tensors have."""

    mutable_data_segments_idx: int = scalar(0, "Q")
    fully_qualified_name: str = text(1)
    location: int = scalar(2, "b", enum=Location)
    device_type: int = scalar(3, "b", enum=Device)
    device_index: int = scalar(4, "b")


@dataclass(frozen=True, slots=True)
class Null:
    """No value."""


@dataclass(frozen=True, slots=True)
class Int:
    value: int = scalar(0, "q")


@dataclass(frozen=True, slots=True)
class Bool:
    value: bool = scalar(0, "?", default=False)


@dataclass(frozen=True, slots=True)
class Double:
    value: float = scalar(0, "d", default=0.0)


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor: its type, and the source of its data.

    A constant has ``data_buffer_idx``, a tensor in planned memory ``allocation``, and
    memory with an initial state both. A tensor that the caller provides has neither.
    """

    scalar_type: int = scalar(0, "b", enum=ScalarType)
    storage_offset: int = scalar(1, "i")
    sizes: tuple[int, ...] = numbers(2, "i")
    dim_order: tuple[int, ...] = numbers(3, "B")
    requires_grad: bool = scalar(4, "?", default=False)
    data_buffer_idx: int = scalar(5, "I")
    allocation: AllocationDetails | None = sub(6, AllocationDetails)
    layout: int = scalar(7, "b")
    dynamism: int = scalar(8, "b", enum=Dynamism)
    extra: ExtraTensorInfo | None = sub(9, ExtraTensorInfo)


@dataclass(frozen=True, slots=True)
class String:
    value: str = text(0)


@dataclass(frozen=True, slots=True)
class IntList:
    """Positions of ints. Each of them may be computed at run time."""

    items: tuple[int, ...] = numbers(0, "q")


@dataclass(frozen=True, slots=True)
class DoubleList:
    items: tuple[float, ...] = numbers(0, "d")


@dataclass(frozen=True, slots=True)
class BoolList:
    items: tuple[bool, ...] = numbers(0, "?")


@dataclass(frozen=True, slots=True)
class TensorList:
    """Positions of values that are tensors."""

    items: tuple[int, ...] = numbers(0, "i")

    @property
    def positions(self) -> tuple[int, ...]:
        """Return the items: no element is missing, unlike in OptionalTensorList."""
        return self.items


NOTHING = -1
"""Null in an ``OptionalTensorList``, as ExecuTorch writes it."""


@dataclass(frozen=True, slots=True)
class OptionalTensorList:
    """Positions of tensors or nulls, or ``NOTHING``."""

    items: tuple[int, ...] = numbers(0, "i")

    @property
    def positions(self) -> tuple[int, ...]:
        """Return the items that are positions of values."""
        return tuple(i for i in self.items if i != NOTHING)


Value = (
    Null
    | Int
    | Bool
    | Double
    | Tensor
    | String
    | IntList
    | DoubleList
    | BoolList
    | TensorList
    | OptionalTensorList
)
"""The content of an EValue, in the schema's order."""


@dataclass(frozen=True, slots=True)
class EValue:
    value: Value | None = union(0, Value)


@dataclass(frozen=True, slots=True)
class KernelCall:
    """Call ``operators[op_index]``; ``args`` are positions of values, the results last."""

    op_index: int = scalar(0, "i")
    args: tuple[int, ...] = numbers(1, "i")


@dataclass(frozen=True, slots=True)
class DelegateCall:
    """Call ``delegates[delegate_index]``; ``args`` are its inputs, then its outputs."""

    delegate_index: int = scalar(0, "i")
    args: tuple[int, ...] = numbers(1, "i")


@dataclass(frozen=True, slots=True)
class MoveCall:
    """Set the value at ``move_to`` to the value at ``move_from``."""

    move_from: int = scalar(0, "i")
    move_to: int = scalar(1, "i")


@dataclass(frozen=True, slots=True)
class JumpFalseCall:
    """Jump to instruction ``destination`` if the condition is false.

    The condition is a bool, or a tensor of bools.
    """

    condition: int = scalar(0, "i")
    destination: int = scalar(1, "i")


@dataclass(frozen=True, slots=True)
class FreeCall:
    """Free the data of a tensor that the runtime allocated."""

    value: int = scalar(0, "i")


Call = KernelCall | DelegateCall | MoveCall | JumpFalseCall | FreeCall


@dataclass(frozen=True, slots=True)
class Instruction:
    call: Call | None = union(0, Call)


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of the stack trace of an instruction."""

    filename: str = text(0)
    line: int = scalar(1, "i")
    name: str = text(2)
    context: str = text(3)


@dataclass(frozen=True, slots=True)
class FrameList:
    items: tuple[Frame, ...] = tables(0, Frame)


@dataclass(frozen=True, slots=True)
class Chain:
    """Instructions that run one after the other. A method has one chain."""

    inputs: tuple[int, ...] = numbers(0, "i")
    outputs: tuple[int, ...] = numbers(1, "i")
    instructions: tuple[Instruction, ...] = tables(2, Instruction)
    stacktrace: tuple[FrameList, ...] = tables(3, FrameList, optional=True)


@dataclass(frozen=True, slots=True)
class Operator:
    """A kernel by its name (``aten::add``) and overload (``out``)."""

    name: str = text(0)
    overload: str = text(1)

    def __str__(self) -> str:
        return f"{self.name}.{self.overload}" if self.overload else self.name


@dataclass(frozen=True, slots=True)
class BackendDelegateDataReference:
    """The location of a blob, and its index there."""

    location: int = scalar(0, "b", enum=BlobLocation)
    index: int = scalar(1, "I")


@dataclass(frozen=True, slots=True)
class CompileSpec:
    key: str = text(0)
    value: bytes = raw(1)


@dataclass(frozen=True, slots=True)
class BackendDelegate:
    """A delegate: its backend's id, its blob, and the settings for its runtime."""

    id: str = text(0)
    processed: BackendDelegateDataReference | None = sub(
        1, BackendDelegateDataReference
    )
    compile_specs: tuple[CompileSpec, ...] = tables(2, CompileSpec)


@dataclass(frozen=True, slots=True)
class NonConstBufferDevice:
    """The device that has the planned memory number ``buffer_idx``."""

    buffer_idx: int = scalar(0, "i")
    device_type: int = scalar(1, "b", enum=Device)
    device_index: int = scalar(2, "b")


@dataclass(frozen=True, slots=True)
class ExecutionPlan:
    """A method. Instructions, inputs and outputs refer to ``values`` by position.

    ``memory_sizes[k]`` is the size of memory k in bytes; memory 0 is not used.
    """

    name: str = text(0)
    container: ContainerMetadata | None = sub(1, ContainerMetadata)
    values: tuple[EValue, ...] = tables(2, EValue)
    inputs: tuple[int, ...] = numbers(3, "i")
    outputs: tuple[int, ...] = numbers(4, "i")
    chains: tuple[Chain, ...] = tables(5, Chain)
    operators: tuple[Operator, ...] = tables(6, Operator)
    delegates: tuple[BackendDelegate, ...] = tables(7, BackendDelegate)
    memory_sizes: tuple[int, ...] = numbers(8, "q")
    memory_devices: tuple[NonConstBufferDevice, ...] = tables(
        9, NonConstBufferDevice, optional=True
    )

    @property
    def calls(self) -> list[Call | None]:
        """Return the calls of all instructions, in their order."""
        return [i.call for chain in self.chains for i in chain.instructions]


@dataclass(frozen=True, slots=True)
class Buffer:
    """The bytes of a constant, in old files."""

    storage: bytes = raw(0)


@dataclass(frozen=True, slots=True)
class BackendDelegateInlineData:
    """A blob inside the flatbuffer."""

    data: bytes = raw(0)


@dataclass(frozen=True, slots=True)
class DataSegment:
    """Bytes after the flatbuffer, ``offset`` from the first segment."""

    offset: int = scalar(0, "Q")
    size: int = scalar(1, "Q")


@dataclass(frozen=True, slots=True)
class SubsegmentOffsets:
    """The starts of tensors in a segment.

    The ``data_buffer_idx`` of a tensor is the index of its start in ``offsets``.
    """

    segment_index: int = scalar(0, "I")
    offsets: tuple[int, ...] = numbers(1, "Q")


@dataclass(frozen=True, slots=True)
class NamedData:
    key: str = text(0)
    segment_index: int = scalar(1, "I")


@dataclass(frozen=True, slots=True)
class Program:
    """The content of a ``.pte`` file's flatbuffer."""

    version: int = scalar(0, "I")
    plans: tuple[ExecutionPlan, ...] = tables(1, ExecutionPlan)
    constant_buffer: tuple[Buffer, ...] = tables(2, Buffer)
    backend_delegate_data: tuple[BackendDelegateInlineData, ...] = tables(
        3, BackendDelegateInlineData
    )
    segments: tuple[DataSegment, ...] = tables(4, DataSegment)
    constant_segment: SubsegmentOffsets | None = sub(5, SubsegmentOffsets)
    mutable_data_segments: tuple[SubsegmentOffsets, ...] = tables(
        6, SubsegmentOffsets, optional=True
    )
    named_data: tuple[NamedData, ...] = tables(7, NamedData, optional=True)

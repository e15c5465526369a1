"""Check every reference in the records of a program.

Code that runs the program can then use them without checks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from delegraph.errors import FormatError

from ..program.pte_tables import (
    BackendDelegate,
    BlobLocation,
    Call,
    DelegateCall,
    ExecutionPlan,
    FreeCall,
    Int,
    IntList,
    JumpFalseCall,
    KernelCall,
    Location,
    MoveCall,
    Null,
    OptionalTensorList,
    SubsegmentOffsets,
    Tensor,
    TensorList,
    Value,
)
from ..program.scalar_types import ScalarType, width
from .reader import ProgramFile
from .unpack import damaged

ADDRESSABLE = 1 << 47
"""Bytes that a process can address on 64-bit processors."""
MAX_RANK = 64
"""The most dimensions of tensors in PyTorch and numpy. ExecuTorch's kernels support 16.
"""


def check_program(file: ProgramFile) -> None:
    """Raise FormatError for the first reference that is wrong or does not fit."""
    _Check(file).run()


def nbytes(tensor: Tensor) -> int:
    """Return the size of a tensor in bytes."""
    return math.prod(tensor.sizes) * width(ScalarType(tensor.scalar_type))


class _Check:
    def __init__(self, file: ProgramFile) -> None:
        self.file = file
        self.program = file.program
        self.where = "the program"

    def run(self) -> None:
        names = [plan.name for plan in self.program.plans]
        if not names:
            raise self.fault("it has no methods")
        if "" in names:
            raise self.fault("a method has no name")
        if len(set(names)) < len(names):
            raise self.fault("two methods have the same name")
        for named in self.program.named_data:
            self.require_index(
                named.segment_index,
                self.file.segments,
                f"the segment of named data {named.key!r}",
            )
        for offsets in (
            self.program.constant_segment,
            *self.program.mutable_data_segments,
        ):
            if offsets is not None and len(offsets.offsets) > 1:
                self.require_index(
                    offsets.segment_index, self.file.segments, "the segment of tensors"
                )
        for plan in self.program.plans:
            self.where = f"method {plan.name!r}"
            self.plan(plan)

    def fault(self, why: str) -> FormatError:
        return damaged(".pte file", f"{self.where}: {why}")

    def require_index(self, index: int, listed: Sequence[Any], subject: str) -> None:
        if not 0 <= index < len(listed):
            raise self.fault(f"{subject} has index {index} in a list of {len(listed)}")

    def plan(self, plan: ExecutionPlan) -> None:
        values = [entry.value for entry in plan.values]
        if any(size < 0 or size > ADDRESSABLE for size in plan.memory_sizes):
            raise self.fault(f"its memories have invalid sizes: {plan.memory_sizes}")
        for number, value in enumerate(values):
            self.value(value, values, plan, f"value {number}")
        for index in (*plan.inputs, *plan.outputs):
            self.require_index(index, values, "an input or output")
        for number, operator in enumerate(plan.operators):
            if not operator.name:
                raise self.fault(f"operator {number} has no name")
        for delegate in plan.delegates:
            self.delegate(delegate)
        if len(plan.chains) != 1:
            raise self.fault(
                f"it has {len(plan.chains)} chains of instructions; a method has one"
            )
        calls = [instruction.call for instruction in plan.chains[0].instructions]
        for number, call in enumerate(calls):
            self.call(call, values, plan, len(calls), f"instruction {number}")

    def value(
        self,
        value: Value | None,
        values: Sequence[Value | None],
        plan: ExecutionPlan,
        subject: str,
    ) -> None:
        if value is None:
            raise self.fault(f"{subject} has no type")
        if isinstance(value, Tensor):
            self.tensor(value, plan, subject)
        elif isinstance(value, (IntList, TensorList, OptionalTensorList)):
            kinds: dict[type, tuple[type, ...]] = {
                IntList: (Int,),
                TensorList: (Tensor,),
                OptionalTensorList: (Tensor, Null),
            }
            named = value.items if isinstance(value, IntList) else value.positions
            for index in named:
                self.require_index(index, values, f"an element of {subject}")
                if not isinstance(values[index], kinds[type(value)]):
                    raise self.fault(
                        f"{subject} is a {type(value).__name__} and contains a"
                        f" {type(values[index]).__name__}"
                    )

    def tensor(self, tensor: Tensor, plan: ExecutionPlan, subject: str) -> None:
        rank = len(tensor.sizes)
        if rank > MAX_RANK or len(tensor.dim_order) != rank:
            raise self.fault(
                f"{subject} has {rank} dimensions, but {len(tensor.dim_order)} in its"
                " dimension order"
            )
        is_order = sorted(tensor.dim_order) == list(range(rank))
        if any(size < 0 for size in tensor.sizes) or not is_order:
            raise self.fault(
                f"{subject} has invalid sizes {tensor.sizes} or an invalid dimension order"
                f" {tensor.dim_order}"
            )
        if tensor.storage_offset:
            raise self.fault(
                f"{subject} has an offset in its storage, which no runtime supports"
            )
        try:
            size = nbytes(tensor)
        except ValueError as e:
            raise self.fault(f"{subject}: {e}") from None
        # Strides count a size of 0 as 1.
        extent = math.prod(max(1, s) for s in tensor.sizes)
        if max(extent, size) > ADDRESSABLE:
            raise self.fault(
                f"{subject} has the sizes {tensor.sizes}, too large for any memory"
            )
        self.memory(tensor, size, plan, subject)
        if tensor.extra is not None and tensor.extra.location == Location.EXTERNAL:
            if not tensor.extra.fully_qualified_name:
                raise self.fault(f"{subject} is in another file and has no name")
        elif tensor.data_buffer_idx:
            self.content(tensor, size, subject)

    def memory(
        self, tensor: Tensor, size: int, plan: ExecutionPlan, subject: str
    ) -> None:
        place = tensor.allocation
        if place is None:
            return
        if not 0 < place.memory_id < len(plan.memory_sizes):
            raise self.fault(
                f"{subject} is in memory {place.memory_id}, but the method has"
                f" {len(plan.memory_sizes)} memories"
            )
        if place.offset + size > plan.memory_sizes[place.memory_id]:
            raise self.fault(
                f"{subject} reaches beyond the end of memory {place.memory_id}"
            )

    def content(self, tensor: Tensor, size: int, subject: str) -> None:
        """Check the data of a constant, or the initial state of a tensor with memory."""
        index = tensor.data_buffer_idx
        if tensor.allocation is None and self.program.constant_buffer:
            self.require_index(
                index, self.program.constant_buffer, f"the data of {subject}"
            )
            if len(self.program.constant_buffer[index].storage) < size:
                raise self.fault(f"{subject} has {size} bytes, but its data has fewer")
            return
        offsets = self.offsets(tensor, subject)
        self.require_index(index, offsets.offsets, f"the data of {subject}")
        self.require_index(
            offsets.segment_index, self.file.segments, f"the segment of {subject}"
        )
        segment = self.file.segments[offsets.segment_index]
        if offsets.offsets[index] + size > len(segment):
            raise self.fault(
                f"the data of {subject} reach beyond the end of their segment"
            )

    def offsets(self, tensor: Tensor, subject: str) -> SubsegmentOffsets:
        if tensor.allocation is None:
            return self.program.constant_segment or SubsegmentOffsets()
        number = 0 if tensor.extra is None else tensor.extra.mutable_data_segments_idx
        self.require_index(
            number,
            self.program.mutable_data_segments,
            f"the initial state of {subject}",
        )
        return self.program.mutable_data_segments[number]

    def delegate(self, delegate: BackendDelegate) -> None:
        if delegate.processed is None:
            raise self.fault(f"a delegate of {delegate.id!r} has no blob")
        inline = delegate.processed.location == BlobLocation.INLINE
        listed: Sequence[Any] = (
            self.program.backend_delegate_data if inline else self.file.segments
        )
        self.require_index(
            delegate.processed.index,
            listed,
            f"the blob of a delegate of {delegate.id!r}",
        )

    def call(
        self,
        call: Call | None,
        values: Sequence[Any],
        plan: ExecutionPlan,
        count: int,
        subject: str,
    ) -> None:
        checks: dict[type, Callable[[Any], Sequence[int]]] = {
            KernelCall: lambda c: c.args,
            DelegateCall: lambda c: c.args,
            MoveCall: lambda c: (c.move_from, c.move_to),
            JumpFalseCall: lambda c: (c.condition,),
            FreeCall: lambda c: (c.value,),
        }
        if call is None:
            raise self.fault(f"{subject} has no type")
        for index in checks[type(call)](call):
            self.require_index(index, values, f"an argument of {subject}")
        if isinstance(call, KernelCall):
            self.require_index(
                call.op_index, plan.operators, f"the operator of {subject}"
            )
        elif isinstance(call, DelegateCall):
            self.require_index(
                call.delegate_index, plan.delegates, f"the delegate of {subject}"
            )
        elif isinstance(call, JumpFalseCall) and not 0 <= call.destination <= count:
            raise self.fault(
                f"{subject} jumps to instruction {call.destination}, but there are"
                f" {count} instructions"
            )

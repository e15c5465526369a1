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
    """Checks a file. ``subject`` parameters name the checked thing in errors.

    ``where`` names the checked method, or the program, in errors.
    """

    def __init__(self, file: ProgramFile) -> None:
        self.file = file
        self.program = file.program
        self.where = "the program"

    def run(self) -> None:
        """Check the whole file."""
        names = [plan.name for plan in self.program.plans]
        if not names:
            raise self._fault("it has no methods")
        if "" in names:
            raise self._fault("a method has no name")
        if len(set(names)) < len(names):
            raise self._fault("two methods have the same name")
        for named in self.program.named_data:
            self._check_index(
                named.segment_index,
                self.file.segments,
                f"the segment of named data {named.key!r}",
            )
        for offsets in (
            self.program.constant_segment,
            *self.program.mutable_data_segments,
        ):
            # offset 0 is a placeholder: tensors without data have index 0
            if offsets is not None and len(offsets.offsets) > 1:
                self._check_index(
                    offsets.segment_index, self.file.segments, "the segment of tensors"
                )
        for plan in self.program.plans:
            self.where = f"method {plan.name!r}"
            self._check_plan(plan)

    def _fault(self, why: str) -> FormatError:
        """Return the error for the method that is being checked."""
        return damaged(".pte file", f"{self.where}: {why}")

    def _check_index(self, index: int, listed: Sequence[Any], subject: str) -> None:
        """Raise FormatError unless ``listed`` has an element at ``index``."""
        if not 0 <= index < len(listed):
            raise self._fault(f"{subject} has index {index} in a list of {len(listed)}")

    def _check_plan(self, plan: ExecutionPlan) -> None:
        """Check all values, delegates and instructions of a method."""
        values = [entry.value for entry in plan.values]
        if any(size < 0 or size > ADDRESSABLE for size in plan.memory_sizes):
            raise self._fault(f"its memories have invalid sizes: {plan.memory_sizes}")
        for number, value in enumerate(values):
            self._check_value(value, values, plan, f"value {number}")
        for index in (*plan.inputs, *plan.outputs):
            self._check_index(index, values, "an input or output")
        for number, operator in enumerate(plan.operators):
            if not operator.name:
                raise self._fault(f"operator {number} has no name")
        for delegate in plan.delegates:
            self._check_delegate(delegate)
        if len(plan.chains) != 1:
            raise self._fault(
                f"it has {len(plan.chains)} chains of instructions; a method has one"
            )
        calls = [instruction.call for instruction in plan.chains[0].instructions]
        for number, call in enumerate(calls):
            self._check_call(call, values, plan, len(calls), f"instruction {number}")

    def _check_value(
        self,
        value: Value | None,
        values: Sequence[Value | None],
        plan: ExecutionPlan,
        subject: str,
    ) -> None:
        """Check a value. A list refers to elements in ``values`` of the right kind."""
        if value is None:
            raise self._fault(f"{subject} has no type")
        if isinstance(value, Tensor):
            self._check_tensor(value, plan, subject)
        elif isinstance(value, (IntList, TensorList, OptionalTensorList)):
            kinds: dict[type, tuple[type, ...]] = {
                IntList: (Int,),
                TensorList: (Tensor,),
                OptionalTensorList: (Tensor, Null),
            }
            elements = value.items if isinstance(value, IntList) else value.positions
            for index in elements:
                self._check_index(index, values, f"an element of {subject}")
                if not isinstance(values[index], kinds[type(value)]):
                    raise self._fault(
                        f"{subject} is a {type(value).__name__} and contains a"
                        f" {type(values[index]).__name__}"
                    )

    def _check_tensor(self, tensor: Tensor, plan: ExecutionPlan, subject: str) -> None:
        """Check sizes, memory and data of a tensor."""
        rank = len(tensor.sizes)
        if rank > MAX_RANK:
            raise self._fault(
                f"{subject} has {rank} dimensions; at most {MAX_RANK} are supported"
            )
        if len(tensor.dim_order) != rank:
            raise self._fault(
                f"{subject} has {rank} dimensions, but {len(tensor.dim_order)} in its"
                " dimension order"
            )
        is_permutation = sorted(tensor.dim_order) == list(range(rank))
        if any(size < 0 for size in tensor.sizes) or not is_permutation:
            raise self._fault(
                f"{subject} has invalid sizes {tensor.sizes} or an invalid dimension order"
                f" {tensor.dim_order}"
            )
        if tensor.storage_offset:
            raise self._fault(
                f"{subject} has an offset in its storage, which no runtime supports"
            )
        try:
            size = nbytes(tensor)
        except ValueError as e:
            raise self._fault(f"{subject}: {e}") from None
        # Strides must be addressable, too. They count a size of 0 as 1, so they may be
        # large although the tensor has no elements.
        stride_bound = math.prod(max(1, s) for s in tensor.sizes)
        if max(stride_bound, size) > ADDRESSABLE:
            raise self._fault(
                f"{subject} has the sizes {tensor.sizes}, too large for any memory"
            )
        self._check_memory(tensor, size, plan, subject)
        if tensor.extra is not None and tensor.extra.location == Location.EXTERNAL:
            if not tensor.extra.fully_qualified_name:
                raise self._fault(f"{subject} is in another file and has no name")
        elif tensor.data_buffer_idx:
            self._check_content(tensor, size, subject)

    def _check_memory(
        self, tensor: Tensor, size: int, plan: ExecutionPlan, subject: str
    ) -> None:
        """Check that a tensor of ``size`` bytes is inside of its memory."""
        allocation = tensor.allocation
        if allocation is None:
            return
        memory_id = allocation.memory_id
        if not 0 < memory_id < len(plan.memory_sizes):
            # memory 0 is not used
            count = max(0, len(plan.memory_sizes) - 1)
            raise self._fault(
                f"{subject} is in memory {memory_id}, but the method has {count}"
                " memories, numbered from 1"
            )
        if allocation.offset + size > plan.memory_sizes[memory_id]:
            raise self._fault(f"{subject} reaches beyond the end of memory {memory_id}")

    def _check_content(self, tensor: Tensor, size: int, subject: str) -> None:
        """Check the data of a constant, or the initial state of a tensor with memory."""
        index = tensor.data_buffer_idx
        if tensor.allocation is None and self.program.constant_buffer:
            self._check_index(
                index, self.program.constant_buffer, f"the data of {subject}"
            )
            if len(self.program.constant_buffer[index].storage) < size:
                raise self._fault(f"{subject} has {size} bytes, but its data has fewer")
            return
        offsets = self._offsets_of_contents(tensor, subject)
        self._check_index(index, offsets.offsets, f"the data of {subject}")
        self._check_index(
            offsets.segment_index, self.file.segments, f"the segment of {subject}"
        )
        segment = self.file.segments[offsets.segment_index]
        if offsets.offsets[index] + size > len(segment):
            raise self._fault(
                f"the data of {subject} reach beyond the end of their segment"
            )

    def _offsets_of_contents(self, tensor: Tensor, subject: str) -> SubsegmentOffsets:
        """Return the offsets of constants for a constant, and of states for a state."""
        if tensor.allocation is None:
            return self.program.constant_segment or SubsegmentOffsets()
        number = 0 if tensor.extra is None else tensor.extra.mutable_data_segments_idx
        self._check_index(
            number,
            self.program.mutable_data_segments,
            f"the initial state of {subject}",
        )
        return self.program.mutable_data_segments[number]

    def _check_delegate(self, delegate: BackendDelegate) -> None:
        """Raise FormatError unless the file has the blob of a delegate."""
        if delegate.processed is None:
            raise self._fault(f"a delegate of {delegate.id!r} has no blob")
        inline = delegate.processed.location == BlobLocation.INLINE
        listed: Sequence[Any] = (
            self.program.backend_delegate_data if inline else self.file.segments
        )
        self._check_index(
            delegate.processed.index,
            listed,
            f"the blob of a delegate of {delegate.id!r}",
        )

    def _check_call(
        self,
        call: Call | None,
        values: Sequence[Any],
        plan: ExecutionPlan,
        count: int,
        subject: str,
    ) -> None:
        """Check the references of a call; the method has ``count`` instructions."""
        arguments_of: dict[type, Callable[[Any], Sequence[int]]] = {
            KernelCall: lambda c: c.args,
            DelegateCall: lambda c: c.args,
            MoveCall: lambda c: (c.move_from, c.move_to),
            JumpFalseCall: lambda c: (c.condition,),
            FreeCall: lambda c: (c.value,),
        }
        if call is None:
            raise self._fault(f"{subject} has no type")
        for index in arguments_of[type(call)](call):
            self._check_index(index, values, f"an argument of {subject}")
        if isinstance(call, KernelCall):
            self._check_index(
                call.op_index, plan.operators, f"the operator of {subject}"
            )
        elif isinstance(call, DelegateCall):
            self._check_index(
                call.delegate_index, plan.delegates, f"the delegate of {subject}"
            )
        elif isinstance(call, JumpFalseCall) and not 0 <= call.destination <= count:
            raise self._fault(
                f"{subject} jumps to instruction {call.destination}, but there are"
                f" {count} instructions"
            )

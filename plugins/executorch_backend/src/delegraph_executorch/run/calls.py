"""Find the outputs among the arguments of delegate calls.

The arguments are first the inputs, then the outputs. Files of delegraph store the number
of outputs. In other files, it follows from the order of writes.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..program.calling import delegate_outputs
from ..program.pte_tables import (
    Call,
    DelegateCall,
    ExecutionPlan,
    KernelCall,
    MoveCall,
    OptionalTensorList,
    Tensor,
    TensorList,
)
from ..serialize.reader import ProgramFile, blob_of
from ..serialize.xnnpack_blob import BACKEND_ID, blob_arguments


def split_delegate_calls(plan: ExecutionPlan) -> dict[int, int]:
    """Return the number of outputs of each delegate call, by its position."""
    stored = delegate_outputs(plan.container)
    if stored is None or len(stored) != len(plan.delegates):
        return _find_outputs(plan)
    counts = {}
    for position, call in enumerate(plan.calls):
        if isinstance(call, DelegateCall):
            counts[position] = stored[call.delegate_index]
    return counts


def split_calls_of(file: ProgramFile, plan: ExecutionPlan) -> dict[int, int]:
    """Return the number of outputs of each delegate call, by its position.

    If the file does not store the numbers, those in XNNPACK's blobs are used.
    """
    output_counts = split_delegate_calls(plan)
    if delegate_outputs(plan.container) is not None:
        return output_counts
    counts_in_blobs = []
    for delegate in plan.delegates:
        blob = blob_of(file, delegate) if delegate.id == BACKEND_ID else b""
        counts_in_blobs.append(blob_arguments(memoryview(blob)))
    for position, call in enumerate(plan.calls):
        if isinstance(call, DelegateCall):
            counts = counts_in_blobs[call.delegate_index]
            if counts is None:  # an unreadable blob, or another backend's
                continue
            inputs, outputs = counts
            if inputs + outputs == len(call.args):
                output_counts[position] = outputs
    return output_counts


def _find_outputs(plan: ExecutionPlan) -> dict[int, int]:
    """Return the number of outputs of each delegate call.

    The inputs end before the first argument that no earlier instruction has written.
    Jumps are ignored: the instructions count in the order of the file. A write to a
    tensor also counts for its views. The last argument is always an output, even if it
    reuses memory that was written.
    """
    written = {_memory_of(plan, index) for index in plan.inputs}
    known_lists: set[int] = set()
    outputs: dict[int, int] = {}
    for position, call in enumerate(plan.calls):
        if isinstance(call, DelegateCall):
            inputs = 0
            last = len(call.args) - 1
            while inputs < last and _is_written(plan, call.args[inputs], written):
                inputs += 1
            outputs[position] = len(call.args) - inputs
        # From now on, all arguments count as written: inputs were, outputs are now.
        for index in _arguments_of(call):
            written.add(_memory_of(plan, index))
            value = plan.values[index].value
            if not isinstance(value, (TensorList, OptionalTensorList)):
                continue
            # visit each list once: every instruction may have the same long list
            if index not in known_lists:
                known_lists.add(index)
                written |= {_memory_of(plan, element) for element in value.positions}
    return outputs


def _is_written(plan: ExecutionPlan, index: int, written: set[object]) -> bool:
    """Return whether a value is a tensor in ``written``, a number, or has data."""
    value = plan.values[index].value
    if not isinstance(value, Tensor) or value.data_buffer_idx:
        return True
    return _memory_of(plan, index) in written


def _memory_of(plan: ExecutionPlan, index: int) -> object:
    """Return a key that is equal for a tensor and its views."""
    value = plan.values[index].value
    if isinstance(value, Tensor) and value.allocation is not None:
        return value.allocation, value.scalar_type
    return index


def _arguments_of(call: Call | None) -> Sequence[int]:
    """Return the values that a call may write."""
    if isinstance(call, (KernelCall, DelegateCall)):
        return call.args
    return [call.move_to] if isinstance(call, MoveCall) else []

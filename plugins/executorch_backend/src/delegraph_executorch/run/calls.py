"""Find the outputs among the arguments of delegate calls.

Our files store their number. In other files, it follows from the order of writes.
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
    """Return the number of outputs of each delegate call, by its position.

    The outputs are the last arguments.
    """
    calls = _calls_of(plan)
    stated = delegate_outputs(plan.container)
    if stated is not None and len(stated) == len(plan.delegates):
        return {
            k: stated[c.delegate_index]
            for k, c in enumerate(calls)
            if isinstance(c, DelegateCall)
        }
    return _find_outputs(plan, calls)


def split_calls_of(file: ProgramFile, plan: ExecutionPlan) -> dict[int, int]:
    """Return the number of outputs of each delegate call, by its position.

    If the file has no numbers, those in the blobs are used.
    """
    split = split_delegate_calls(plan)
    if delegate_outputs(plan.container) is not None:
        return split
    known = []
    for delegate in plan.delegates:
        blob = blob_of(file, delegate) if delegate.id == BACKEND_ID else b""
        known.append(blob_arguments(memoryview(blob)))
    for position, call in enumerate(_calls_of(plan)):
        if isinstance(call, DelegateCall):
            inputs, outputs = known[call.delegate_index] or (0, 0)
            if inputs + outputs == len(call.args):
                split[position] = outputs
    return split


def _calls_of(plan: ExecutionPlan) -> list[Call | None]:
    calls = []
    for chain in plan.chains:
        calls += [instruction.call for instruction in chain.instructions]
    return calls


def _find_outputs(plan: ExecutionPlan, calls: list[Call | None]) -> dict[int, int]:
    """Return the number of outputs of each delegate call.

    An argument is an input if an instruction before the call writes it. Jumps back are
    ignored: any jump may not be taken, so all instructions before the call may run. A
    view has the same place in memory as its source, so a write to this place counts. Such
    an argument could also be an output that reuses the place. The last argument is
    always an output.
    """
    written = {_place(plan, index) for index in plan.inputs}
    opened: set[int] = set()
    outputs: dict[int, int] = {}
    for position, call in enumerate(calls):
        if isinstance(call, DelegateCall):
            inputs = 0
            last = len(call.args) - 1
            while inputs < last and _is_written(plan, call.args[inputs], written):
                inputs += 1
            outputs[position] = len(call.args) - inputs
        for index in _touched(call):
            written.add(_place(plan, index))
            value = plan.values[index].value
            if not isinstance(value, (TensorList, OptionalTensorList)):
                continue
            # Open each list once: every instruction may have the same long list.
            if index not in opened:
                opened.add(index)
                written |= {_place(plan, below) for below in value.positions}
    return outputs


def _is_written(plan: ExecutionPlan, index: int, written: set[object]) -> bool:
    value = plan.values[index].value
    if not isinstance(value, Tensor) or value.data_buffer_idx:
        return True
    return _place(plan, index) in written


def _place(plan: ExecutionPlan, index: int) -> object:
    value = plan.values[index].value
    if isinstance(value, Tensor) and value.allocation is not None:
        return value.allocation, value.scalar_type
    return index


def _touched(call: Call | None) -> Sequence[int]:
    if isinstance(call, (KernelCall, DelegateCall)):
        return call.args
    return [call.move_to] if isinstance(call, MoveCall) else []

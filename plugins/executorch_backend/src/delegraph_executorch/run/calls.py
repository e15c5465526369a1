"""Which arguments of a delegate call are outputs: our files say it, in others it
follows from what is written when.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..program.calling import delegate_outputs
from ..program.tables import (
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
    """Position of each delegate call -> how many of its last arguments are outputs."""
    calls = [i.call for chain in plan.chains for i in chain.instructions]
    stated = delegate_outputs(plan.container)
    if stated is not None and len(stated) == len(plan.delegates):
        return {
            k: stated[c.delegate_index]
            for k, c in enumerate(calls)
            if isinstance(c, DelegateCall)
        }
    return _find_outputs(plan, calls)


def split_calls_of(file: ProgramFile, plan: ExecutionPlan) -> dict[int, int]:
    """The same, with what the blobs themselves say where the file does not."""
    split = split_delegate_calls(plan)
    if delegate_outputs(plan.container) is not None:
        return split
    blobs = [
        memoryview(blob_of(file, d)) if d.id == BACKEND_ID else memoryview(b"")
        for d in plan.delegates
    ]
    known = [blob_arguments(blob) for blob in blobs]
    for place, call in enumerate(
        i.call for chain in plan.chains for i in chain.instructions
    ):
        if isinstance(call, DelegateCall):
            inputs, outputs = known[call.delegate_index] or (0, 0)
            if inputs + outputs == len(call.args):
                split[place] = outputs
    return split


def _find_outputs(plan: ExecutionPlan, calls: list[Call | None]) -> dict[int, int]:
    """An argument is an input if something wrote it on some way to the call, not
    counting ways back in a loop.

    A jump may be taken or not, so the longest way to a call leads over all instructions
    before it. A view shares its place in memory with what it is a view of, so whoever
    wrote that place wrote it. Such an argument could be an output, too, that reuses the
    place; the last argument certainly is one.
    """
    known = {_place(plan, index) for index in plan.inputs}
    opened: set[int] = set()
    outputs: dict[int, int] = {}
    for position, call in enumerate(calls):
        if isinstance(call, DelegateCall):
            unknown = (
                k
                for k, index in enumerate(call.args)
                if not _is_known(plan, index, known)
            )
            outputs[position] = (
                len(call.args) - next(unknown, len(call.args) - 1) if call.args else 0
            )
        for index in _touched(call):
            known.add(_place(plan, index))
            value = plan.values[index].value
            if (
                isinstance(value, (TensorList, OptionalTensorList))
                and index not in opened
            ):
                opened.add(index)  # a long list may be an argument of every instruction
                known |= {_place(plan, below) for below in value.positions}
    return outputs


def _is_known(plan: ExecutionPlan, index: int, known: set[object]) -> bool:
    value = plan.values[index].value
    return (
        not isinstance(value, Tensor)
        or bool(value.data_buffer_idx)
        or _place(plan, index) in known
    )


def _place(plan: ExecutionPlan, index: int) -> object:
    value = plan.values[index].value
    if isinstance(value, Tensor) and value.allocation is not None:
        return value.allocation, value.scalar_type
    return index


def _touched(call: Call | None) -> Sequence[int]:
    if isinstance(call, (KernelCall, DelegateCall)):
        return call.args
    return [call.move_to] if isinstance(call, MoveCall) else []

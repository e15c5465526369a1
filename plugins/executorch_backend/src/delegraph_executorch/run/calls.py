"""Which arguments of a delegate call are outputs: our files say it, in others it follows from what is written when."""

from __future__ import annotations

from ..program.calling import delegate_outputs
from ..program.tables import (
    Call,
    DelegateCall,
    ExecutionPlan,
    JumpFalseCall,
    KernelCall,
    MoveCall,
    OptionalTensorList,
    Tensor,
    TensorList,
)


def split_delegate_calls(plan: ExecutionPlan) -> dict[int, int]:
    """Position of each delegate call -> how many of its last arguments are outputs."""
    calls = [i.call for chain in plan.chains for i in chain.instructions]
    stated = delegate_outputs(plan.container)
    if stated is not None and len(stated) == len(plan.delegates):
        return {k: stated[c.delegate_index] for k, c in enumerate(calls) if isinstance(c, DelegateCall)}
    return _find_outputs(plan, calls)


def _find_outputs(plan: ExecutionPlan, calls: list[Call | None]) -> dict[int, int]:
    """An argument is an input if something wrote it on some way to the call, not counting ways back in a loop.

    A view shares its place in memory with what it is a view of, so whoever wrote that place wrote it. Such an argument
    could be an output, too, that reuses the place; the last argument certainly is one.
    """
    before = [set[object]() for _ in range(len(calls) + 1)]
    before[0] = {_place(plan, index) for index in plan.inputs}
    outputs: dict[int, int] = {}
    for position, call in enumerate(calls):
        known = set(before[position])
        if isinstance(call, DelegateCall):
            unknown = [k for k, index in enumerate(call.args) if not _is_known(plan, index, known)]
            outputs[position] = len(call.args) - min(unknown, default=len(call.args) - 1) if call.args else 0
        known |= {_place(plan, index) for index in _touched(plan, call)}
        if isinstance(call, JumpFalseCall) and call.destination > position:
            before[call.destination] |= known
        before[position + 1] |= known
    return outputs


def _is_known(plan: ExecutionPlan, index: int, known: set[object]) -> bool:
    value = plan.values[index].value
    return not isinstance(value, Tensor) or bool(value.data_buffer_idx) or _place(plan, index) in known


def _place(plan: ExecutionPlan, index: int) -> object:
    value = plan.values[index].value
    if isinstance(value, Tensor) and value.allocation is not None:
        return value.allocation, value.scalar_type
    return index


def _touched(plan: ExecutionPlan, call: Call | None) -> list[int]:
    if isinstance(call, (KernelCall, DelegateCall)):
        listed = [plan.values[index].value for index in call.args]
        below = [i for v in listed if isinstance(v, (TensorList, OptionalTensorList)) for i in v.items]
        return [*call.args, *below]
    return [call.move_to] if isinstance(call, MoveCall) else []

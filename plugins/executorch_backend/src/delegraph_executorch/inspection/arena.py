"""List which bytes of planned memory are in use at each instruction.

The bytes of a tensor are in use from the first instruction that names it to the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..program.pte_tables import (
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
from ..serialize.check import nbytes


@dataclass(frozen=True)
class Extent:
    """Bytes of memory, in use from instruction ``first`` to ``last``.

    ``values``: the tensors that have them, such as a tensor and its views.
    """

    memory: int
    offset: int
    size: int
    first: int
    last: int
    values: tuple[int, ...]


def live_extents(plan: ExecutionPlan) -> list[Extent]:
    """Return the extents of a method, by memory, offset and time.

    Tensors that use the same bytes without a break count as one. States exist all the
    time, inputs from the start, outputs to the end.
    """
    # (memory, offset, size) -> the uses of these bytes
    uses_of_bytes: dict[tuple[int, int, int], list[Extent]] = {}
    for position, (first, last) in _find_uses(plan).items():
        value = plan.values[position].value
        if isinstance(value, Tensor) and value.allocation is not None and nbytes(value):
            key = value.allocation.memory_id, value.allocation.offset, nbytes(value)
            extent = Extent(*key, first, last, (position,))
            uses_of_bytes.setdefault(key, []).append(extent)
    joined: list[Extent] = []
    for _, extents in sorted(uses_of_bytes.items()):
        joined += _join(sorted(extents, key=lambda e: (e.first, e.last, e.values)))
    return joined


def _join(extents: Sequence[Extent]) -> list[Extent]:
    """Join the uses of the same bytes that follow each other without a break."""
    joined: list[Extent] = []
    for extent in extents:
        before = joined[-1] if joined else None
        if before is not None and extent.first <= before.last + 1:
            last = max(before.last, extent.last)
            values = (*before.values, *extent.values)
            joined[-1] = replace(before, last=last, values=values)
        else:
            joined.append(extent)
    return joined


def _find_uses(plan: ExecutionPlan) -> dict[int, tuple[int, int]]:
    """Return for each value the first and last instruction that name it.

    An instruction that names a list also names its elements.
    """
    calls = plan.calls
    found: dict[int, tuple[int, int]] = dict.fromkeys(plan.inputs, (0, 0))
    for instruction, call in enumerate(calls):
        for position in _arguments_of(call):
            first, _ = found.get(position, (instruction, instruction))
            found[position] = first, instruction
    # visit each list once: every instruction may have the same long list
    for position, (first, last) in list(found.items()):
        value = plan.values[position].value
        if not isinstance(value, (TensorList, OptionalTensorList)):
            continue
        for element in value.positions:
            earliest, latest = found.get(element, (first, last))
            found[element] = min(first, earliest), max(last, latest)
    for position in plan.outputs:
        first, _ = found.get(position, (len(calls), 0))
        found[position] = first, len(calls)
    for position, entry in enumerate(plan.values):
        if (
            isinstance(entry.value, Tensor)
            and entry.value.allocation is not None
            and entry.value.data_buffer_idx
        ):
            found[position] = 0, len(calls)
    return found


def _arguments_of(call: Call | None) -> Sequence[int]:
    """Return the positions of the values that a call names."""
    if isinstance(call, (KernelCall, DelegateCall)):
        return call.args
    if isinstance(call, MoveCall):
        return [call.move_from, call.move_to]
    return [call.condition] if isinstance(call, JumpFalseCall) else []


def peak_bytes(extents: Sequence[Extent]) -> int:
    """Return the most bytes that are in use at one time."""
    starts = [(extent.first, 1, extent.size) for extent in extents]
    # at the same instruction, ends (0) sort before starts (1)
    ends = [(extent.last + 1, 0, -extent.size) for extent in extents]
    in_use = 0
    peak = 0
    for _, _, change in sorted(starts + ends):
        in_use += change
        peak = max(peak, in_use)
    return peak

"""Show planned memory over time.

A place is in use from the first instruction that names it to the last one.
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
    """A place in memory in use by a tensor or its views, from ``first`` to ``last``."""

    memory: int
    offset: int
    size: int
    first: int
    last: int
    values: tuple[int, ...]


def live_extents(plan: ExecutionPlan) -> list[Extent]:
    """Return the places of a method, by memory, offset and time.

    Tensors that use one place without a break count as one. State exists all the time,
    inputs from the start, outputs to the end.
    """
    uses = _uses(plan)
    places: dict[tuple[int, int, int], list[Extent]] = {}
    for position, (first, last) in uses.items():
        value = plan.values[position].value
        if isinstance(value, Tensor) and value.allocation is not None and nbytes(value):
            key = value.allocation.memory_id, value.allocation.offset, nbytes(value)
            extent = Extent(*key, first, last, (position,))
            places.setdefault(key, []).append(extent)
    joined: list[Extent] = []
    for _, extents in sorted(places.items()):
        joined += _join(sorted(extents, key=_order))
    return joined


def _order(extent: Extent) -> tuple[int, int, tuple[int, ...]]:
    return extent.first, extent.last, extent.values


def _join(extents: Sequence[Extent]) -> list[Extent]:
    """Join the uses of one place that follow each other without a break."""
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


def _uses(plan: ExecutionPlan) -> dict[int, tuple[int, int]]:
    """Return the first and last instruction that name each value.

    A value in a list is named with the list.
    """
    calls = [i.call for chain in plan.chains for i in chain.instructions]
    found: dict[int, tuple[int, int]] = dict.fromkeys(plan.inputs, (0, 0))
    for place, call in enumerate(calls):
        for position in _named(call):
            first, _ = found.get(position, (place, place))
            found[position] = first, place
    # Open each list once: every instruction may have the same long list.
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


def _named(call: Call | None) -> Sequence[int]:
    if isinstance(call, (KernelCall, DelegateCall)):
        return call.args
    if isinstance(call, MoveCall):
        return [call.move_from, call.move_to]
    return [call.condition] if isinstance(call, JumpFalseCall) else []


def peak_bytes(extents: Sequence[Extent]) -> int:
    """Return the most bytes that are in use at one time."""
    starts = [(extent.first, 1, extent.size) for extent in extents]
    ends = [(extent.last + 1, 0, -extent.size) for extent in extents]
    in_use = 0
    peak = 0
    for _, _, change in sorted(starts + ends):
        in_use += change
        peak = max(peak, in_use)
    return peak

"""Planned memory over time, as a file uses it: from the first instruction that names a
place to the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
from ..serialize.check import nbytes


@dataclass(frozen=True)
class Extent:
    """A place in memory that a tensor (or several views of it) has from ``first`` to
    ``last`` instruction.
    """

    memory: int
    offset: int
    size: int
    first: int
    last: int
    values: tuple[int, ...]


def live_extents(plan: ExecutionPlan) -> list[Extent]:
    """The places of a method, by memory, offset and time.

    Tensors at one place that are in use without a break between them count as one.
    State is there all the time, inputs from the start, outputs to the end.
    """
    uses = _uses(plan)
    places: dict[tuple[int, int, int], list[tuple[int, int, int]]] = {}
    for position, (first, last) in uses.items():
        value = plan.values[position].value
        if isinstance(value, Tensor) and value.allocation is not None and nbytes(value):
            key = value.allocation.memory_id, value.allocation.offset, nbytes(value)
            places.setdefault(key, []).append((first, last, position))
    extents: list[Extent] = []
    for (memory, offset, size), spans in sorted(places.items()):
        extents += _join(memory, offset, size, sorted(spans))
    return extents


def _join(
    memory: int, offset: int, size: int, spans: Sequence[tuple[int, int, int]]
) -> list[Extent]:
    joined: list[Extent] = []
    for first, last, position in spans:
        before = joined[-1] if joined else None
        if before is not None and first <= before.last + 1:
            values = (*before.values, position)
            joined[-1] = Extent(
                memory, offset, size, before.first, max(before.last, last), values
            )
        else:
            joined.append(Extent(memory, offset, size, first, last, (position,)))
    return joined


def _uses(plan: ExecutionPlan) -> dict[int, tuple[int, int]]:
    """Value -> the first and the last instruction that name it, by itself or in a list."""
    calls = [i.call for chain in plan.chains for i in chain.instructions]
    found: dict[int, tuple[int, int]] = dict.fromkeys(plan.inputs, (0, 0))
    for place, call in enumerate(calls):
        for position in _named(call):
            first, _ = found.get(position, (place, place))
            found[position] = first, place
    # once: a long list may be an argument of every instruction
    for position, (first, last) in list(found.items()):
        value = plan.values[position].value
        for below in (
            value.positions
            if isinstance(value, (TensorList, OptionalTensorList))
            else ()
        ):
            earliest, latest = found.get(below, (first, last))
            found[below] = min(first, earliest), max(last, latest)
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
    """The most bytes that are in use at one time."""
    events = sorted(
        [(e.first, 1, e.size) for e in extents]
        + [(e.last + 1, 0, -e.size) for e in extents]
    )
    most = now = 0
    for _, _, change in events:
        now += change
        most = max(most, now)
    return most

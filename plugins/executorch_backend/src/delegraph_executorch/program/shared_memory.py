"""Methods that keep buffers together, in a memory that they share."""

from __future__ import annotations

from collections.abc import Sequence

from .tables import ExecutionPlan, Tensor

MEMORY = 2
"""The memory of states in a program of several methods: ExecuTorch's runtime gives one
to all of them.
"""


def sharing_methods(plans: Sequence[ExecutionPlan]) -> list[str]:
    """The methods that find tensors where another one has some too.

    They state the same size of that memory. A method with memory of a device has all
    its memories alone, as in ExecuTorch's runtime.
    """
    places = {
        p.name: _places(p)
        for p in plans
        if len(p.memory_sizes) > MEMORY and not p.memory_devices
    }
    sizes = {p.name: p.memory_sizes[MEMORY] for p in plans if p.name in places}
    return [
        name
        for name, own in places.items()
        if any(
            own & other and sizes[name] == sizes[k]
            for k, other in places.items()
            if k != name
        )
    ]


def _places(plan: ExecutionPlan) -> set[tuple[int, tuple[int, ...], int]]:
    """First byte, sizes and element type of each tensor in that memory."""
    tensors = [e.value for e in plan.values if isinstance(e.value, Tensor)]
    placed = [
        t
        for t in tensors
        if t.allocation is not None and t.allocation.memory_id == MEMORY
    ]
    return {
        (t.allocation.offset, tuple(t.sizes), t.scalar_type)
        for t in placed
        if t.allocation is not None
    }

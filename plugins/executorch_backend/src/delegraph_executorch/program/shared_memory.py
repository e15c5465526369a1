"""Find the methods that share buffers in one memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .pte_tables import ExecutionPlan, Tensor

MEMORY = 2
"""The memory of written buffers in a program of several methods.

ExecuTorch's runtime gives one such memory to all methods.
"""


def sharing_methods(plans: Sequence[ExecutionPlan]) -> list[str]:
    """Return the methods that share a buffer with another method.

    Two methods share a buffer if each has a tensor of the same type, sizes and offset in
    memory ``MEMORY``, and both declare the same size of this memory. As in ExecuTorch's
    runtime, a method with memory of a device shares no buffer.
    """
    buffers = {}
    sizes = {}
    for plan in plans:
        if len(plan.memory_sizes) > MEMORY and not plan.memory_devices:
            buffers[plan.name] = _buffers(plan)
            sizes[plan.name] = plan.memory_sizes[MEMORY]
    found = []
    for name in buffers:
        for other in buffers:
            if other == name or sizes[name] != sizes[other]:
                continue
            if buffers[name] & buffers[other]:
                found.append(name)
                break
    return found


class _Buffer(NamedTuple):
    """A tensor in the memory of written buffers."""

    offset: int
    sizes: tuple[int, ...]
    scalar_type: int


def _buffers(plan: ExecutionPlan) -> set[_Buffer]:
    """Return the tensors of a method in memory ``MEMORY``, that of written buffers."""
    found = set()
    for entry in plan.values:
        tensor = entry.value
        if not isinstance(tensor, Tensor) or tensor.allocation is None:
            continue
        if tensor.allocation.memory_id == MEMORY:
            offset = tensor.allocation.offset
            found.add(_Buffer(offset, tuple(tensor.sizes), tensor.scalar_type))
    return found

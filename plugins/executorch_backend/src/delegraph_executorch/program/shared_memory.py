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

    Both have a tensor of the same type and sizes at the same offset of the memory, and
    declare the same size of the memory. A method with memory of a device shares none,
    as in ExecuTorch's runtime.
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
            is_same_size = other != name and sizes[name] == sizes[other]
            if is_same_size and buffers[name] & buffers[other]:
                found.append(name)
                break
    return found


class _Buffer(NamedTuple):
    """A tensor in the memory of written buffers."""

    offset: int
    sizes: tuple[int, ...]
    scalar_type: int


def _buffers(plan: ExecutionPlan) -> set[_Buffer]:
    """Return the tensors of a method in the memory of written buffers."""
    found = set()
    for entry in plan.values:
        tensor = entry.value
        if not isinstance(tensor, Tensor) or tensor.allocation is None:
            continue
        if tensor.allocation.memory_id == MEMORY:
            offset = tensor.allocation.offset
            found.add(_Buffer(offset, tuple(tensor.sizes), tensor.scalar_type))
    return found

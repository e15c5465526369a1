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
    """Return the methods that have a tensor at the same place as another method.

    They declare the same size of the memory. A method with memory of a device shares
    none, as in ExecuTorch's runtime.
    """
    places = {}
    sizes = {}
    for plan in plans:
        if len(plan.memory_sizes) > MEMORY and not plan.memory_devices:
            places[plan.name] = _places(plan)
            sizes[plan.name] = plan.memory_sizes[MEMORY]
    found = []
    for name in places:
        others = [other for other in places if other != name]
        if any(
            places[name] & places[other] and sizes[name] == sizes[other]
            for other in others
        ):
            found.append(name)
    return found


class _Place(NamedTuple):
    """A tensor in the memory of written buffers."""

    offset: int
    sizes: tuple[int, ...]
    scalar_type: int


def _places(plan: ExecutionPlan) -> set[_Place]:
    found = set()
    for entry in plan.values:
        tensor = entry.value
        if not isinstance(tensor, Tensor) or tensor.allocation is None:
            continue
        if tensor.allocation.memory_id == MEMORY:
            offset = tensor.allocation.offset
            found.add(_Place(offset, tuple(tensor.sizes), tensor.scalar_type))
    return found

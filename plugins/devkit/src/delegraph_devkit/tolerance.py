"""Results that are rounding errors: where large numbers cancel, nothing but noise is left to compare."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from delegraph.program.verify import Verification, compare
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

RUNS = 4
"""How often the inputs are moved; each time gives another noise."""
MARGIN = 8.0
"""How many times as large as the noise an error may be: a backend adds up in another order, and more than once."""


def is_noise(found: Verification, limit: float, program: ExportedProgram, inputs: Sequence[Any]) -> bool:
    """Whether eager's own results move as much when the inputs move by less than a unit in the last place.

    ``limit`` is the relative error up to which an output needs no such excuse.
    """
    moved = noise(program, inputs)
    return all(
        not o.mismatched and o.max_abs_error <= max(limit * o.max_abs_value, MARGIN * most)
        for o, most in zip(found.outputs, moved, strict=True)
    )


def noise(program: ExportedProgram, inputs: Sequence[Any]) -> list[float]:
    """The largest change of each output of eager, over some small movements of its inputs."""
    random = torch.Generator().manual_seed(0)
    wanted = _eager(program, inputs)
    runs = [compare(_eager(program, _moved(inputs, random)), wanted) for _ in range(RUNS)]
    return [max(o.max_abs_error for o in same) for same in zip(*(run.outputs for run in runs), strict=True)]


def _eager(program: ExportedProgram, inputs: Sequence[Any]) -> Any:
    with torch.no_grad():
        return program.module()(*copy.deepcopy(inputs))


def _moved(inputs: Sequence[Any], random: torch.Generator) -> Sequence[Any]:
    def move(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        by = torch.rand(value.shape, generator=random, dtype=torch.float64) * 2 - 1
        return (value.double() * (1 + by * torch.finfo(value.dtype).eps)).to(value.dtype)

    moved: Sequence[Any] = pytree.tree_map(move, tuple(inputs))
    return moved

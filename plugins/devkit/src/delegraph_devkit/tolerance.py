"""How far results may be from eager's, and which differences are rounding errors all
the same.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from delegraph import Verification
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

RUNS = 4
"""How many times the inputs are moved a little, which rounds differently each time."""
MARGIN = 8.0
"""An error may be this many times eager's own rounding error: a backend adds in another
order, and more than once.
"""


def tolerance_of(program: ExportedProgram, basis: float) -> float:
    """The larger of ``basis`` and four units of the coarsest float type in the program;
    0 for integers alone.
    """
    floats = [d for d in element_types(program) if d.is_floating_point]
    return max([basis, *(4 * torch.finfo(d).eps for d in floats)]) if floats else 0.0


def element_types(program: ExportedProgram) -> set[torch.dtype]:
    """The element types of all values of a program."""
    values = pytree.tree_leaves([n.meta.get("val") for n in program.graph.nodes])
    return {v.dtype for v in values if isinstance(v, torch.Tensor)}


def is_rounding_error(
    found: Verification, limit: float, program: ExportedProgram, inputs: Sequence[Any]
) -> bool:
    """Whether eager's own results move as much when the inputs move by less than a unit
    in the last place.

    Where large numbers cancel, nothing else is left to compare. ``limit`` is the
    relative error up to which an output needs no such excuse.
    """
    moved = rounding_errors(program, inputs)
    return all(
        not o.mismatched
        and o.max_abs_error <= max(limit * o.max_abs_value, MARGIN * most)
        for o, most in zip(found.outputs, moved, strict=True)
    )


def rounding_errors(program: ExportedProgram, inputs: Sequence[Any]) -> list[float]:
    """The largest change of each output of eager, over some small movements of its
    inputs.
    """
    random = torch.Generator().manual_seed(0)
    wanted = _run_eager(program, inputs)
    runs = [
        Verification.of(_run_eager(program, _move(inputs, random)), wanted)
        for _ in range(RUNS)
    ]
    return [
        max(o.max_abs_error for o in same)
        for same in zip(*(run.outputs for run in runs), strict=True)
    ]


def _run_eager(program: ExportedProgram, inputs: Sequence[Any]) -> Any:
    """Run a copy in eager, since the module of an exported program writes into the
    program's own buffers.
    """
    with torch.no_grad():
        return copy.deepcopy(program).module()(*copy.deepcopy(inputs))


def _move(inputs: Sequence[Any], random: torch.Generator) -> Sequence[Any]:
    def move(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        by = torch.rand(value.shape, generator=random, dtype=torch.float64) * 2 - 1
        return (value.double() * (1 + by * torch.finfo(value.dtype).eps)).to(
            value.dtype
        )

    moved: Sequence[Any] = pytree.tree_map(move, tuple(inputs))
    return moved

"""Decide whether results are close enough to eager's."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from delegraph import Verification
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

RUNS = 4
"""The number of runs with slightly moved inputs, which round differently."""
MARGIN = 8.0
"""The largest error, as a multiple of eager's own rounding error.

A backend adds in another order, and several times.
"""


def tolerance_of(program: ExportedProgram, basis: float) -> float:
    """Return the larger of ``basis`` and four units of the coarsest float type.

    A program without floats has the tolerance 0.
    """
    floats = [d for d in element_types(program) if d.is_floating_point]
    if not floats:
        return 0.0
    coarsest = max(torch.finfo(d).eps for d in floats)
    return max(basis, 4 * coarsest)


def element_types(program: ExportedProgram) -> set[torch.dtype]:
    """Return the element types of all values of a program."""
    values = pytree.tree_leaves([n.meta.get("val") for n in program.graph.nodes])
    return {v.dtype for v in values if isinstance(v, torch.Tensor)}


def is_rounding_error(
    found: Verification, limit: float, program: ExportedProgram, inputs: Sequence[Any]
) -> bool:
    """Return whether eager's results change as much for inputs that move by less than a
    unit in the last place.

    This happens if large numbers cancel. An output with a relative error of at most
    ``limit`` is accepted without this test.
    """
    rounding = rounding_errors(program, inputs)
    for output, error in zip(found.outputs, rounding, strict=True):
        accepted = max(limit * output.max_abs_value, MARGIN * error)
        # NaN is not accepted
        if output.mismatched or not output.max_abs_error <= accepted:
            return False
    return True


def rounding_errors(program: ExportedProgram, inputs: Sequence[Any]) -> list[float]:
    """Return the largest change of each output of eager for slightly moved inputs."""
    random = torch.Generator().manual_seed(0)
    wanted = _run_eager(program, inputs)
    errors: list[float] = []
    for _ in range(RUNS):
        found = Verification.of(_run_eager(program, _move(inputs, random)), wanted)
        changes = [output.max_abs_error for output in found.outputs]
        errors = [max(pair) for pair in zip(errors or changes, changes, strict=True)]
    return errors


def _run_eager(program: ExportedProgram, inputs: Sequence[Any]) -> Any:
    """Run a copy: the module of an exported program writes the program's buffers."""
    with torch.no_grad():
        return copy.deepcopy(program).module()(*copy.deepcopy(inputs))


def _move(inputs: Sequence[Any], random: torch.Generator) -> Sequence[Any]:
    """Return inputs whose floats differ by less than a unit in the last place."""

    def move(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        by = torch.rand(value.shape, generator=random, dtype=torch.float64) * 2 - 1
        factor = 1 + by * torch.finfo(value.dtype).eps
        return (value.double() * factor).to(value.dtype)

    moved: Sequence[Any] = pytree.tree_map(move, tuple(inputs))
    return moved

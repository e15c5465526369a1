"""The step ``normalize``: programs become private, functional, transformed copies.

Every call gets a debug handle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from delegraph_programs import normalize, user_inputs
from delegraph_programs.exported_program import results, why_not_valid
from delegraph_programs.fold_scalars import fold_scalars
from delegraph_programs.state_across_methods import mark_shared_state
from delegraph_programs.training_mode import training_note
from delegraph_programs.type_aliases import Transform
from torch.export import ExportedProgram
from torch.fx import Node

from ..delegates.lowered_module import Argument
from ..errors import ContractViolation
from ..report.values_as_text import pluralize


class Normalized(NamedTuple):
    """Normalized programs by method.

    ``programs``: method -> program. ``changed``: method -> how transforms changed the
    types of its inputs and outputs. ``notes``: lines for the report.
    """

    programs: dict[str, ExportedProgram]
    changed: dict[str, str]
    notes: list[str]


def normalize_programs(
    programs: Mapping[str, ExportedProgram],
    transforms: Mapping[str, Sequence[Transform]],
) -> Normalized:
    """Normalize each program, apply the user's transforms, and normalize the result.

    ``transforms``: those of each method. Raises ContractViolation for a transform that
    returns no valid program.
    """
    result = Normalized({}, {}, [])
    for method, exported in programs.items():
        # before ``normalize``, which replaces the batch norms that the note is about
        in_training = training_note(exported)
        notes = [in_training] if in_training else []
        program, new_notes = normalize(exported)
        notes += new_notes
        if transforms.get(method):
            before = _types_of_tensors(program)
            for transform in transforms[method]:
                program, new_notes = _transformed(program, transform)
                notes += new_notes
            if change := _first_change(before, _types_of_tensors(program)):
                # the results can no longer be compared with those of eager
                result.changed[method] = change
                # torch's conditions on input sizes are wrong if dimensions moved
                program._guards_code = []
        result.notes.extend(f"{method} was {note}" for note in notes)
        result.programs[method] = program
    result.notes.extend(mark_shared_state(result.programs))
    # ``fold_scalars`` must not read a number from a buffer that another method writes.
    # So ``mark_shared_state`` had to mark these buffers first.
    for method, program in result.programs.items():
        folded = fold_scalars(program)
        if note := _folded_note(folded.numbers, folded.conditions):
            result.notes.append(f"{method}: {note}")
    return result


def _transformed(
    program: ExportedProgram, transform: Transform
) -> tuple[ExportedProgram, list[str]]:
    """Return the normalized result of ``transform``, and notes about it.

    Raises ContractViolation if the result is no valid ExportedProgram.
    """
    name = f"transform {getattr(transform, '__name__', type(transform).__name__)}"
    changed = transform(program)
    if not isinstance(changed, ExportedProgram):
        text = f"{name} returned {type(changed).__name__}, not an ExportedProgram"
        raise ContractViolation("contract-violation", text)
    normal, notes = normalize(changed)
    if (why := why_not_valid(normal)) is not None:
        text = f"{name} returned a program that torch does not take for valid: {why}"
        raise ContractViolation("contract-violation", text)
    return normal, notes


def _types_of_tensors(program: ExportedProgram) -> dict[str, str]:
    """Return the types of inputs and outputs that are tensors, as text.

    The keys are ``input NAME`` and ``output POSITION``.
    """
    nodes = {f"input {node.name}": node for node in user_inputs(program)}
    for position, value in enumerate(results(program)):
        if isinstance(value, Node):
            nodes[f"output {position}"] = value
    return {
        name: Argument.of(name, node.meta["val"]).type
        for name, node in nodes.items()
        if isinstance(node.meta.get("val"), torch.Tensor)
    }


def _first_change(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Describe the first input or output whose type a transform changed.

    ``before`` and ``after``: name of an input or output -> type. Returns "" if no type
    changed. New inputs and outputs do not count.
    """
    for name, kind in after.items():
        old = before.get(name, kind)
        if old != kind:
            return (
                f"{name} is {kind} since a transform changed it, and {old} in eager"
                " PyTorch"
            )
    return ""


def _folded_note(numbers: int, conditions: int) -> str:
    """Describe the numbers and conditions that were read from constants.

    ``numbers`` and ``conditions`` are counts. Returns "" if both are 0.
    """
    facts = []
    if numbers:
        facts.append(f"{pluralize(numbers, 'number')} read from constants")
    if conditions:
        facts.append(f"{pluralize(conditions, 'condition')} on constants decided")
    return f"{' and '.join(facts)} while lowering" if facts else ""

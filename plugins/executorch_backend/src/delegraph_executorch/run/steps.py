"""Name the operators that the instructions of a file were made from.

The names come from the debug file that was saved with the program. Without one, they
are empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from delegraph.errors import FormatError
from delegraph.formats import Origin, Step

from ..debug import DebugFile
from ..program.pte_tables import DelegateCall, ExecutionPlan, JumpFalseCall, KernelCall
from ..serialize.check import check_program
from ..serialize.reader import ProgramFile


class StepsOfFile:
    """The instructions of a file's methods, each with the operators it was made from.

    Raises FormatError if the debug file is damaged or belongs to another program.
    """

    def __init__(self, path: Path, file: ProgramFile) -> None:
        check_program(file)
        debug_path = path.with_name(f"{path.stem}.debug.json")
        known: Mapping[str, Any] = {}
        if debug_path.is_file():
            known = DebugFile.read(debug_path).methods
        try:
            self._steps = {
                plan.name: _steps_of(plan, known.get(plan.name))
                for plan in file.program.plans
            }
        except (LookupError, TypeError, ValueError, AttributeError) as e:
            text = f"{debug_path} is not the debug file of {path.name}: {e}"
            hint = "save the program with debug_file=True, or delete the debug file"
            raise FormatError("format-invalid", text, hint=hint) from e

    def step(self, method: str, position: int) -> Step:
        """Return the instruction at a position of a method."""
        return self._steps[method][position]


def _steps_of(plan: ExecutionPlan, known: Mapping[str, Any] | None) -> Sequence[Step]:
    """Return the steps of a method.

    ``known`` is the entry of the method in the debug file. Raises ValueError if it does
    not fit the method.
    """
    calls = [call for call in plan.calls if call is not None]
    # without an entry, the operators of all calls are unknown
    handles: Sequence[Any] = [None] * len(calls)
    maps: Sequence[Mapping[str, Any]] = [{}] * len(plan.delegates)
    operators: Mapping[str, Any] = {}
    if known is not None:
        handles = known["instructions"]
        maps = known["delegates"]
        operators = known["operators"]
        if (len(handles), len(maps)) != (len(calls), len(plan.delegates)):
            raise ValueError(
                f"it lists {len(handles)} instructions and {len(maps)} delegates of"
                f" method {plan.name!r}, which has {len(calls)} and"
                f" {len(plan.delegates)}"
            )

    steps = []
    for call, handle in zip(calls, handles, strict=True):
        if isinstance(call, DelegateCall):
            number = call.delegate_index
            # debug identifier inside of the delegate -> its origin
            inside = {
                identifier: _origin(operators, debug_handles)
                for identifier, debug_handles in maps[number].items()
            }
            name = f"{plan.delegates[number].id} {number}"
            steps.append(Step(name, _origin(operators, [handle]), inside))
            continue
        if isinstance(call, KernelCall):
            name = str(plan.operators[call.op_index])
        elif isinstance(call, JumpFalseCall):
            name = "jump"
        else:  # a FreeCall counts as a move, too
            name = "move"
        steps.append(Step(name, _origin(operators, [handle])))
    return steps


def _origin(operators: Mapping[str, Any], debug_handles: Sequence[Any]) -> Origin:
    """Return the operators with these debug handles, and their source lines.

    ``operators`` has a row for each known handle. Unknown handles are left out.
    """
    # keys of a dictionary are a set that keeps the order
    names: dict[str, None] = {}
    lines: dict[str, None] = {}
    for handle in debug_handles:
        row = operators.get(str(handle), {"operator": "", "source": ""})
        if row["operator"]:
            names[str(row["operator"])] = None
        if row["source"]:
            lines[str(row["source"])] = None
    return Origin(tuple(names), tuple(lines))

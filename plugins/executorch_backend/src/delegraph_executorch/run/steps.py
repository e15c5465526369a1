"""What the instructions of a program file were made from, by the side file that was
saved with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from delegraph.errors import FormatError
from delegraph.formats import Origin, Step

from ..debug import DebugFile
from ..program.tables import DelegateCall, ExecutionPlan, JumpFalseCall, KernelCall
from ..serialize.check import check_program
from ..serialize.reader import ProgramFile


class StepsOfFile:
    """The steps of a file's methods. Raises FormatError if the side file is damaged or
    of another program.
    """

    def __init__(self, path: Path, file: ProgramFile) -> None:
        check_program(file)
        side = path.with_name(f"{path.stem}.debug.json")
        known = DebugFile.read(side).methods if side.is_file() else {}
        try:
            self._steps = {
                plan.name: _steps_of(plan, known.get(plan.name))
                for plan in file.program.plans
            }
        except (LookupError, TypeError, ValueError, AttributeError) as e:
            text = f"{side} is not the debug file of {path.name}: {e}"
            raise FormatError(
                "format-invalid",
                text,
                hint="save the program with debug_file=True, or delete it",
            ) from e

    def step(self, method: str, position: int) -> Step:
        """The instruction at a position of a method."""
        return self._steps[method][position]


def _steps_of(plan: ExecutionPlan, known: Mapping[str, Any] | None) -> Sequence[Step]:
    calls = [i.call for i in plan.chains[0].instructions if i.call is not None]
    handles: Sequence[Any] = [None] * len(calls)
    maps: Sequence[Mapping[str, Any]] = [{}] * len(plan.delegates)
    operators: Mapping[str, Any] = {}
    if known is not None:
        handles = known["instructions"]
        maps = known["delegates"]
        operators = known["operators"]
        if (len(handles), len(maps)) != (len(calls), len(plan.delegates)):
            raise ValueError(
                f"of {len(handles)} instructions and {len(maps)} delegates in"
                f" {plan.name!r}"
            )

    def origin(of: Sequence[Any]) -> Origin:
        """What the operators of these handles are."""
        rows = [operators[str(handle)] for handle in of if str(handle) in operators]
        names, lines = (
            [str(row[key]) for row in rows if row[key]]
            for key in ("operator", "source")
        )
        return Origin(tuple(dict.fromkeys(names)), tuple(dict.fromkeys(lines)))

    steps = []
    for call, handle in zip(calls, handles, strict=True):
        if isinstance(call, DelegateCall):
            number = call.delegate_index
            inside = {identifier: origin(of) for identifier, of in maps[number].items()}
            steps.append(
                Step(f"{plan.delegates[number].id} {number}", origin([handle]), inside)
            )
        elif isinstance(call, KernelCall):
            steps.append(Step(str(plan.operators[call.op_index]), origin([handle])))
        else:
            steps.append(
                Step(
                    "jump" if isinstance(call, JumpFalseCall) else "move",
                    origin([handle]),
                )
            )
    return steps

"""What is found out about a file without running it."""

from __future__ import annotations

from pathlib import Path

from delegraph.errors import FormatError, Unsupported
from delegraph.formats import Verdict

from ..memory.verify import find_conflicts
from ..serialize.reader import ProgramFile
from .arguments import check_arguments
from .calls import split_calls_of
from .stock import judge_loading


def judge(file: ProgramFile, path: Path) -> list[Verdict]:
    """What is said of a file that ``check_program`` took: of its arguments, its memory
    plan, and by ExecuTorch.

    The plan of a file with wrong arguments is not looked at, and native code does not
    see it.
    """
    try:
        check_arguments(file)
    except FormatError as e:
        whole = "it needs arguments that fit"
        refused = Verdict("arguments", False, e.message)
        return [
            refused,
            Verdict("memory plan", None, whole),
            Verdict("executorch.runtime", None, whole),
        ]
    accepted = Verdict("arguments", True, "every kernel gets what its schema takes")
    return [accepted, judge_plans(file), judge_loading(path)]


def judge_plans(file: ProgramFile) -> Verdict:
    """Whether no instruction of any method reads what another one has overwritten."""
    for plan in file.program.plans:
        try:
            conflicts = find_conflicts(plan, split_calls_of(file, plan))
        except Unsupported as e:
            return Verdict("memory plan", None, e.message)
        if conflicts:
            rest = f" ({len(conflicts)} in all)" if len(conflicts) > 1 else ""
            return Verdict(
                "memory plan", False, f"method {plan.name}: {conflicts[0]}{rest}"
            )
    return Verdict("memory plan", True, "every tensor is whole when it is read")

"""Judge a file without running it."""

from __future__ import annotations

from pathlib import Path

from delegraph.errors import FormatError, Unsupported
from delegraph.formats import Verdict

from ..memory.verify import find_conflicts
from ..serialize.reader import ProgramFile
from .arguments import check_arguments
from .calls import split_calls_of
from .stock import judge_loading


def judge_file(file: ProgramFile, path: Path) -> list[Verdict]:
    """Judge a file: its arguments, its memory plan, and ExecuTorch's runtime.

    The file must have passed ``check_program``. If arguments are wrong, nothing else is
    checked: native code must not get the file.
    """
    try:
        check_arguments(file)
    except FormatError as e:
        reason = "not checked, since arguments are wrong"
        return [
            Verdict("arguments", False, e.message),
            Verdict("memory plan", None, reason),
            Verdict("executorch.runtime", None, reason),
        ]
    accepted = Verdict("arguments", True, "all arguments fit their kernels' schemas")
    return [accepted, judge_plans(file), judge_loading(path)]


def judge_plans(file: ProgramFile) -> Verdict:
    """Return whether every instruction reads the values that were written last."""
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
    return Verdict("memory plan", True, "no tensor is overwritten before it is read")

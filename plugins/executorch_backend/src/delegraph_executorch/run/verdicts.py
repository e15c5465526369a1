"""What is found out about a file without running it."""

from __future__ import annotations

from delegraph.formats import Verdict

from ..memory.verify import find_conflicts
from ..serialize.reader import ProgramFile
from .calls import split_delegate_calls


def judge_plans(file: ProgramFile) -> Verdict:
    """Whether no instruction of any method reads what another one has overwritten."""
    for plan in file.program.plans:
        conflicts = find_conflicts(plan, split_delegate_calls(plan))
        if conflicts:
            rest = f" ({len(conflicts)} in all)" if len(conflicts) > 1 else ""
            return Verdict("memory plan", False, f"method {plan.name}: {conflicts[0]}{rest}")
    return Verdict("memory plan", True, "every tensor is whole when it is read")

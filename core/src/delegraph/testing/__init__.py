"""The conformance kit: the rules that every backend keeps, as checks that pytest or ``delegraph check`` runs.

Does not need pytest. A backend's own test-suite says:

    from delegraph.testing import BackendContract

    class TestMine(BackendContract):
        backend = "mine"
"""

from __future__ import annotations

from . import checks
from .check import (
    CHECKS,
    SCHEMA,
    Check,
    CheckFailed,
    CheckReport,
    CheckResult,
    CheckSkipped,
    Status,
    run_check,
    run_checks,
)
from .contract import BackendContract
from .programs import Program
from .subject import GATE, QUICK_GATE, TOLERANCE, Subject

__all__ = [
    "CHECKS",
    "GATE",
    "QUICK_GATE",
    "SCHEMA",
    "TOLERANCE",
    "BackendContract",
    "Check",
    "CheckFailed",
    "CheckReport",
    "CheckResult",
    "CheckSkipped",
    "Program",
    "Status",
    "Subject",
    "checks",
    "run_check",
    "run_checks",
]

"""Check that a backend keeps the rules of all backends, in pytest or with ``delegraph
check``.

pytest is optional. The test suite of a backend derives a class:

    from delegraph_devkit import BackendContract

    class TestMine(BackendContract):
        backend = "mine"
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import checks
    from .backend_under_test import BackendUnderTest
    from .check import CHECKS, SCHEMA, Check, CheckReport, run_check, run_checks
    from .check_result import CheckResult, Status
    from .configured_backend import GATE, QUICK_GATE, TOLERANCE
    from .contract import BackendContract
    from .failures import CheckFailed, CheckSkipped
    from .programs import Program

__all__ = [
    "CHECKS",
    "GATE",
    "QUICK_GATE",
    "SCHEMA",
    "TOLERANCE",
    "BackendContract",
    "BackendUnderTest",
    "Check",
    "CheckFailed",
    "CheckReport",
    "CheckResult",
    "CheckSkipped",
    "Program",
    "Status",
    "checks",
    "run_check",
    "run_checks",
]

_MODULES = (
    "backend_under_test",
    "check",
    "check_result",
    "configured_backend",
    "contract",
    "failures",
    "programs",
)


def __getattr__(name: str) -> Any:
    """Import the kit at the first use of a name: commands start without torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    checks = import_module(".checks", __name__)
    if name == "checks":
        return checks

    for module in _MODULES:
        home = import_module(f".{module}", __name__)
        if hasattr(home, name):
            return getattr(home, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

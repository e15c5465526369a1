"""Define checks, run them, and show their results."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from delegraph.errors import DelegraphError

from .check_result import CheckResult, Figures, Status
from .failures import CheckFailed, CheckSkipped
from .reproduce import verifying

if TYPE_CHECKING:
    from .backend_under_test import BackendUnderTest

SCHEMA = "delegraph.check/1"


@dataclass(frozen=True)
class Check:
    """One rule: ``run(backend)`` returns figures, or raises CheckFailed or
    CheckSkipped.
    """

    name: str
    purpose: str
    function: Callable[[BackendUnderTest], Figures]

    def run(self, backend: BackendUnderTest) -> Figures:
        """Return the figures of the check.

        Raises CheckSkipped, or CheckFailed with Python that repeats the failure.
        """
        try:
            return self.function(backend)
        except CheckFailed as e:
            e.ending = e.ending or verifying(backend)
            raise


CHECKS: dict[str, Check] = {}
"""Every check by name, in the order in which they are run."""


def check(
    function: Callable[[BackendUnderTest], Figures],
) -> Callable[[BackendUnderTest], Figures]:
    """Register a check under the function's name.

    The function's docstring is the requirement that it tests, not the action: listings
    and pytest show it.
    """
    name = function.__name__
    CHECKS[name] = Check(name, " ".join((function.__doc__ or "").split()), function)
    return function


@dataclass(frozen=True)
class CheckReport:
    """All results for one backend."""

    backend: str
    results: tuple[CheckResult, ...]

    @property
    def passed(self) -> bool:
        """Return whether no check failed; skipped checks do not count."""
        return all(r.status is not Status.FAILED for r in self.results)

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary of plain values; its ``schema`` names the form."""
        rows = [r.to_json() for r in self.results]
        return {
            "schema": SCHEMA,
            "backend": self.backend,
            "passed": self.passed,
            "checks": rows,
        }

    def __str__(self) -> str:
        width = max((len(r.name) for r in self.results), default=0)
        rows = [
            f"{r.name:{width}}  {r.status:7}  {r.summary()}".rstrip()
            for r in self.results
        ]
        warned = [
            f"\n{r.name}: warning: {text}" for r in self.results for text in r.warnings
        ]
        failures = [
            f"\n{r.name} failed: {r.message}"
            for r in self.results
            if r.status is Status.FAILED
        ]
        return "\n".join([*rows, *warned, *failures, "", self._verdict()])

    def _verdict(self) -> str:
        counted = Counter(r.status for r in self.results)
        counts = [f"{counted[status]} {status}" for status in Status if counted[status]]
        verdict = f"{self.backend}: {', '.join(counts)}"
        for result in self.results:
            figures = result.figures
            if result.name == "accepted_compiles" and figures:
                operators = (
                    f"{figures['operators_accepted']} of {figures['operators']}"
                    " operators"
                )
                return (
                    f"{verdict}; {figures['programs']} programs, {operators} delegated"
                    " at least once"
                )
        return verdict


def run_check(one: Check, backend: BackendUnderTest) -> CheckResult:
    """Run ``one`` and return its result; an unexpected error is a failure, too."""
    start = time.perf_counter()
    before = len(backend.warnings)

    def ended(
        status: Status, message: str = "", figures: Figures | None = None
    ) -> CheckResult:
        warned = tuple(backend.warnings[before:])
        return CheckResult(
            one.name,
            status,
            message,
            figures or {},
            time.perf_counter() - start,
            warned,
        )

    try:
        return ended(Status.PASSED, figures=one.run(backend))
    except CheckSkipped as e:
        return ended(Status.SKIPPED, str(e))
    except CheckFailed as e:
        return ended(Status.FAILED, str(e))
    except (Exception, SystemExit) as e:
        text = e.message if isinstance(e, DelegraphError) else str(e)
        return ended(
            Status.FAILED,
            f"the check raised {type(e).__name__}: {text}",
        )


def run_checks(
    backend: BackendUnderTest,
    names: Sequence[str] = (),
    around: Callable[[str], AbstractContextManager[None]] | None = None,
    ended: Callable[[CheckResult], None] = lambda result: None,
) -> CheckReport:
    """Run all checks, or those of ``names``, each inside the context manager
    ``around(name)``.

    ``ended`` is called with each result at once.
    """
    results = []
    for name in names or CHECKS:
        with around(name) if around is not None else nullcontext():
            result = run_check(CHECKS[name], backend)
        results.append(result)
        ended(result)
    return CheckReport(backend.name, tuple(results))

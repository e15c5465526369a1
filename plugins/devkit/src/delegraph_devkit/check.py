"""What a check is, what it ends with, and how a result is shown."""

from __future__ import annotations

import time
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
        """The check's figures.

        Raises CheckFailed with all that it takes to see the failure again, or
        CheckSkipped.
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
    """Register a check under the function's name; its docstring is what the listing and
    pytest show.
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
        """Whether no check failed; skipped ones do not count."""
        return all(r.status is not Status.FAILED for r in self.results)

    def to_json(self) -> dict[str, Any]:
        """As a dictionary of plain values; the form is stable within its ``schema``."""
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
        count = {s: sum(r.status is s for r in self.results) for s in Status}
        verdict = f"{self.backend}: " + ", ".join(
            f"{n} {status}" for status, n in count.items() if n
        )
        reached = next(
            (
                r.figures
                for r in self.results
                if r.name == "accepted_compiles" and r.figures
            ),
            None,
        )
        if reached is None:
            return verdict
        taken = f"{reached['operators_accepted']} of {reached['operators']} operators"
        return (
            f"{verdict}; {reached['programs']} programs, {taken} delegated at least"
            " once"
        )


def run_check(one: Check, backend: BackendUnderTest) -> CheckResult:
    """Run ``one`` and catch how it ends; an error that no check expects is a failure
    too.
    """
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
            f"the check could not be carried out: {type(e).__name__}: {text}",
        )


def run_checks(
    backend: BackendUnderTest,
    names: Sequence[str] = (),
    around: Callable[[str], AbstractContextManager[None]] | None = None,
    ended: Callable[[CheckResult], None] = lambda result: None,
) -> CheckReport:
    """Run all checks, or those of ``names``, each inside the context manager
    ``around(name)``.

    ``ended`` is called with each result as soon as it is there.
    """
    results = []
    for name in names or CHECKS:
        with around(name) if around is not None else nullcontext():
            result = run_check(CHECKS[name], backend)
        results.append(result)
        ended(result)
    return CheckReport(backend.name, tuple(results))

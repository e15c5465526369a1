"""Report the passed and failed checks of a lowering as JUnit XML, for CI."""

from __future__ import annotations

from delegraph.report import LoweringResult, ReportFormat

from .junit_xml import Case, junit_xml


class JUnitReport(ReportFormat):
    """``.junit.xml``: a test suite for the MODEL: whether it was lowered, and each
    gate.
    """

    tells_failures = True

    @staticmethod
    def render(result: LoweringResult) -> bytes:
        ended = (
            result.error
            if result.error is not None and result.error not in result.gates.values()
            else None
        )
        cases = []
        for gate, error in {"lower": ended, **result.gates}.items():
            seconds = result.seconds if gate == "lower" else 0.0
            if error is None:
                cases.append(Case(result.model, gate, seconds))
            else:
                cases.append(Case(result.model, gate, seconds, str(error), error.code))
        return junit_xml("delegraph lower", cases)

"""Report the passed and failed checks of a lowering as JUnit XML, for CI."""

from __future__ import annotations

from delegraph.report import LoweringResult, ReportFormat

from .junit_xml import Case, junit_xml


class JUnitReport(ReportFormat):
    """``.junit.xml``: a suite with the test "lower", and a test for each gate."""

    tells_failures = True

    @staticmethod
    def render(result: LoweringResult) -> bytes:
        # the error of a gate fails the test of the gate, not the test "lower"
        lowering_error = result.error
        if lowering_error in result.gates.values():
            lowering_error = None
        cases = []
        for gate, error in {"lower": lowering_error, **result.gates}.items():
            seconds = result.seconds if gate == "lower" else 0.0
            if error is None:
                cases.append(Case(result.model, gate, seconds))
            else:
                cases.append(Case(result.model, gate, seconds, str(error), error.code))
        return junit_xml("delegraph lower", cases)

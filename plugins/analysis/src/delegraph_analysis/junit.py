"""What passed and failed, as the JUnit XML that CI systems read."""

from __future__ import annotations

from xml.etree import ElementTree as xml

from delegraph.io.escape import printable
from delegraph.reports import LoweringResult, ReportFormat


class JUnitReport(ReportFormat):
    """``.junit.xml``: a test suite for the MODEL: whether it was lowered, and each gate."""

    tells_failures = True

    @staticmethod
    def render(result: LoweringResult) -> bytes:
        ended = result.error if result.error is not None and result.error not in result.gates.values() else None
        cases = {"lower": ended, **result.gates}
        failed = sum(error is not None for error in cases.values())
        root = xml.Element("testsuites", name="delegraph lower")
        name = printable(result.model)
        suite = xml.SubElement(root, "testsuite", name=name, time=f"{result.seconds:.3f}")
        suite.attrib |= {"tests": str(len(cases)), "failures": str(failed), "errors": "0", "skipped": "0"}
        for gate, error in cases.items():
            case = xml.SubElement(suite, "testcase", classname=name, name=gate, time="0")
            if error is not None:
                text = printable(str(error), kept="\n")
                xml.SubElement(case, "failure", type=error.code, message=text.partition("\n")[0]).text = text
        xml.indent(root)
        written: bytes = xml.tostring(root, encoding="utf-8", xml_declaration=True)
        return written

"""Test suites as the JUnit XML that CI systems read. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from xml.etree import ElementTree as xml

from delegraph.io.escape_for_terminal import printable


class Case(NamedTuple):
    """A test of a suite.

    ``failure`` is the text of the failure, of the kind ``kind``; None without one.
    """

    suite: str
    name: str
    seconds: float = 0.0
    failure: str | None = None
    kind: str = "worse"


def junit_xml(title: str, cases: Sequence[Case]) -> bytes:
    """Return a file with the suites of these cases, in the order of their first cases."""
    root = xml.Element("testsuites", name=title)
    for name in dict.fromkeys(case.suite for case in cases):
        own = [case for case in cases if case.suite == name]
        failed = sum(case.failure is not None for case in own)
        shown = printable(name)
        suite = xml.SubElement(
            root,
            "testsuite",
            name=shown,
            time=f"{sum(case.seconds for case in own):.3f}",
        )
        suite.attrib |= {
            "tests": str(len(own)),
            "failures": str(failed),
            "errors": "0",
            "skipped": "0",
        }
        for case in own:
            test = {
                "classname": shown,
                "name": printable(case.name),
                "time": f"{case.seconds:.3f}",
            }
            element = xml.SubElement(suite, "testcase", test)
            if case.failure is not None:
                text = printable(case.failure, kept="\n")
                xml.SubElement(
                    element, "failure", type=case.kind, message=text.partition("\n")[0]
                ).text = text
    xml.indent(root)
    written: bytes = xml.tostring(root, encoding="utf-8", xml_declaration=True)
    return written

"""Test suites as the JUnit XML that CI systems read. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from xml.etree import ElementTree as xml

from delegraph.io.escape_for_terminal import printable


class Case(NamedTuple):
    """A test of a suite.

    ``failure`` is the text of its failure; None if it passed. ``kind``: the kind of the
    failure, such as an error code.
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
        in_suite = [case for case in cases if case.suite == name]
        suite_facts = {
            "name": printable(name),
            "time": f"{sum(case.seconds for case in in_suite):.3f}",
            "tests": str(len(in_suite)),
            "failures": str(sum(case.failure is not None for case in in_suite)),
            "errors": "0",
            "skipped": "0",
        }
        suite = xml.SubElement(root, "testsuite", suite_facts)
        for case in in_suite:
            facts = {
                "classname": printable(name),
                "name": printable(case.name),
                "time": f"{case.seconds:.3f}",
            }
            test = xml.SubElement(suite, "testcase", facts)
            if case.failure is not None:
                text = printable(case.failure, kept="\n")
                first_line = text.partition("\n")[0]
                failure = xml.SubElement(
                    test, "failure", type=case.kind, message=first_line
                )
                failure.text = text
    xml.indent(root)
    written: bytes = xml.tostring(root, encoding="utf-8", xml_declaration=True)
    return written

"""``--refresh-golden`` writes golden texts. Without it they are only compared."""

from __future__ import annotations

from pathlib import Path

pytest_plugins = ("pytester",)
CONFTEST = Path(__file__).parents[1] / "conftest.py"


def test_texts_are_compared_and_refreshed(pytester):
    pytester.makeconftest(CONFTEST.read_text())

    def outcome(text, *options):
        pytester.makepyfile(f"def test_it(golden):\n    golden('greeting', {text!r})")
        return pytester.runpytest_inprocess("-q", "-p", "no:cacheprovider", *options)

    file = pytester.path / "golden" / "greeting.txt"
    outcome("good day\n").assert_outcomes(failed=1)
    assert not file.exists()
    outcome("good day\n", "--refresh-golden").assert_outcomes(passed=1)
    outcome("good day\n").assert_outcomes(passed=1)

    changed = outcome("good evening\n")
    changed.assert_outcomes(failed=1)

    changed.stdout.fnmatch_lines(["*- good day*", "*+ good evening*"])
    assert file.read_text() == "good day\n"
    outcome("good evening\n", "--refresh-golden").assert_outcomes(passed=1)
    assert file.read_text() == "good evening\n"

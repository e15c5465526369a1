"""Runs ExecuTorch's own tests against delegraph, in a process of its own: ``python -m
... NAME...``.

A NAME is a module below ``executorch``, or a test in it: ``exir.emit.test.test_emit``
or ``exir.emit.test.test_emit.TestEmit.test_constants_with_view``. Each test gives a
line of JSON: its name, what came of it (pass, fail, error, skip), and the end of the
traceback; with ``--verbose`` the whole one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import traceback
import unittest
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[5]


def run_tests(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """What came of each test, and why; a test that ends the process ``died``, and the
    others run in another one.
    """
    found: dict[str, tuple[str, str]] = {}
    while True:
        command = [sys.executable, "-m", __name__, *names, "--skip", ",".join(found)]
        completed = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
        lines = [json.loads(line) for line in completed.stdout.splitlines()]
        started = {
            line["start"]: ("died", completed.stderr[-500:])
            for line in lines
            if "start" in line
        }
        found |= started | {
            line["test"]: (line["outcome"], line["why"])
            for line in lines
            if "test" in line
        }
        if completed.returncode == 0:
            return found
        if not started:
            raise RuntimeError(f"no test started: {completed.stderr[-2000:]}")


def main() -> None:
    """Bind names, run tests, write lines to the real standard output; what tests print
    goes to standard error.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="+")
    parser.add_argument("--verbose", action="store_true", help="whole tracebacks")
    parser.add_argument(
        "--theirs", action="store_true", help="run against ExecuTorch itself"
    )
    parser.add_argument(
        "--skip", default="", help="names of tests not to run, with commas between"
    )
    args = parser.parse_args()
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    if not args.theirs:
        os.environ["DELEGRAPH_PLUGINS"] = (
            # a backend of delegraph-demo has the name of one of ExecuTorch's
            "executorch"
        )
        from .names import install

        install()
    skipped = set(args.skip.split(","))
    for name in args.names:
        for test in _tests(_load(name)):
            # a module that cannot be imported is one test, which unittest calls
            # otherwise
            short = (
                name
                if test.id().startswith("unittest.loader.")
                else test.id().removeprefix("executorch.")
            )
            if short not in skipped:
                print(json.dumps({"start": short}), file=lines)
                print(
                    json.dumps({"test": short, **_run(test, args.verbose)}), file=lines
                )


def _load(name: str) -> Any:
    """The tests of a module, or one that fails as its import does."""
    try:
        return unittest.defaultTestLoader.loadTestsFromName(f"executorch.{name}")
    except Exception:
        # what a module does when it is imported is a part of what is tested
        why = traceback.format_exc()

        class ImportFails(unittest.TestCase):
            def id(self) -> str:
                return f"executorch.{name}"

            def runTest(self) -> None:
                self.fail(why)

        return [ImportFails()]


def _tests(suite: Any) -> Iterator[unittest.TestCase]:
    for item in suite:
        yield from _tests(item) if isinstance(item, unittest.TestSuite) else [item]


def _run(test: unittest.TestCase, verbose: bool) -> dict[str, str]:
    result = _Result(verbose)
    with contextlib.redirect_stdout(sys.stderr):
        test.run(result)
    return {"outcome": result.outcome, "why": result.why}


class _Result(unittest.TestResult):
    def __init__(self, verbose: bool) -> None:
        super().__init__()
        self.outcome = "pass"
        self.why = ""
        self.verbose = verbose

    def addSkip(self, test: Any, reason: str) -> None:
        self.outcome = "skip"
        self.why = reason

    def addError(self, test: Any, err: Any) -> None:
        self._keep("error", err)

    def addFailure(self, test: Any, err: Any) -> None:
        self._keep("fail", err)

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            self._keep("fail", err)

    def _keep(self, outcome: str, err: Any) -> None:
        if self.outcome == "pass":
            lines = traceback.format_exception(*err)
            end = traceback.extract_tb(err[2])[-1]
            last = (
                f"{lines[-1].strip()[:400]}"
                f" [{os.path.basename(end.filename)}:{end.lineno}]"
            )
            self.outcome, self.why = outcome, "".join(lines) if self.verbose else last


if __name__ == "__main__":
    main()

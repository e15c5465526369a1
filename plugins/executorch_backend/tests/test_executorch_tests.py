"""ExecuTorch's own tests run against delegraph and have the recorded results.

The tests are in ExecuTorch's wheel. Its module names are bound to delegraph's modules
(``support/executorch_tests/names.py``). Files are real: ExecuTorch's own deserializer
and runtime read them. From the root of the repository, this runs one test with its
whole traceback:

    python -m plugins.executorch_backend.tests.support.executorch_tests.run --verbose
        NAME

NAME is a test, such as ``exir.emit.test.test_emit.TestEmit.test_constants_with_view``,
or a module. With ``--theirs``, the test runs against ExecuTorch itself.

``executorch_tests.txt`` has one line for each test, which begins with its outcome:

- ``pass``: it passes.
- ``differs``: delegraph differs on purpose, as docs/compatibility.md explains.
- ``internal``: it needs internals of ExecuTorch, or files that its wheel lacks.
- ``gap``: delegraph should be mended.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from .support.executorch_tests.run import run_tests

TABLE = Path(__file__).with_name("executorch_tests.txt")
SUITES = {
    "delegation": [
        "exir.backend.test.demos.rpc.test_rpc",
        "exir.backend.test.demos.test_delegate_aten_mode",
        *(
            f"exir.backend.test.test_{name}"
            for name in (
                "backend_with_named_data_map",
                "backends_lifted",
                "backends_nested",
                "compatibility",
                "debug_handle_map",
                "delegate_map_builder",
                "graph_partition",
                "group_partitioner",
                "lowered_backend_module",
                "partitioner",
                "passes",
                "to_backend_multi_method",
                "utils",
            )
        ),
        "exir._serialize.test.test_named_data_store",
        "exir.program.test.test_fake_program",
        "exir.program.test.test_program",
        "exir.tests.test_delegate",
        "exir.tests.test_joint_graph",
        "exir.tests.test_partitioner_pre_decomposition",
        "exir.tests.test_propagate_device_pass",
    ],
    "emission": ["exir.emit.test.test_emit"],
}


class Expected(NamedTuple):
    """A line of the table: the outcome of a test, and the reason unless it passes."""

    outcome: str
    reason: str


def expected_outcomes(modules: list[str]) -> dict[str, Expected]:
    """Return the lines of the table about tests of these modules, by test."""
    expected = {}
    for line in TABLE.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        outcome, _, rest = line.partition(" ")
        name, _, reason = rest.partition(": ")
        if name.startswith(tuple(modules)):
            expected[name] = Expected(outcome, reason)
    return expected


def differences(
    expected: dict[str, Expected], actual: dict[str, tuple[str, str]]
) -> list[str]:
    """Return a line for each test whose result is not the recorded one."""
    lines = []
    for name, (outcome, message) in actual.items():
        if name not in expected:
            lines.append(f"{name}: {outcome}, and it is not in the table; {message}")
            continue
        recorded = expected[name].outcome
        if (outcome == "pass") != (recorded == "pass"):
            lines.append(f"{name}: {outcome}, and the table has {recorded}; {message}")
    for name in sorted(expected.keys() - actual.keys()):
        lines.append(f"{name}: it did not run")
    return lines


@pytest.mark.slow
@pytest.mark.parametrize("suite", SUITES)
def test_executorchs_own_tests_have_the_recorded_results(suite: str) -> None:
    pytest.importorskip(
        "executorch",
        reason="the stock runtime is not installed (pip install executorch==1.5.1)",
    )

    changed = differences(expected_outcomes(SUITES[suite]), run_tests(SUITES[suite]))

    assert not changed, "\n".join(changed)


def test_all_recorded_outcomes_are_known() -> None:
    outcomes = {row.outcome for row in expected_outcomes(["exir."]).values()}

    assert outcomes <= {"pass", "differs", "internal", "gap"}


def test_each_recorded_difference_has_a_reason() -> None:
    for name, row in expected_outcomes(["exir."]).items():
        assert row.outcome == "pass" or row.reason, name

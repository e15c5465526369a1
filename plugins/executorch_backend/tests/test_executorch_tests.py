"""ExecuTorch's own tests, which its wheel has, against delegraph: its module names are
bound to ours.

``support/executorch_tests/names.py`` says what is bound; files are real ones, which
ExecuTorch's own deserializer and runtime read. One test, with its whole traceback, from
the root of the repository:

    python -m plugins.executorch_backend.tests.support.executorch_tests.run --verbose
        NAME

where NAME is ``exir.emit.test.test_emit.TestEmit.test_constants_with_view``, or a
module; ``--theirs`` runs it against ExecuTorch itself. What is expected of each test
stands in ``executorch_tests.txt``: ``pass``; ``differs``, where delegraph behaves
otherwise on purpose (docs/compatibility.md says in what); ``internal``, which asks for
ExecuTorch's own insides or for what its wheel lacks; ``gap``, which is to be mended.
"""

from __future__ import annotations

from pathlib import Path

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


def expected_outcomes(modules: list[str]) -> dict[str, tuple[str, str]]:
    """Test -> what is expected of it, and why, by the table."""
    found = {}
    for line in TABLE.read_text().splitlines():
        kind, _, rest = line.partition(" ")
        name, _, why = rest.partition(": ")
        if (
            line
            and not line.startswith("#")
            and any(name.startswith(module) for module in modules)
        ):
            found[name] = (kind, why)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("suite", SUITES)
def test_executorchs_own_tests_have_the_recorded_results(suite: str) -> None:
    pytest.importorskip(
        "executorch",
        reason="the stock runtime is not installed (pip install executorch==1.5.1)",
    )
    expected = expected_outcomes(SUITES[suite])
    actual = run_tests(SUITES[suite])
    changed = [
        f"{name}: {outcome}, and the table says {expected.get(name, ('nothing', ''))[0]};"
        f" {why}"
        for name, (outcome, why) in actual.items()
        if (outcome == "pass") != (expected.get(name, ("",))[0] == "pass")
        or name not in expected
    ]
    missing = sorted(expected.keys() - actual.keys())
    assert not changed, "\n".join(
        [*changed, *(f"{name}: it did not run" for name in missing)]
    )
    assert not missing, "\n".join(
        [*changed, *(f"{name}: it did not run" for name in missing)]
    )


def test_each_difference_has_a_reason() -> None:
    rows = expected_outcomes(["exir."])
    assert {kind for kind, _ in rows.values()} <= {"pass", "differs", "internal", "gap"}
    assert [
        name for name, (kind, why) in rows.items() if kind != "pass" and not why
    ] == []

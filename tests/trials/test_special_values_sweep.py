"""Operators with special values on each backend, in the process and from files, against
eager PyTorch.

``benchmarks/special_values.py`` has the cases. ``known_differences.json`` has the
results that differ, each with its reason: a row that no longer differs is an error too.
``-k tosa`` runs the sweep of one backend. To take out rows that no longer differ, run
``python benchmarks/special_values.py --forget``. New rows need a reason and a cause.
"""

import sys
from pathlib import Path

import pytest

FOLDER = str(Path(__file__).parents[2] / "benchmarks")
sys.path.insert(0, FOLDER)
import special_values  # noqa: E402

sys.path.remove(FOLDER)


@pytest.mark.slow
@pytest.mark.parametrize("backend", special_values.ROUTES)
def test_each_result_equals_eager_is_refused_or_is_listed(backend):
    results = list(
        special_values.sweep(backend, parts=special_values.SHARES.get(backend, 1))
    )
    different = {
        result.key: result.why for result in results if result.kind == "different"
    }
    known = special_values.known_differences(backend)

    assert len(results) > 100
    assert {key: why for key, why in different.items() if key not in known} == {}, (
        "new differences"
    )
    assert {key: why for key, why in known.items() if key not in different} == {}, (
        "they no longer differ: remove them"
    )


@pytest.mark.parametrize("backend", ["host", "tosa"])
def test_a_few_operators_have_the_differences_of_the_list(backend):
    operators = ["sign", "bitwise_left_shift"]
    results = list(special_values.sweep(backend, operators))
    different = {result.key for result in results if result.kind == "different"}
    assert results
    assert different <= special_values.known_differences(backend).keys()


def test_each_known_difference_has_a_reason_and_a_cause():
    rows = special_values.json.loads(special_values.KNOWN.read_text("utf-8"))
    assert all(row["why"] and row["cause"] and row["cases"] for row in rows)
    causes = ("issue ", "PyTorch", "ExecuTorch", "IREE", "OpenVINO", "XNNPACK", "TOSA")
    assert all(row["cause"].startswith(causes) for row in rows)

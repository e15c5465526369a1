"""The conformance kit tests runtimes that declare ``thread_safe`` in several threads."""

import delegraph_devkit as devkit
import pytest
from delegraph_devkit.check import Status

from plugins.devkit.tests.support import bad_backends as backends
from plugins.devkit.tests.support.kit import backend_under_test

CHECK = devkit.CHECKS["runtime_thread_safety"]
WRONG = {
    "shares_a_dict": "calls returned other results than in one thread",
    "shares_a_result": "calls returned other results than in one thread",
    "raises_in_threads": "a call raised RuntimeError: not in this thread",
    "aborts_in_threads": "the process was ended by SIGABRT",
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize(
    "attempt", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in (1, 2))]
)
def test_a_runtime_that_is_not_safe_fails_each_time(name, attempt):
    found = devkit.run_check(CHECK, backend_under_test(backends.BAD[CHECK.name][name]))
    assert found.status is Status.FAILED
    assert WRONG[name] in found.message


def test_buffers_that_calls_share_fail():
    found = devkit.run_check(
        CHECK, backend_under_test(backends.register_shares_buffers)
    )
    assert found.status is Status.FAILED
    assert " of " in found.message


def test_a_runtime_that_is_safe_passes():
    found = devkit.run_check(CHECK, backend_under_test(backends.register_good))
    assert found.status is Status.PASSED, found.message
    assert found.figures["calls"] > 1000
    assert found.figures["threads"] == 4


def test_runtime_without_declared_thread_safety_is_skipped():
    found = devkit.run_check(
        CHECK, devkit.BackendUnderTest("compiler-demo", gate=0, randoms=0)
    )
    assert found.status is Status.SKIPPED
    assert "does not declare thread_safe" in found.message

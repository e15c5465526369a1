"""The TOSA backend passes the contract tests that every backend must pass."""

import pytest
from delegraph_devkit import GATE, BackendContract


class TestTosa(BackendContract):
    backend = "tosa"
    gate = 4

    @pytest.mark.slow  # takes a minute; test_runtime.py also tests threads
    def test_runtime_thread_safety(self):
        super().test_runtime_thread_safety()


@pytest.mark.slow
class TestTosaInteger(BackendContract):
    """The integer profile refuses more operators; accepted ones must still compile."""

    backend = "tosa"
    options = {"spec": "TOSA-1.0+INT"}  # noqa: RUF012
    gate = 6


@pytest.mark.slow
class TestTosaAtLength(TestTosa):
    gate = 5 * GATE

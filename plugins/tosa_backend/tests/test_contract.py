"""The rules that every backend keeps."""

import pytest
from delegraph_devkit import GATE, BackendContract


class TestTosa(BackendContract):
    backend = "tosa"
    gate = 4

    @pytest.mark.slow  # a minute; test_runtime.py has a test with threads
    def test_runtime_thread_safety(self):
        super().test_runtime_thread_safety()


@pytest.mark.slow
class TestTosaInteger(BackendContract):
    """A narrower target refuses more; what it takes still compiles."""

    backend = "tosa"
    options = {"spec": "TOSA-1.0+INT"}  # noqa: RUF012
    gate = 6


@pytest.mark.slow
class TestTosaAtLength(TestTosa):
    gate = 5 * GATE

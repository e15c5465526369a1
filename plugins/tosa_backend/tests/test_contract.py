"""The rules that every backend keeps."""

import pytest
from delegraph.testing import SECONDS, BackendContract


class TestTosa(BackendContract):
    backend = "tosa"
    seconds = 4


class TestTosaInteger(BackendContract):
    """A narrower target refuses more; what it takes still compiles."""

    backend = "tosa"
    options = {"spec": "TOSA-1.0+INT"}  # noqa: RUF012
    seconds = 1


@pytest.mark.slow
class TestTosaAtLength(TestTosa):
    seconds = 3 * SECONDS

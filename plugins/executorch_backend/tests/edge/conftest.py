"""The backend of the core's tests, which runs exactly the program that it is given, in
the process-wide registry.
"""

import delegraph
import pytest

from core.tests.conftest import registry

__all__ = ["installed", "registry"]


@pytest.fixture
def installed(registry):
    """EchoBackend in the process-wide registry, for as long as a test."""
    with delegraph.register(
        registry.get_backend("EchoBackend"), runtime=registry.runtime_for("EchoBackend")
    ):
        yield

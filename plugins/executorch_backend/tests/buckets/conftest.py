"""The backend of the core's tests, which runs exactly the program that it is given."""

from core.tests.conftest import registry

__all__ = ["registry"]

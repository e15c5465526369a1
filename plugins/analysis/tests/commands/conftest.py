"""Fixtures of the core's tests: plugins on disk, an echo backend, a model file."""

from core.tests.conftest import site, zipped
from core.tests.support.command_line import echo, model

__all__ = ["echo", "model", "site", "zipped"]

"""A small classifier of pictures, trained in a second, and pictures to try it on."""

from core.tests.conftest import site
from core.tests.support.command_line import echo
from plugins.analysis.tests.support.bars import network

__all__ = ["echo", "network", "site"]

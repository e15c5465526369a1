"""Fixtures of the commands: an echo backend in the registry, and a model file."""

from ..support.command_line import echo, model

__all__ = ["echo", "model"]

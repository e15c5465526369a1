"""TOSA flatbuffer files: a writer that streams the weights and a reader that trusts nothing."""

from .reader import read, read_numbered
from .writer import TosaFile

__all__ = ["TosaFile", "read", "read_numbered"]

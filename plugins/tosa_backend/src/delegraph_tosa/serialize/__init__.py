"""TOSA flatbuffer files: a writer that streams the weights and a reader that trusts nothing."""

from .reader import read, read_numbered
from .trailer import quantization
from .writer import TosaFile

__all__ = ["TosaFile", "quantization", "read", "read_numbered"]

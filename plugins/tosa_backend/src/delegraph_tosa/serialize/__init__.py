"""TOSA flatbuffer files: a writer that streams the weights and a reader that trusts nothing."""

from .convert import convert
from .cut import cut, joined
from .reader import read, read_numbered, target_of
from .trailer import quantization
from .writer import TosaFile

__all__ = ["TosaFile", "convert", "cut", "joined", "quantization", "read", "read_numbered", "target_of"]

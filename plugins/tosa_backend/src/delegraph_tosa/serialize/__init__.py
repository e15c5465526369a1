"""TOSA flatbuffer files: a writer that streams the weights and a reader that trusts nothing."""

from .convert import convert
from .cut import cut, joined
from .reader import read, read_numbered, stated_version, target_of
from .trailer import producer_of, producer_record, quantization
from .writer import TosaFile

__all__ = [
    "TosaFile",
    "convert",
    "cut",
    "joined",
    "producer_of",
    "producer_record",
    "quantization",
    "read",
    "read_numbered",
    "stated_version",
    "target_of",
]

"""TOSA flatbuffer files: a writer that streams the weights and a reader that trusts
nothing.
"""

from .convert import convert
from .cut import cut, joined
from .reader import read, read_numbered, stated_version, target_of
from .trailer import (
    input_ranges,
    producer_of,
    producer_record,
    quantization,
    ranges_record,
)
from .writer import TosaFile

__all__ = [
    "TosaFile",
    "convert",
    "cut",
    "input_ranges",
    "joined",
    "producer_of",
    "producer_record",
    "quantization",
    "ranges_record",
    "read",
    "read_numbered",
    "stated_version",
    "target_of",
]

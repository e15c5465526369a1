"""Writes and reads TOSA flatbuffer files.

The writer streams weights. The reader accepts files from untrusted sources.
"""

from .convert import convert
from .named_constants import join_constants, split_constants
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
    "input_ranges",
    "join_constants",
    "producer_of",
    "producer_record",
    "quantization",
    "ranges_record",
    "read",
    "read_numbered",
    "split_constants",
    "stated_version",
    "target_of",
]

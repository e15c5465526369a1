"""Count the inputs and outputs of XNNPACK's blobs. Imports no torch.

Files that ExecuTorch wrote have these numbers only in the blobs.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from delegraph.errors import FormatError
from delegraph_engines.flatbuffer import root

BACKEND_ID = "XnnpackBackend"
HEADER = struct.Struct("<4s4sHIIIQ")
"""Zeros, magic, size of the header, then offset and size of the flatbuffer and of the
constants.
"""
_INPUTS = 4
_OUTPUTS = 5
"""The fields of the root table that list inputs and outputs."""


class ArgumentCounts(NamedTuple):
    """The number of inputs and outputs of a blob."""

    inputs: int
    outputs: int


def blob_arguments(blob: memoryview) -> ArgumentCounts | None:
    """Return the number of inputs and outputs of a blob.

    Return None for a blob that cannot be read: XNNPACK refuses such a blob later.
    """
    if len(blob) < HEADER.size:
        return None
    _, magic, _, start, size, _, _ = HEADER.unpack_from(blob)
    if magic != b"XH00" or start + size > len(blob):
        return None
    try:
        graph = root(blob[start : start + size], "XN01", "blob of XNNPACK")
        inputs = graph.numbers(_INPUTS, "<u4", "inputs")
        outputs = graph.numbers(_OUTPUTS, "<u4", "outputs")
        return ArgumentCounts(len(inputs), len(outputs))
    except FormatError:
        return None

"""How many inputs and outputs a blob of XNNPACK has: in files of ExecuTorch nothing
else says it. Imports no torch.
"""

from __future__ import annotations

import struct

from delegraph.errors import FormatError
from delegraph.io.flatbuffer import root

BACKEND_ID = "XnnpackBackend"
HEADER = struct.Struct("<4s4sHIIIQ")
"""Zeros, magic, its length, place and size of the flatbuffer, place and size of
constants behind it.
"""
_INPUTS = 4
_OUTPUTS = 5
"""The fields of the root table that list them."""


def blob_arguments(blob: memoryview) -> tuple[int, int] | None:
    """(inputs, outputs) of a blob; None for one that cannot be read, which XNNPACK is
    left to refuse.
    """
    if len(blob) < HEADER.size:
        return None
    _, magic, _, start, size, _, _ = HEADER.unpack_from(blob)
    if magic != b"XH00" or start + size > len(blob):
        return None
    try:
        graph = root(blob[start : start + size], "XN01", "blob of XNNPACK")
        return len(graph.numbers(_INPUTS, "<u4", "inputs")), len(
            graph.numbers(_OUTPUTS, "<u4", "outputs")
        )
    except FormatError:
        return None

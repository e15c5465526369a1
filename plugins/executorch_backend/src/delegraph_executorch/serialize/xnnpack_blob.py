"""Count the inputs and outputs of XNNPACK's blobs. Imports no torch.

Files that ExecuTorch wrote have these numbers only in the blobs.
"""

from __future__ import annotations

import struct

from delegraph.errors import FormatError
from delegraph_engines.flatbuffer import root

BACKEND_ID = "XnnpackBackend"
HEADER = struct.Struct("<4s4sHIIIQ")
"""Zeros, magic, length of the header, offset and size of flatbuffer, then of constants.
"""
_INPUTS = 4
_OUTPUTS = 5
"""The fields of the root table that list inputs and outputs."""


def blob_arguments(blob: memoryview) -> tuple[int, int] | None:
    """Return the numbers of inputs and outputs of a blob.

    None for a blob that cannot be read: XNNPACK refuses it later.
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
        return len(inputs), len(outputs)
    except FormatError:
        return None

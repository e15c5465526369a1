"""Names of kernels that a library beside the runtime has. Imports no torch: a file is
looked at without it.
"""

from __future__ import annotations

NAMESPACE = "quantized_decomposed"
QUANTIZED_LIBRARY = frozenset(
    f"{NAMESPACE}::{name}.out"
    for name in (
        "quantize_per_tensor",
        "dequantize_per_tensor",
        "quantize_per_channel",
        "dequantize_per_channel",
    )
)
"""Kernels that the emitter calls of ExecuTorch's kernels/quantized.

The wheel has them in a library that its runtime does not load, and PyTorch does not
declare them. Other operators of the namespace are put together from kernels of ATen.
"""

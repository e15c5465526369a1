"""Name the kernels of ExecuTorch's quantized library. Imports no torch."""

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
"""Kernels of ExecuTorch's kernels/quantized that program files call.

The wheel has them in a library that its runtime does not load. PyTorch does not declare
them. Other operators of the namespace are decomposed into operators of ATen.
"""

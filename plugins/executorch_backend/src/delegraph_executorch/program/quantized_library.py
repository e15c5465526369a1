"""Names of kernels that a library beside the runtime has. Imports no torch: a file is looked at without it."""

from __future__ import annotations

QUANTIZED_LIBRARY = frozenset(
    f"quantized_decomposed::{name}.out"
    for name in ("quantize_per_tensor", "dequantize_per_tensor", "quantize_per_channel", "dequantize_per_channel")
)
"""Kernels of ExecuTorch's kernels/quantized, which neither its wheel's runtime has nor PyTorch declares."""

"""Facts about processors that change the results of engines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def saturates(processor: Mapping[str, Any]) -> bool:
    """Return whether int8 kernels of a processor saturate sums at 16 bits.

    They do on x86 without VNNI. There, results of two quantized layers were wrong by
    ten integer steps. ``processor``: the result of ``torch.cpu.get_capabilities()``.
    """
    has_dot_product = processor.get("avx512_vnni") or processor.get("avx_vnni")
    return processor.get("architecture") == "x86_64" and not has_dot_product

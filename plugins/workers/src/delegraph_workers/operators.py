"""Operators of programs that are sent which torch has only after a module of it was
imported.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable

_QUANTIZED = b"quantized_decomposed::", "torch.ao.quantization.fx._decomposed"


def register_operators(forms: Iterable[memoryview]) -> None:
    """Register the operators of quantized programs if one of these forms names them.

    Other operators come with the backend that they are for; a message names no module
    that is imported.
    """
    prefix, module = _QUANTIZED
    if any(prefix in bytes(form) for form in forms):
        importlib.import_module(module)

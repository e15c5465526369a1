"""Import the module that registers torch's operators of quantized programs."""

from __future__ import annotations

import importlib
from collections.abc import Iterable

_PREFIX = b"quantized_decomposed::"
_MODULE = "torch.ao.quantization.fx._decomposed"


def register_operators(forms: Iterable[memoryview]) -> None:
    """Register the operators of quantized programs if one of these forms calls them.

    The import of a backend registers its own operators. A message cannot make a worker
    import any other module.
    """
    if any(_PREFIX in bytes(form) for form in forms):
        importlib.import_module(_MODULE)

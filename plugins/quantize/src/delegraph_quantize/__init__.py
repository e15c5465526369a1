"""Quantizes a model after training for the integer units of a backend.

It runs torchao's PT2E flow in one call::

    from delegraph_quantize import quantize, quantization_errors

    program = quantize(model, batches, backend="tosa")
    print(quantization_errors(model, program, batches))
    lowered = delegraph.lower(program, backends=["tosa"])
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .flow import quantize
    from .layer_errors import (
        LayerError,
        QuantizationErrors,
        quantization_errors,
    )
    from .recovery import Recovery, Trial, recover_accuracy
    from .sensitivity import TensorLoss

__all__ = [
    "LayerError",
    "QuantizationErrors",
    "Recovery",
    "TensorLoss",
    "Trial",
    "quantization_errors",
    "quantize",
    "recover_accuracy",
]

_HOME = {
    "quantize": "flow",
    "TensorLoss": "sensitivity",
    **dict.fromkeys(("Recovery", "Trial", "recover_accuracy"), "recovery"),
    **dict.fromkeys(
        ("LayerError", "QuantizationErrors", "quantization_errors"),
        "layer_errors",
    ),
}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a public name at its first use, since all of them import torch."""
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f".{_HOME[name]}", __name__), name)
        globals()[name] = value
        return value

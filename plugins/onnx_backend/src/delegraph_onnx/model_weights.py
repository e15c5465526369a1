"""Move large weights of an ONNX model to named data, where delegates share them."""

from __future__ import annotations

from typing import Any, NamedTuple

import onnx_ir as ir
import torch
from delegraph.backend import NamedDataStore
from delegraph_engines import add_by_content
from onnxruntime import OrtValue

from .session import WEIGHT, ort_value

SMALLEST = 4096
"""Constants of at least this many bytes become named data: weights, and few biases."""
NO_FILE = "delegraph"
"""The file that a model names for its weights. It does not exist."""


class Weight(NamedTuple):
    """A weight that is stored outside of its model."""

    name: str
    """The name of its initializer."""
    key: str
    dtype: str
    sizes: list[int]
    value: OrtValue


def take_weights(model: ir.Model, store: NamedDataStore) -> list[Weight]:
    """Move large initializers of ``model`` to ``store``; return them in the same order."""
    weights = []
    for name, initializer in model.graph.initializers.items():
        constant = initializer.const_value
        if constant is None or constant.nbytes < SMALLEST:
            continue
        tensor = tensor_of(constant)
        key = add_by_content(store, WEIGHT, tensor, alignment=64)
        dtype = str(tensor.dtype).removeprefix("torch.")
        value = ort_value(tensor)
        weights.append(Weight(name, key, dtype, list(tensor.shape), value))
        # a placeholder: the session gets the values beside the model
        initializer.const_value = ir.ExternalTensor(
            location=NO_FILE,
            offset=0,
            length=constant.nbytes,
            dtype=constant.dtype,
            shape=ir.Shape(tensor.shape),
            name=name,
        )
    return weights


def tensor_of(constant: Any) -> torch.Tensor:
    """Return a constant of a model as a tensor.

    A constant of the program shares the memory of its tensor.
    """
    if isinstance(constant.raw, torch.Tensor):
        return constant.raw.detach().resolve_neg().contiguous()
    # ONNX Runtime takes no array that it would have to copy
    return torch.from_numpy(constant.numpy()).contiguous()

"""A small quantized network that takes and returns integers, as an Ethos-U does."""

from __future__ import annotations

from typing import Any

import delegraph
import torch
from delegraph_tosa.borders import integer_borders


def example() -> dict[str, Any]:
    """The quantized program, and the transform that leaves out its quantize and
    dequantize calls.
    """
    torch.manual_seed(0)
    layers = (
        torch.nn.Conv2d(3, 8, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(8, 4, 3),
    )
    model = torch.nn.Sequential(*layers).eval()
    image = torch.randn(1, 3, 32, 32)
    return {
        "model": delegraph.quantize(model, [(image,)], backend="ethosu"),
        "transforms": [integer_borders],
    }

"""Rules, one file a family of ATen operators. Importing a family registers its rules."""

from __future__ import annotations

import sys
from importlib import import_module

FAMILIES = (
    "activation",
    "attention",
    "bag",
    "bitwise",
    "cast",
    "comparison",
    "conv",
    "conv_transpose",
    "create",
    "distance",
    "elementwise",
    "exponential",
    "fourier",
    "grid_sample",
    "index",
    "interpolate",
    "linear",
    "loss",
    "noop",
    "norm",
    "order",
    "pad",
    "pool",
    "pool_indices",
    "rearrange",
    "power",
    "quantize",
    "reduce",
    "resize",
    "rounding",
    "scan",
    "scatter",
    "shape",
    "special_functions",
    "special_values",
    "statistics",
    "trigonometry",
)
"""Their modules, in the order of the operator pages."""

_REGISTERS_QUANTIZE = "torch.ao.quantization.fx._decomposed"
"""The module of torch that has the operators of ``quantize``. To import it takes most as long as all other families."""


def import_quantize() -> None:
    """Import the rules for ``quantized_decomposed``, if a program may call it: who exported that made torch know it."""
    if _REGISTERS_QUANTIZE in sys.modules:
        import_module(".quantize", __name__)


for _family in FAMILIES:
    if _family != "quantize":
        import_module(f".{_family}", __name__)
import_quantize()

"""Rules for ATen operators, one file for each family. Importing a family registers its rules (``@lowers``).

A rule has the name of its operator. Its docstring begins with the shapes of its tensors: N is the batch, C and O are
channels, D, H, W are depth, height, width, K is a kernel or the rows of a table, ``*S`` is any number of axes.
"""

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
"""The modules of the families, in the order in which the operator pages list them."""

_REGISTERS_QUANTIZE = "torch.ao.quantization.fx._decomposed"
"""The module of torch that defines the operators of the family ``quantize``.

Importing it takes nearly as long as all other families together.
"""


def import_quantize() -> None:
    """Import the rules for the ``quantized_decomposed`` operators if torch has defined these operators.

    A program can only call them after ``_REGISTERS_QUANTIZE`` was imported. Until then the slow import is skipped.
    """
    if _REGISTERS_QUANTIZE in sys.modules:
        import_module(".quantize", __name__)


for _family in FAMILIES:
    if _family != "quantize":
        import_module(f".{_family}", __name__)
import_quantize()

"""Rules for ATen operators, one file for each family.

Importing a family registers its rules (``@lowers``). A rule has the name of its
operator. Its docstring begins with the shapes of its tensors:

- N is the batch, and C and O are channels; D, H, W are depth, height, width.
- K is a kernel or the rows of a table.
- ``*S`` is any number of axes, ``*S'`` another number or other sizes.
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
    "experts",
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

_REGISTERED_BY = {
    "quantize": "torch.ao.quantization.fx._decomposed",
    "experts_of_transformers": "transformers.integrations.moe",
    "weights_of_torchao": "torchao.quantization.quant_primitives",
}
"""Family -> the module that defines its operators.

These modules are slow to import, or need not be installed. So a family is imported only
if another part of the process has imported its module.
"""


def import_late() -> None:
    """Import the families of ``_REGISTERED_BY`` that have operators by now.

    A program can only call operators that are defined, so no rule is missed.
    """
    for family, module in _REGISTERED_BY.items():
        if module in sys.modules:
            import_module(f".{family}", __name__)


for _family in FAMILIES:
    if _family not in _REGISTERED_BY:
        import_module(f".{_family}", __name__)
import_late()

"""Rules for ATen operators, one file for each family.

Importing a family registers its rules (``@lowers``). A rule has the name of its
operator. Its docstring begins with the shapes of its tensors: N is the batch, C and O
are channels, D, H, W are depth, height, width, K is a kernel or the rows of a table,
``*S`` is any number of axes.
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

Importing it takes nearly as long as all other families together, or it need not be
installed.
"""


def import_late() -> None:
    """Import the rules for operators of other namespaces that are defined by now.

    A program can only call them after the module in ``_REGISTERED_BY`` was imported.
    Until then it is not.
    """
    for family, registers in _REGISTERED_BY.items():
        if registers in sys.modules:
            import_module(f".{family}", __name__)


for _family in FAMILIES:
    if _family not in _REGISTERED_BY:
        import_module(f".{_family}", __name__)
import_late()

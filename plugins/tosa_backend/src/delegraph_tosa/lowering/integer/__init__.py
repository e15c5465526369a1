"""Integer rules: what ATen operators do to quantized values, one file for each family. Importing it registers them.

They stand beside the rules for floats (``aten``). Many apply the rule for floats to integers. A call that would lose
too much in integers is refused, and computed in floats where the target has them.
"""

from ..aten import quantize  # noqa: F401 - registers dequantize, which makes lazy values, and quantize, which takes them
from . import (  # noqa: F401
    activations,
    arithmetic,
    attention,
    averages,
    moves,
    norm,
    products,
    resize,
    scatter,
    softmax,
    statistics,
)

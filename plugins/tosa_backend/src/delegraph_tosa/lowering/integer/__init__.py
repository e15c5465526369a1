"""Rules for ATen operators on quantized values, one file for each family.

Importing the package registers them. They complement the rules for floats (``aten``),
and many of them apply the float rule to the integers. A rule refuses a call that would
lose too much precision in integers; the call is then computed in floats if the target
has them.
"""

# - registers dequantize, which makes lazy values, and quantize, which takes them
from ..aten import quantize  # noqa: F401
from . import (  # noqa: F401
    activations,
    arithmetic,
    attention,
    averages,
    data_movement,
    norm,
    products,
    resize,
    scatter,
    softmax,
    statistics,
)

"""Integer rules: ATen operators on quantized values, one file a family. Importing one registers its rules.

They stand beside the rules for floats (``aten``) and apply many of them to integers. Where floats compute better, they
refuse.
"""

from ..aten import quantize  # noqa: F401 - registers what makes the values of these rules, and what takes them
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

"""Integer rules: what ATen operators do to quantized values, one file a family. Importing one registers its rules.

They stand beside the rules for floats (``aten``), apply many of them to integers, and refuse what those compute better.
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

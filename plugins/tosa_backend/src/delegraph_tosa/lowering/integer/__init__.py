"""Integer rules: what ATen operators do to quantized values, one file a family. Importing one registers its rules.

They stand beside the rules for floats (``aten``), apply many of them to integers, and refuse what those compute better.
"""

from . import activations, arithmetic, attention, averages, moves, norm, products, resize, scatter, softmax, statistics

INTEGER_FAMILIES = (
    activations, arithmetic, attention, averages, moves, norm, products, resize, scatter, softmax, statistics,
)  # fmt: skip

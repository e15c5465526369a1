"""The operators of TOSA 1.0 (specification chapter 2), a family a file.

CONST and CONST_SHAPE are missing: constants are values here. ``infer`` raises ``Illegal`` for what the specification's
pseudocode calls ERROR_IF. Which element types are allowed where is not told here but by ``delegraph_tosa.spec``.
"""

from __future__ import annotations

from ..graph import Operator
from . import activation, comparison, control, conversion, convolution, elementwise, image, layout, reduction, variable
from .activation import CLAMP, ERF, SIGMOID, TANH
from .comparison import EQUAL, GREATER, GREATER_EQUAL
from .control import COND_IF, CUSTOM, WHILE_LOOP
from .conversion import CAST, IDENTITY, RESCALE
from .convolution import CONV2D, CONV3D, DEPTHWISE_CONV2D, TRANSPOSE_CONV2D
from .elementwise import (
    ABS,
    ADD,
    ARITHMETIC_RIGHT_SHIFT,
    BITWISE_AND,
    BITWISE_NOT,
    BITWISE_OR,
    BITWISE_XOR,
    CEIL,
    CLZ,
    COS,
    EXP,
    FLOOR,
    INTDIV,
    LOG,
    LOGICAL_AND,
    LOGICAL_LEFT_SHIFT,
    LOGICAL_NOT,
    LOGICAL_OR,
    LOGICAL_RIGHT_SHIFT,
    LOGICAL_XOR,
    MAXIMUM,
    MINIMUM,
    MUL,
    NEGATE,
    POW,
    RECIPROCAL,
    RSQRT,
    SELECT,
    SIN,
    SUB,
    TABLE,
)
from .image import AVG_POOL2D, MAX_POOL2D, RESIZE
from .layout import CONCAT, GATHER, PAD, RESHAPE, REVERSE, SCATTER, SLICE, TILE, TRANSPOSE
from .reduction import (
    ARGMAX,
    FFT2D,
    MATMUL,
    REDUCE_ALL,
    REDUCE_ANY,
    REDUCE_MAX,
    REDUCE_MIN,
    REDUCE_PRODUCT,
    REDUCE_SUM,
    RFFT2D,
)
from .variable import VARIABLE, VARIABLE_READ, VARIABLE_WRITE

__all__ = [
    "ABS", "ADD", "ARGMAX", "ARITHMETIC_RIGHT_SHIFT", "AVG_POOL2D", "BITWISE_AND", "BITWISE_NOT", "BITWISE_OR",
    "BITWISE_XOR", "CAST", "CEIL", "CLAMP", "CLZ", "CONCAT", "COND_IF", "CONV2D", "CONV3D", "COS", "CUSTOM",
    "DEPTHWISE_CONV2D", "EQUAL", "ERF", "EXP", "FFT2D", "FLOOR", "GATHER", "GREATER", "GREATER_EQUAL", "IDENTITY",
    "INTDIV", "LOG", "LOGICAL_AND", "LOGICAL_LEFT_SHIFT", "LOGICAL_NOT", "LOGICAL_OR", "LOGICAL_RIGHT_SHIFT",
    "LOGICAL_XOR", "MATMUL", "MAXIMUM", "MAX_POOL2D", "MINIMUM", "MUL", "NEGATE", "OPERATORS", "PAD", "POW",
    "RECIPROCAL", "REDUCE_ALL", "REDUCE_ANY", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PRODUCT", "REDUCE_SUM", "RESCALE",
    "RESHAPE", "RESIZE", "REVERSE", "RFFT2D", "RSQRT", "SCATTER", "SELECT", "SIGMOID", "SIN", "SLICE", "SUB", "TABLE",
    "TANH", "TILE", "TRANSPOSE", "TRANSPOSE_CONV2D", "VARIABLE", "VARIABLE_READ", "VARIABLE_WRITE", "WHILE_LOOP",
]  # fmt: skip

_FAMILIES = (
    activation, comparison, control, convolution, conversion, elementwise, image, layout, reduction, variable
)  # fmt: skip

OPERATORS: dict[str, type[Operator]] = {
    name: found
    for family in _FAMILIES
    for name, found in vars(family).items()
    if isinstance(found, type) and issubclass(found, Operator) and name.isupper() and not name.startswith("_")
}
"""Every operator class by the specification's name."""

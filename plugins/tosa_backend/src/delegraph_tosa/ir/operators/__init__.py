"""The operators of TOSA 1.0 and of the 1.1 draft (specification: Operators), one family in each file.

CONST and CONST_SHAPE are missing: constants are values here. ``infer`` raises ``Illegal`` for what the specification's
pseudocode calls ERROR_IF. ``delegraph_tosa.spec`` checks which element types an operator takes.
"""

from __future__ import annotations

from ..graph import Operator
from . import (
    activation,
    block_scaled,
    comparison,
    control,
    conversion,
    convolution,
    elementwise,
    image,
    layout,
    reduction,
    shape,
    variable,
)
from .activation import CLAMP, ERF, SIGMOID, TANH
from .block_scaled import (
    CAST_FROM_BLOCK_SCALED,
    CAST_TO_BLOCK_SCALED,
    CONV2D_BLOCK_SCALED,
    MATMUL_T_BLOCK_SCALED,
    RESHAPE_BLOCK_SCALED,
    ROW_GATHER_BLOCK_SCALED,
)
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
from .image import AVG_POOL2D, AVG_POOL2D_ADAPTIVE, MAX_POOL2D, MAX_POOL2D_ADAPTIVE, RESIZE
from .layout import CONCAT, GATHER, PAD, RESHAPE, REVERSE, ROW_GATHER, SCATTER, SLICE, TILE, TRANSPOSE
from .reduction import (
    ARGMAX,
    FFT2D,
    MATMUL,
    MATMUL_T,
    REDUCE_ALL,
    REDUCE_ANY,
    REDUCE_MAX,
    REDUCE_MIN,
    REDUCE_PRODUCT,
    REDUCE_SUM,
    RFFT2D,
)
from .shape import (
    ADD_SHAPE,
    ASSERT_EQUAL_SHAPE,
    CONCAT_SHAPE,
    DIM,
    DIV_CEIL_SHAPE,
    DIV_FLOOR_SHAPE,
    EXP2_SHAPE,
    LOG2_CEIL_SHAPE,
    LOG2_FLOOR_SHAPE,
    MAX_SHAPE,
    MIN_SHAPE,
    MOD_SHAPE,
    MUL_SHAPE,
    SLICE_SHAPE,
    SUB_SHAPE,
)
from .variable import VARIABLE, VARIABLE_READ, VARIABLE_WRITE

__all__ = [
    "ABS", "ADD", "ADD_SHAPE", "ARGMAX", "ARITHMETIC_RIGHT_SHIFT", "ASSERT_EQUAL_SHAPE", "AVG_POOL2D",
    "AVG_POOL2D_ADAPTIVE", "BITWISE_AND", "BITWISE_NOT", "BITWISE_OR", "BITWISE_XOR", "CAST",
    "CAST_FROM_BLOCK_SCALED", "CAST_TO_BLOCK_SCALED", "CEIL", "CLAMP", "CLZ", "CONCAT", "CONCAT_SHAPE", "COND_IF",
    "CONV2D", "CONV2D_BLOCK_SCALED", "CONV3D", "COS", "CUSTOM", "DEPTHWISE_CONV2D", "DIM", "DIV_CEIL_SHAPE",
    "DIV_FLOOR_SHAPE", "EQUAL", "ERF", "EXP", "EXP2_SHAPE", "FFT2D", "FLOOR", "GATHER", "GREATER", "GREATER_EQUAL",
    "IDENTITY", "INTDIV", "LOG", "LOG2_CEIL_SHAPE", "LOG2_FLOOR_SHAPE", "LOGICAL_AND", "LOGICAL_LEFT_SHIFT",
    "LOGICAL_NOT", "LOGICAL_OR", "LOGICAL_RIGHT_SHIFT", "LOGICAL_XOR", "MATMUL", "MATMUL_T",
    "MATMUL_T_BLOCK_SCALED", "MAXIMUM", "MAX_POOL2D", "MAX_POOL2D_ADAPTIVE", "MAX_SHAPE", "MINIMUM", "MIN_SHAPE",
    "MOD_SHAPE", "MUL", "MUL_SHAPE", "NEGATE", "OPERATORS", "PAD", "POW", "RECIPROCAL", "REDUCE_ALL", "REDUCE_ANY",
    "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PRODUCT", "REDUCE_SUM", "RESCALE", "RESHAPE", "RESHAPE_BLOCK_SCALED",
    "RESIZE", "REVERSE", "RFFT2D", "ROW_GATHER", "ROW_GATHER_BLOCK_SCALED", "RSQRT", "SCATTER", "SELECT", "SIGMOID",
    "SIN", "SLICE", "SLICE_SHAPE", "SUB", "SUB_SHAPE", "TABLE", "TANH", "TILE", "TRANSPOSE", "TRANSPOSE_CONV2D",
    "VARIABLE", "VARIABLE_READ", "VARIABLE_WRITE", "WHILE_LOOP",
]  # fmt: skip

_FAMILIES = (
    activation, block_scaled, comparison, control, convolution, conversion, elementwise, image, layout, reduction,
    shape, variable,
)  # fmt: skip

OPERATORS: dict[str, type[Operator]] = {
    name: found
    for family in _FAMILIES
    for name, found in vars(family).items()
    if isinstance(found, type) and issubclass(found, Operator) and name.isupper() and not name.startswith("_")
}
"""Every operator class by the specification's name."""

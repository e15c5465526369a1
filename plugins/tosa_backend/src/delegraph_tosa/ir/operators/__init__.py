"""The operators of TOSA 1.0 and the 1.1 draft, one family in each file.

CONST and CONST_SHAPE are missing: constants are values here. ``infer`` raises
``Illegal`` for ERROR_IF in the specification's pseudocode.
``delegraph_tosa.spec`` checks which element types an operator takes.
"""

from __future__ import annotations

from ..graph import Operator
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
from .image import (
    AVG_POOL2D,
    AVG_POOL2D_ADAPTIVE,
    MAX_POOL2D,
    MAX_POOL2D_ADAPTIVE,
    RESIZE,
)
from .layout import (
    CONCAT,
    GATHER,
    PAD,
    RESHAPE,
    REVERSE,
    ROW_GATHER,
    SCATTER,
    SLICE,
    TILE,
    TRANSPOSE,
)
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

OPERATORS: dict[str, type[Operator]] = {
    name: found
    for name, found in list(globals().items())
    if isinstance(found, type) and issubclass(found, Operator) and found is not Operator
}
"""Every operator class by the specification's name."""

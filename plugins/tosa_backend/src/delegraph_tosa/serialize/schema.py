"""Numbers of the flatbuffer schema (``tosa.fbs``): field ids and operator codes."""

from __future__ import annotations

import enum
from typing import NamedTuple

from ..ir.graph import Operator
from ..ir.operators import OPERATORS

IDENTIFIER = "TOSA"
DATA_ALIGNMENT = 16
"""Alignment of constants in the files that we write; the schema requires 8."""
IMPLIED_KINDS = frozenset({"ResultDType", "ResultTypes"})
"""Kinds of attributes that files do not store: they follow from declared results."""


class GraphField(enum.IntEnum):
    """Fields of TosaGraph."""

    VERSION = 0
    REGIONS = 1
    COMPATIBILITY = 3


class RegionField(enum.IntEnum):
    """Fields of TosaRegion."""

    NAME = 0
    BLOCKS = 1


class BlockField(enum.IntEnum):
    """Fields of TosaBasicBlock."""

    NAME = 0
    OPERATORS = 1
    TENSORS = 2
    INPUTS = 3
    OUTPUTS = 4
    SHAPES = 5


class TensorField(enum.IntEnum):
    """Fields of TosaTensor.

    Files above 2 GiB use ``OFFSET`` and ``SIZE``, not ``DATA``.
    """

    NAME = 0
    SHAPE = 1
    TYPE = 2
    DATA = 3
    VARIABLE = 4
    IS_UNRANKED = 5
    VARIABLE_NAME = 6
    OFFSET = 7
    SIZE = 8
    SCALE_TYPE = 9
    SCALE_DATA = 10
    BLOCK_SHAPE = 11
    SCALE_OFFSET = 12
    SCALE_SIZE = 13


class CompatibilityField(enum.IntEnum):
    """Fields of SerializationCompatibility."""

    MIN_READER_VERSION = 0
    FEATURES = 1


MXFP = 1 << 1
"""Feature of files with block-scaled tensors. Readers without it must refuse them."""
FEATURES = MXFP
"""Bits of the features that this reader supports."""
MXFP_READER = (2026, 8, 0)
"""First version of the official serializer with block-scaled tensors."""


class ShapeField(enum.IntEnum):
    """Fields of TosaShape."""

    NAME = 0
    RANK = 1
    DATA = 2


class OperatorField(enum.IntEnum):
    """Fields of TosaOperator."""

    CODE = 0
    ATTRIBUTE_TYPE = 1
    ATTRIBUTE = 2
    INPUTS = 3
    OUTPUTS = 4
    LOCATION = 5


_ORDER = """
ARGMAX AVG_POOL2D CONV2D CONV3D DEPTHWISE_CONV2D FFT2D MATMUL MAX_POOL2D RFFT2D TRANSPOSE_CONV2D CLAMP ERF
SIGMOID TANH ADD ARITHMETIC_RIGHT_SHIFT BITWISE_AND BITWISE_OR BITWISE_XOR INTDIV LOGICAL_AND
LOGICAL_LEFT_SHIFT LOGICAL_RIGHT_SHIFT LOGICAL_OR LOGICAL_XOR MAXIMUM MINIMUM MUL POW SUB TABLE ABS
BITWISE_NOT CEIL CLZ COS EXP FLOOR LOG LOGICAL_NOT NEGATE RECIPROCAL RSQRT SIN SELECT EQUAL GREATER
GREATER_EQUAL REDUCE_ALL REDUCE_ANY REDUCE_MAX REDUCE_MIN REDUCE_PRODUCT REDUCE_SUM CONCAT PAD RESHAPE REVERSE
SLICE TILE TRANSPOSE GATHER SCATTER RESIZE CAST RESCALE CONST IDENTITY CUSTOM COND_IF WHILE_LOOP VARIABLE
VARIABLE_WRITE VARIABLE_READ CONST_SHAPE MATMUL_T_BLOCK_SCALED CAST_FROM_BLOCK_SCALED CAST_TO_BLOCK_SCALED DIM
CONCAT_SHAPE ADD_SHAPE SUB_SHAPE MUL_SHAPE SLICE_SHAPE EXP2_SHAPE LOG2_CEIL_SHAPE LOG2_FLOOR_SHAPE MAX_SHAPE MIN_SHAPE
MOD_SHAPE DIV_CEIL_SHAPE DIV_FLOOR_SHAPE ASSERT_EQUAL_SHAPE CONV2D_BLOCK_SCALED MAX_POOL2D_ADAPTIVE AVG_POOL2D_ADAPTIVE
RESHAPE_BLOCK_SCALED ROW_GATHER_BLOCK_SCALED ROW_GATHER MATMUL_T
"""
CODES: dict[str, int] = {
    name: code for code, name in enumerate(_ORDER.split(), start=1)
}
"""Maps an operator to its number in the schema, also the tag of its attributes."""
NAMES: dict[int, str] = {code: name for name, code in CODES.items()}


WRITTEN_AS = {"VARIABLE_READ": "IDENTITY", "VARIABLE_WRITE": "IDENTITY"}
"""Operators that the official serializer writes with another number.

Access to a variable has the number of IDENTITY and its own attributes. Official readers
accept nothing else.
"""


class Attribute(NamedTuple):
    """An attribute of an operator; ``kind`` is its annotation, such as ``Ints``."""

    name: str
    kind: str


def _attributes(operator: type[Operator], are_implied: bool) -> tuple[Attribute, ...]:
    """Return the attributes that are implied by results, or those that are not."""
    attributes: list[Attribute] = []
    for name, kind in operator.attributes.items():
        if (kind in IMPLIED_KINDS) is are_implied:
            attributes.append(Attribute(name, kind))
    return tuple(attributes)


STORED: dict[type[Operator], tuple[Attribute, ...]] = {
    operator: _attributes(operator, are_implied=False)
    for operator in OPERATORS.values()
}
"""Maps an operator to the attributes that files store, in the order of field ids."""
IMPLIED: dict[type[Operator], tuple[Attribute, ...]] = {
    operator: _attributes(operator, are_implied=True) for operator in OPERATORS.values()
}
"""Maps an operator to the attributes that follow from its declared results."""

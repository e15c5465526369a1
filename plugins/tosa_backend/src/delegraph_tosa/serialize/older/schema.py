"""Numbers of the TOSA 0.80 flatbuffer schema: operators, element types, attributes.

Fields of GraphField, RegionField and OperatorField are as in ``..schema``. A block has
no shapes, a tensor only the first four fields, an operator no location.
"""

from __future__ import annotations

from typing import NamedTuple

from ...ir.types import DType

VERSION = (0, 80, 1)
"""The version of new files. 0.80.1 only clarifies 0.80.0, and readers accept both."""
_ORDER = """
ARGMAX AVG_POOL2D CONV2D CONV3D DEPTHWISE_CONV2D FULLY_CONNECTED MATMUL MAX_POOL2D TRANSPOSE_CONV2D CLAMP RESERVED
SIGMOID TANH ADD ARITHMETIC_RIGHT_SHIFT BITWISE_AND BITWISE_OR BITWISE_XOR INTDIV LOGICAL_AND LOGICAL_LEFT_SHIFT
LOGICAL_RIGHT_SHIFT LOGICAL_OR LOGICAL_XOR MAXIMUM MINIMUM MUL POW SUB TABLE ABS BITWISE_NOT CEIL CLZ EXP FLOOR LOG
LOGICAL_NOT NEGATE RECIPROCAL RSQRT SELECT EQUAL GREATER GREATER_EQUAL REDUCE_ANY REDUCE_ALL REDUCE_MAX REDUCE_MIN
REDUCE_PRODUCT REDUCE_SUM CONCAT PAD RESHAPE REVERSE SLICE TILE TRANSPOSE GATHER SCATTER RESIZE CAST RESCALE CONST
IDENTITY CUSTOM COND_IF WHILE_LOOP FFT2D RFFT2D ERF
"""
CODES: dict[str, int] = {
    name: code for code, name in enumerate(_ORDER.split(), start=1)
}
"""Maps an operator to its ``Op`` number.

RESERVED is no operator. DIM, the last number, is left out: it computes sizes at run
time.
"""
NAMES: dict[int, str] = {code: name for name, code in CODES.items()}

DTYPES: dict[int, DType] = {
    number: DType[name]
    for number, name in enumerate(
        "BOOL - INT4 INT8 INT16 INT32 INT48 FP32 - FP16 BF16".split(), start=1
    )
    if name != "-"
}
UNSIGNED = {2: DType.INT8, 9: DType.INT16}
"""UINT8 and UINT16, which some writers declare for the tensors of RESCALE.

The specification and the IR use signed types and mark RESCALE as unsigned.
"""
NUMBERS: dict[DType, int] = {dtype: number for number, dtype in DTYPES.items()}


class Field(NamedTuple):
    """A field of an attribute table.

    ``name`` is the attribute or operand of 1.0, or one that ``attribute_fields``
    computes. ``kind``: int, bool, Ints, Shorts (int16), float (the bytes of an fp32),
    str, bytes, Graph, DType, ResizeMode.
    """

    name: str
    kind: str


def _fields(text: str) -> tuple[Field, ...]:
    """Return the fields of a text with ``name:kind`` for each."""
    fields: list[Field] = []
    for entry in text.split():
        name, _, kind = entry.partition(":")
        fields.append(Field(name, kind))
    return tuple(fields)


TABLES: dict[str, tuple[Field, ...]] = {
    "Pool": _fields(
        "pad:Ints kernel:Ints stride:Ints input_zp:int output_zp:int acc_type:DType"
    ),
    "Conv": _fields(
        "pad:Ints stride:Ints dilation:Ints input_zp:int weight_zp:int local_bound:bool"
    ),
    "TransposeConv": _fields(
        "out_pad:Ints stride:Ints out_shape:Ints input_zp:int weight_zp:int"
        " local_bound:bool"
    ),
    "Pad": _fields("padding:Ints pad_const_int:int pad_const_fp:float"),
    "Axis": _fields("axis:int"),
    "Reshape": _fields("shape:Ints"),
    "Slice": _fields("start:Ints size:Ints"),
    "Tile": _fields("multiples:Ints"),
    "Resize": _fields("scale:Shorts offset:Shorts border:Shorts mode:ResizeMode"),
    "Clamp": _fields(
        "min_val_int:int max_val_int:int min_val_fp:float max_val_fp:float"
    ),
    "Rescale": _fields(
        "input_zp:int output_zp:int multiplier:Ints shift:Ints scale32:bool"
        " double_round:bool per_channel:bool input_unsigned:bool output_unsigned:bool"
    ),
    "Mul": _fields("shift:int"),
    "ArithmeticRightShift": _fields("round:bool"),
    "CondIf": _fields("then_graph:Graph else_graph:Graph"),
    "WhileLoop": _fields("cond_graph:Graph body_graph:Graph"),
    "Transpose": _fields("perms:Ints"),
    "Table": _fields("table:Shorts"),
    "MatMul": _fields("A_zp:int B_zp:int"),
    "FullyConnected": _fields("input_zp:int weight_zp:int"),
    "Negate": _fields("input1_zp:int output_zp:int"),
    "Custom": _fields("operator_name:str domain_name:str implementation_attrs:bytes"),
    "FFT": _fields("inverse:bool local_bound:bool"),
    "RFFT": _fields("local_bound:bool"),
}
"""Attribute tables in the order of their tags, which count from 1."""
TAGS: dict[str, int] = {name: tag for tag, name in enumerate(TABLES, start=1)}

TABLE_OF: dict[str, str] = {
    "ARGMAX": "Axis",
    "ARITHMETIC_RIGHT_SHIFT": "ArithmeticRightShift",
    "AVG_POOL2D": "Pool",
    "CLAMP": "Clamp",
    "CONCAT": "Axis",
    "COND_IF": "CondIf",
    "CONV2D": "Conv",
    "CONV3D": "Conv",
    "CUSTOM": "Custom",
    "DEPTHWISE_CONV2D": "Conv",
    "FFT2D": "FFT",
    "FULLY_CONNECTED": "FullyConnected",
    "MATMUL": "MatMul",
    "MAX_POOL2D": "Pool",
    "MUL": "Mul",
    "NEGATE": "Negate",
    "PAD": "Pad",
    "REDUCE_ALL": "Axis",
    "REDUCE_ANY": "Axis",
    "REDUCE_MAX": "Axis",
    "REDUCE_MIN": "Axis",
    "REDUCE_PRODUCT": "Axis",
    "REDUCE_SUM": "Axis",
    "RESCALE": "Rescale",
    "RESHAPE": "Reshape",
    "RESIZE": "Resize",
    "REVERSE": "Axis",
    "SLICE": "Slice",
    "TABLE": "Table",
    "TILE": "Tile",
    "TRANSPOSE": "Transpose",
    "TRANSPOSE_CONV2D": "TransposeConv",
    "WHILE_LOOP": "WhileLoop",
}
"""Maps an operator to its attribute table, if it has one.

RFFT2D has one that is always False, and is left out.
"""

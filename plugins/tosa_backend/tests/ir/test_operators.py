"""Operator classes match the specification, and ``infer`` refuses what the specification
forbids by ERROR_IF.
"""

from __future__ import annotations

import json
import math
from importlib import resources

import numpy as np
import pytest
from delegraph_tosa.ir import operators as ops
from delegraph_tosa.ir.graph import Graph, Illegal, Value, literal
from delegraph_tosa.ir.types import (
    BLOCK_SCALED,
    DType,
    NanMode,
    ResizeMode,
    RoundingMode,
    Type,
)
from delegraph_tosa.serialize import schema

from ..support import reference_tools

F32 = DType.FP32
I8 = DType.INT8
I16 = DType.INT16
I32 = DType.INT32
TABLE = {
    e["name"]: e
    for e in json.loads(
        resources.files("delegraph_tosa.spec")
        .joinpath("operators_1_1.json")
        .read_text()
    )["operators"]
}
CONSTANTS = {"CONST", "CONST_SHAPE"}
# The schema stores the names of variables outside of the attributes of the table.
ATTRIBUTES_OF_ANOTHER_FORM = {"VARIABLE", "VARIABLE_READ", "VARIABLE_WRITE"}


def value_of_shape(*shape: int, dtype: DType = F32) -> Value:
    return Value(Type(shape, dtype))


def zero(dtype: DType = F32, value: float = 0) -> Value:
    return literal([value], dtype, {F32: "f4", I8: "i1", I16: "i2", I32: "i4"}[dtype])


def shape_constant(*entries: int) -> Value:
    return literal(entries, DType.SHAPE, np.int64)


def test_every_operator_of_the_table_has_a_class():
    assert ops.OPERATORS.keys() == TABLE.keys() - CONSTANTS
    assert all(kind.__name__ == name for name, kind in ops.OPERATORS.items())


@pytest.mark.parametrize("name", sorted(ops.OPERATORS))
def test_operands_are_those_of_the_specification(name):
    operands = [
        argument["name"]
        for argument in TABLE[name]["arguments"]
        if argument["category"] == "input" or argument["name"] == "initial_value"
    ]

    assert list(ops.OPERATORS[name].operands) == operands


@pytest.mark.parametrize("name", sorted(ops.OPERATORS))
def test_operators_with_list_inputs_are_variadic(name):
    input_types = {
        argument["type"]
        for argument in TABLE[name]["arguments"]
        if argument["category"] == "input"
    }
    takes_a_list = not input_types.isdisjoint({"tensor_list_t", "shape_list_t"})

    assert ops.OPERATORS[name].variadic == takes_a_list


@pytest.mark.parametrize(
    "name", sorted(ops.OPERATORS.keys() - ATTRIBUTES_OF_ANOTHER_FORM)
)
def test_attributes_are_those_of_the_specification(name):
    listed = {
        a["name"] for a in TABLE[name]["arguments"] if a["category"] == "attribute"
    }
    not_in_the_schema = {"input_unsigned"} if name == "CAST" else set()

    stored = {attribute for attribute, _ in schema.STORED[ops.OPERATORS[name]]}

    assert stored == listed - not_in_the_schema


def schema_tables() -> dict[str, list[str]]:
    """Table -> fields, in order of their ids, from the official schema."""
    tables: dict[str, list[str]] = {}
    for block in (reference_tools.tools() / "tosa.fbs").read_text().split("table ")[1:]:
        name, _, body = block.partition("{")
        lines = [
            line.split("//")[0].strip() for line in body.partition("}")[0].splitlines()
        ]
        tables[name.strip()] = [
            line.partition(":")[0].strip() for line in lines if ":" in line
        ]
    return tables


def schema_enum(name: str) -> dict[str, int]:
    """Member -> number of an enumeration of the official schema."""
    text = (reference_tools.tools() / "tosa.fbs").read_text()
    body = text.partition(f"enum {name}")[2].partition("{")[2].partition("}")[0]
    entries = [line.split("//")[0].strip().rstrip(",") for line in body.splitlines()]
    members: dict[str, int] = {}
    for entry in filter(None, entries):
        member, _, number = entry.partition("=")
        if number.strip():
            members[member.strip()] = int(number)
        else:
            members[member.strip()] = max(members.values(), default=-1) + 1
    return members


def test_attributes_are_stored_in_the_order_of_the_official_schema():
    tables = {
        name.lower().removesuffix("attribute"): fields
        for name, fields in schema_tables().items()
    }

    for kind, stored in schema.STORED.items():
        if kind.__name__ in ATTRIBUTES_OF_ANOTHER_FORM:
            continue
        fields = tables[kind.__name__.replace("_", "").lower()]
        assert [attribute for attribute, _ in stored] == fields


@pytest.mark.parametrize(
    ("table", "fields"),
    [
        ("TosaGraph", schema.GraphField),
        ("TosaRegion", schema.RegionField),
        ("TosaBasicBlock", schema.BlockField),
        ("TosaTensor", schema.TensorField),
        ("TosaShape", schema.ShapeField),
    ],
)
def test_field_ids_are_those_of_the_official_schema(table, fields):
    official_fields = schema_tables()[table]

    for field in fields:
        assert official_fields[field] == field.name.lower()


ENUMERATIONS = {
    "DType": DType,
    "ResizeMode": ResizeMode,
    "NanPropagationMode": NanMode,
    "RoundingMode": RoundingMode,
}


@pytest.mark.parametrize(("name", "members"), ENUMERATIONS.items())
def test_enumerations_are_those_of_the_official_schema(name, members):
    official = schema_enum(name)
    # A file stores a block-scaled type in three fields instead of one number.
    ours = {m.name: m.value for m in members if m not in BLOCK_SCALED}

    assert ours.items() <= official.items()


def test_operator_codes_are_those_of_the_official_schema():
    assert schema.CODES.items() <= schema_enum("Op").items()


CONV = {"pad": (1, 1, 1, 1), "stride": (2, 2), "dilation": (1, 1), "acc_type": F32}
ZEROS = (zero(), zero())
POOL = {"kernel": (3, 3), "stride": (2, 2), "pad": (0, 0, 0, 0)}
RESCALE = {"scale32": True, "rounding_mode": RoundingMode.SINGLE_ROUND, "per_channel": False,
           "input_unsigned": False, "output_unsigned": False, "dtype": I8}  # fmt: skip
SCALE = (literal([1 << 30], I32, "i4"), literal([30], I8, "i1"), zero(I32), zero(I8))
BODY = Graph([body_in := value_of_shape(2)], [body_in], [])
COND = Graph([cond_in := value_of_shape(2)], [value_of_shape(1, dtype=DType.BOOL)], [])


def conv(
    image: tuple[int, ...],
    weight: tuple[int, ...],
    bias: int,
    zero_points=ZEROS,
    **changes,
):
    return ops.CONV2D(
        (
            value_of_shape(*image),
            value_of_shape(*weight),
            value_of_shape(bias),
            *zero_points,
        ),
        **CONV | changes,
    )


def transpose_conv(out_pad: tuple[int, ...], stride: tuple[int, ...]):
    operands = (
        value_of_shape(1, 4, 5, 3),
        value_of_shape(8, 3, 2, 3),
        value_of_shape(8),
        *ZEROS,
    )
    return ops.TRANSPOSE_CONV2D(operands, out_pad=out_pad, stride=stride, acc_type=F32)


def quantized_conv(dtype: DType, bias: DType, input_zp: Value):
    operands = (
        value_of_shape(1, 9, 9, 3, dtype=dtype),
        value_of_shape(8, 3, 3, 3, dtype=I8),
        value_of_shape(8, dtype=bias),
        input_zp,
        zero(I8),
    )
    return ops.CONV2D(operands, **CONV | {"acc_type": bias})


def conv3d():
    operands = (
        value_of_shape(1, 4, 9, 9, 3),
        value_of_shape(8, 1, 3, 3, 3),
        value_of_shape(8),
        *ZEROS,
    )
    return ops.CONV3D(
        operands,
        pad=(0, 0, 1, 1, 1, 1),
        stride=(3, 2, 2),
        dilation=(1, 1, 1),
        acc_type=F32,
    )


def resize(scale: tuple[int, ...], offset: int = -1, dtype: DType = F32):
    operands = (
        value_of_shape(1, 4, 5, 3, dtype=dtype),
        shape_constant(*scale),
        shape_constant(offset, -1),
        shape_constant(1, 1),
    )
    return ops.RESIZE(operands, mode=ResizeMode.BILINEAR)


INFERRED = {
    "conv2d": (conv((1, 9, 11, 3), (8, 3, 3, 3), 8), [Type((1, 5, 6, 8), F32)]),
    "conv2d, window that fills the image": (
        conv((1, 3, 3, 3), (8, 3, 3, 3), 1, pad=(0,) * 4),
        [Type((1, 1, 1, 8), F32)],
    ),
    "conv2d, dilated": (
        conv((1, 9, 9, 3), (8, 3, 3, 3), 8, dilation=(2, 3)),
        [Type((1, 4, 3, 8), F32)],
    ),
    "conv2d int8": (quantized_conv(I8, I32, zero(I8, 3)), [Type((1, 5, 5, 8), I32)]),
    "conv2d int16": (
        quantized_conv(I16, DType.INT48, zero(I16)),
        [Type((1, 5, 5, 8), DType.INT48)],
    ),
    "conv3d": (conv3d(), [Type((1, 2, 5, 5, 8), F32)]),
    "depthwise": (
        ops.DEPTHWISE_CONV2D(
            (
                value_of_shape(1, 9, 9, 3),
                value_of_shape(3, 3, 3, 2),
                value_of_shape(6),
                *ZEROS,
            ),
            **CONV,
        ),
        [Type((1, 5, 5, 6), F32)],
    ),
    "transpose_conv2d": (
        transpose_conv((-1, 0, 2, 1), (2, 3)),
        [Type((1, 8, 17, 8), F32)],
    ),
    "max_pool2d": (
        ops.MAX_POOL2D((value_of_shape(2, 9, 7, 3),), **POOL),
        [Type((2, 4, 3, 3), F32)],
    ),
    "avg_pool2d": (
        ops.AVG_POOL2D((value_of_shape(2, 9, 7, 3), *ZEROS), **POOL, acc_type=F32),
        [Type((2, 4, 3, 3), F32)],
    ),
    "broadcast": (
        ops.ADD((value_of_shape(2, 1, 4), value_of_shape(1, 3, 1))),
        [Type((2, 3, 4), F32)],
    ),
    "compare": (
        ops.GREATER((value_of_shape(2, 1), value_of_shape(2, 3))),
        [Type((2, 3), DType.BOOL)],
    ),
    "select": (
        ops.SELECT(
            (
                value_of_shape(1, 1, dtype=DType.BOOL),
                value_of_shape(2, 1),
                value_of_shape(1, 3),
            )
        ),
        [Type((2, 3), F32)],
    ),
    "mul int8": (
        ops.MUL((value_of_shape(2, dtype=I8), value_of_shape(2, dtype=I8), zero(I8))),
        [Type((2,), I32)],
    ),
    "mul int32, shifted": (
        ops.MUL(
            (value_of_shape(2, dtype=I32), value_of_shape(2, dtype=I32), zero(I8, 31))
        ),
        [Type((2,), I32)],
    ),
    "table int16": (
        ops.TABLE((value_of_shape(2, dtype=I16), value_of_shape(513, dtype=I16))),
        [Type((2,), I32)],
    ),
    "argmax": (ops.ARGMAX((value_of_shape(2, 3, 4),), axis=1), [Type((2, 4), I32)]),
    "reduce": (
        ops.REDUCE_SUM((value_of_shape(2, 3, 4),), axis=2),
        [Type((2, 3, 1), F32)],
    ),
    "matmul": (
        ops.MATMUL(
            (value_of_shape(2, 3, 4), value_of_shape(2, 4, 5), *ZEROS), dtype=F32
        ),
        [Type((2, 3, 5), F32)],
    ),
    "rfft2d": (ops.RFFT2D((value_of_shape(1, 4, 8),)), [Type((1, 4, 5), F32)] * 2),
    "fft2d": (
        ops.FFT2D((value_of_shape(1, 4, 8), value_of_shape(1, 4, 8)), inverse=True),
        [Type((1, 4, 8), F32)] * 2,
    ),
    "concat": (
        ops.CONCAT(
            (value_of_shape(2, 3), value_of_shape(2, 4), value_of_shape(2, 1)), axis=1
        ),
        [Type((2, 8), F32)],
    ),
    "pad": (
        ops.PAD((value_of_shape(2, 3), shape_constant(0, 1, 2, 0), zero())),
        [Type((3, 5), F32)],
    ),
    "reshape": (
        ops.RESHAPE((value_of_shape(2, 3), shape_constant(3, 2, 1))),
        [Type((3, 2, 1), F32)],
    ),
    "reshape to rank 0": (
        ops.RESHAPE((value_of_shape(1, 1), shape_constant())),
        [Type((), F32)],
    ),
    "slice": (
        ops.SLICE((value_of_shape(4, 5), shape_constant(1, 0), shape_constant(3, 2))),
        [Type((3, 2), F32)],
    ),
    "tile": (
        ops.TILE((value_of_shape(4, 5), shape_constant(1, 3))),
        [Type((4, 15), F32)],
    ),
    "transpose": (
        ops.TRANSPOSE((value_of_shape(2, 3, 4),), perms=(2, 0, 1)),
        [Type((4, 2, 3), F32)],
    ),
    "gather": (
        ops.GATHER((value_of_shape(2, 5, 3), value_of_shape(2, 7, dtype=I32))),
        [Type((2, 7, 3), F32)],
    ),
    "scatter": (
        ops.SCATTER(
            (
                value_of_shape(2, 5, 3),
                value_of_shape(2, 4, dtype=I32),
                value_of_shape(2, 4, 3),
            )
        ),
        [Type((2, 5, 3), F32)],
    ),
    "resize": (resize((4, 2, 4, 2), -1), [Type((1, 8, 10, 3), F32)]),
    "resize int8": (resize((4, 2, 4, 2), -1, dtype=I8), [Type((1, 8, 10, 3), I32)]),
    "cast": (ops.CAST((value_of_shape(2),), dtype=I32), [Type((2,), I32)]),
    "rescale": (
        ops.RESCALE((value_of_shape(2, dtype=I32), *SCALE), **RESCALE),
        [Type((2,), I8)],
    ),
    "cond_if": (
        ops.COND_IF(
            (value_of_shape(1, dtype=DType.BOOL), value_of_shape(2)),
            then_graph=BODY,
            else_graph=BODY,
        ),
        [Type((2,), F32)],
    ),
    "while_loop": (
        ops.WHILE_LOOP((value_of_shape(2),), cond_graph=COND, body_graph=BODY),
        [Type((2,), F32)],
    ),
    "custom": (
        ops.CUSTOM(
            (value_of_shape(2),),
            operator_name="a",
            domain_name="b",
            implementation_attrs=b"",
            types=(Type((3,), I8),),
        ),
        [Type((3,), I8)],
    ),
}


@pytest.mark.parametrize("case", INFERRED)
def test_operators_infer_their_result_types(case):
    operator, types = INFERRED[case]
    assert list(operator.infer()) == types


REFUSED = {
    "height does not divide": (
        conv((1, 8, 9, 3), (8, 3, 3, 3), 8),
        "height 8 .* not a multiple of 2",
    ),
    "kernel beyond the image": (
        conv((1, 9, 1, 3), (8, 3, 5, 3), 8),
        "width 1 .* is negative",
    ),
    "channels differ": (
        conv((1, 9, 9, 4), (8, 3, 3, 3), 8),
        "does not have the 4 channels",
    ),
    "bias of another length": (
        conv((1, 9, 9, 3), (8, 3, 3, 3), 7),
        "bias must have 1 or 8",
    ),
    "rank 3 image": (conv((9, 9, 3), (8, 3, 3, 3), 8), "input must have rank 4"),
    "negative pad": (
        conv((1, 9, 9, 3), (8, 3, 3, 3), 8, pad=(-1, 1, 0, 0)),
        "must not be negative",
    ),
    "dilation 0": (conv((1, 9, 9, 3), (8, 3, 3, 3), 8, dilation=(0, 1)), "dilation"),
    "short stride": (
        conv((1, 9, 9, 3), (8, 3, 3, 3), 8, stride=(2,)),
        "stride must have 2",
    ),
    "zero point of a float": (
        conv((1, 9, 9, 3), (8, 3, 3, 3), 8, (zero(F32, 1), zero())),
        "input_zp must be 0 for fp32",
    ),
    "zero point of two": (
        conv((1, 9, 9, 3), (8, 3, 3, 3), 8, (value_of_shape(2), zero())),
        "input_zp must have shape",
    ),
    "out_pad": (transpose_conv((-3, 0, 0, 0), (1, 1)), "whole kernel"),
    "pool pad": (
        ops.MAX_POOL2D(
            (value_of_shape(2, 9, 7, 3),),
            kernel=(3, 3),
            stride=(1, 1),
            pad=(3, 0, 0, 0),
        ),
        "smaller than the kernel",
    ),
    "ranks differ": (
        ops.ADD((value_of_shape(2, 3), value_of_shape(3))),
        "ranks differ",
    ),
    "no broadcast": (
        ops.ADD((value_of_shape(2, 3), value_of_shape(2, 2))),
        "do not broadcast",
    ),
    "float shift": (
        ops.MUL((value_of_shape(2), value_of_shape(2), zero(I8, 1))),
        "shift must be 0 for fp32",
    ),
    "shift 64": (
        ops.MUL(
            (value_of_shape(2, dtype=I32), value_of_shape(2, dtype=I32), zero(I8, 64))
        ),
        "0 to 63",
    ),
    "table": (
        ops.TABLE((value_of_shape(2, dtype=I8), value_of_shape(513, dtype=I16))),
        r"\[256\]",
    ),
    "clamp order": (
        ops.CLAMP((value_of_shape(2),), min_val=1, max_val=0),
        "not in order",
    ),
    "clamp nan": (
        ops.CLAMP((value_of_shape(2),), min_val=math.nan, max_val=0),
        "not in order",
    ),
    "axis": (
        ops.REDUCE_MAX((value_of_shape(2, 3),), axis=2),
        "axis 2 is outside rank 2",
    ),
    "negative axis": (ops.ARGMAX((value_of_shape(2, 3),), axis=-1), "axis -1"),
    "matmul": (
        ops.MATMUL(
            (value_of_shape(2, 3, 4), value_of_shape(2, 5, 4), *ZEROS), dtype=F32
        ),
        "do not multiply",
    ),
    "fft": (ops.RFFT2D((value_of_shape(1, 4, 6),)), "powers of two"),
    "concat": (
        ops.CONCAT((value_of_shape(2, 3), value_of_shape(3, 3)), axis=1),
        "differ outside of axis 1",
    ),
    "concat of nothing": (ops.CONCAT((), axis=0), "at least one"),
    "negative padding": (
        ops.PAD((value_of_shape(2), shape_constant(-1, 0), zero())),
        "negative",
    ),
    "short padding": (
        ops.PAD((value_of_shape(2, 2), shape_constant(1, 0), zero())),
        "padding must have 4",
    ),
    "reshape": (
        ops.RESHAPE((value_of_shape(2, 3), shape_constant(4, 2))),
        "does not have the 8 elements",
    ),
    "reshape by -1": (
        ops.RESHAPE((value_of_shape(2, 3), shape_constant(-1))),
        "below 1",
    ),
    "runtime shape": (
        ops.RESHAPE((value_of_shape(2, 3), Value(Type((1,), DType.SHAPE)))),
        "not a constant shape",
    ),
    "slice": (
        ops.SLICE((value_of_shape(4), shape_constant(2), shape_constant(3))),
        "not inside",
    ),
    "empty slice": (
        ops.SLICE((value_of_shape(4), shape_constant(2), shape_constant(0))),
        "below 1",
    ),
    "perms": (ops.TRANSPOSE((value_of_shape(2, 3),), perms=(0, 0)), "no permutation"),
    "short perms": (
        ops.TRANSPOSE((value_of_shape(2, 3),), perms=(0,)),
        "no permutation",
    ),
    "gather": (
        ops.GATHER((value_of_shape(2, 5, 3), value_of_shape(1, 7, dtype=I32))),
        "differ in the batch",
    ),
    "scatter": (
        ops.SCATTER(
            (
                value_of_shape(2, 5, 3),
                value_of_shape(2, 4, dtype=I32),
                value_of_shape(2, 3, 3),
            )
        ),
        "input must be",
    ),
    "resize": (resize((4, 3, 4, 2), -1), "height 4 .* not a multiple of 3"),
    "resize offset": (resize((4, 2, 4, 2), -5), "offset -5"),
    "rescale multiplier": (
        ops.RESCALE((value_of_shape(2, dtype=I32), zero(I16), *SCALE[1:]), **RESCALE),
        "multiplier must be int32",
    ),
    "rescale zero point": (
        ops.RESCALE(
            (value_of_shape(2, dtype=I32), *SCALE[:2], zero(I32, 1), zero(I8)),
            **RESCALE,
        ),
        "input_zp must be 0 for int32",
    ),
    "rescale signs": (
        ops.RESCALE(
            (value_of_shape(2, dtype=I32), *SCALE),
            **RESCALE | {"output_unsigned": True},
        ),
        "unsigned output",
    ),
    "rescale channels": (
        ops.RESCALE(
            (value_of_shape(2, dtype=I32), *SCALE), **RESCALE | {"per_channel": True}
        ),
        r"multiplier must have shape \[2\]",
    ),
    "cond_if": (
        ops.COND_IF(
            (value_of_shape(1, dtype=DType.BOOL), value_of_shape(3)),
            then_graph=BODY,
            else_graph=BODY,
        ),
        "inputs differ",
    ),
    "while_loop": (
        ops.WHILE_LOOP((value_of_shape(2),), cond_graph=BODY, body_graph=BODY),
        "one BOOL",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_illegal_operators_are_refused(case):
    operator, words = REFUSED[case]
    with pytest.raises(Illegal, match=words):
        operator.infer()

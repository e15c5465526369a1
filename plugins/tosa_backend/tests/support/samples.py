"""Graphs to test with: every operator in every combination of element types that the
specification's table has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from delegraph_tosa.ir.block_scaled_arrays import paired
from delegraph_tosa.ir.graph import Graph, Literal, Operator, Value, literal
from delegraph_tosa.ir.operators import OPERATORS
from delegraph_tosa.ir.types import (
    ARRAY_DTYPES,
    BLOCK_SCALED,
    FLOAT8,
    BlockSize,
    DType,
    ResizeMode,
    RoundingMode,
    Type,
    stored_types,
)
from delegraph_tosa.spec.operator_table import ELEMENTS, Mode, Row, rows

Names = frozenset[str]


class Zero(NamedTuple):
    """A zero point or a shift."""


class One(NamedTuple):
    """A count of rows or entries."""


class Shape(NamedTuple):
    """A constant SHAPE operand."""

    entries: tuple[int, ...]


class Constant(NamedTuple):
    """A constant operand."""

    shape: tuple[int, ...]


CONV = {"pad": (1, 0, 1, 1), "stride": (2, 1), "dilation": (1, 1)}
IMAGE = (1, 8, 6, 4)
POOL = {"kernel": (2, 3), "stride": (2, 1), "pad": (0, 0, 1, 1)}
SCALES = {"per_channel": True, "input_unsigned": False, "output_unsigned": False}
RECIPES: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "ARGMAX": (((2, 3, 4),), {"axis": 1}),
    "AVG_POOL2D": ((IMAGE, Zero(), Zero()), POOL),
    "MAX_POOL2D": ((IMAGE,), POOL),
    "CONV2D": (
        ((1, 8, 6, 4), Constant((5, 3, 3, 4)), Constant((5,)), Zero(), Zero()),
        CONV,
    ),
    "DEPTHWISE_CONV2D": (
        ((1, 8, 6, 4), Constant((3, 3, 4, 2)), Constant((8,)), Zero(), Zero()),
        CONV,
    ),
    "CONV3D": (
        ((1, 3, 8, 6, 4), Constant((5, 1, 3, 3, 4)), Constant((1,)), Zero(), Zero()),
        {"pad": (0, 0, 1, 0, 1, 1), "stride": (2, 2, 1), "dilation": (1, 1, 1)},
    ),
    "TRANSPOSE_CONV2D": (
        ((1, 4, 5, 3), Constant((5, 3, 2, 3)), Constant((5,)), Zero(), Zero()),
        {"out_pad": (-1, 0, 1, 0), "stride": (2, 3)},
    ),
    "MATMUL": (((2, 3, 4), (2, 4, 5), Zero(), Zero()), {}),
    "FFT2D": (((1, 4, 8), (1, 4, 8)), {"inverse": False}),
    "RFFT2D": (((1, 4, 8),), {}),
    "CLAMP": (((2, 3),), {"min_val": 0, "max_val": 6}),
    "NEGATE": (((2, 3), Zero(), Zero()), {}),
    "MUL": (((2, 3), (1, 3), Zero()), {}),
    "ARITHMETIC_RIGHT_SHIFT": (((2, 3), (1, 3)), {"round": True}),
    "TABLE": (((2, 3), Constant((256,))), {}),
    "SELECT": (((2, 1), (2, 3), (1, 3)), {}),
    "CONCAT": (((2, 3), (2, 1), (2, 4)), {"axis": 1}),
    "PAD": (((2, 3), Shape((0, 1, 2, 0)), Zero()), {}),
    "RESHAPE": (((2, 3), Shape((3, 2, 1))), {}),
    "REVERSE": (((2, 3),), {"axis": 1}),
    "SLICE": (((2, 3), Shape((0, 1)), Shape((2, 2))), {}),
    "TILE": (((2, 3), Shape((2, 1))), {}),
    "TRANSPOSE": (((2, 3, 4),), {"perms": (2, 0, 1)}),
    "GATHER": (((2, 5, 3), (2, 4)), {}),
    "SCATTER": (((1, 5, 3), Constant((1, 4)), (1, 4, 3)), {}),
    "RESIZE": ((IMAGE, Shape((4, 2, 4, 2)), Shape((-1, -1)), Shape((1, 1))), {}),
    "RESCALE": (((2, 3), Constant((3,)), Constant((3,)), Zero(), Zero()), SCALES),
    "CUSTOM": (
        ((2, 3),),
        {"operator_name": "f", "domain_name": "d", "implementation_attrs": b"\1\2"},
    ),
    "AVG_POOL2D_ADAPTIVE": (
        (IMAGE, Zero(), Zero(), Shape((2, 3)), Shape((2, 1)), Shape((0, 0, 1, 1))),
        {},
    ),
    "MAX_POOL2D_ADAPTIVE": (
        (IMAGE, Shape((2, 3)), Shape((2, 1)), Shape((0, 0, 1, 1))),
        {},
    ),
    "MATMUL_T": (((2, 3, 4), (1, 5, 4), Zero(), Zero()), {}),
    "ROW_GATHER": (((2, 9, 3), (2, 4), One()), {}),
    "ROW_GATHER_BLOCK_SCALED": (
        ((2, 9, 64), (2, 9, 2), (2, 4), One()),
        {"block_size": BlockSize.BLOCK_SIZE_32},
    ),
    "RESHAPE_BLOCK_SCALED": (
        ((2, 64), (2, 2), Shape((2, 1, 64))),
        {"block_size": BlockSize.BLOCK_SIZE_32},
    ),
    "CAST_TO_BLOCK_SCALED": (((3, 64),), {"block_size": BlockSize.BLOCK_SIZE_32}),
    "CAST_FROM_BLOCK_SCALED": (
        ((3, 64), (3, 2)),
        {"block_size": BlockSize.BLOCK_SIZE_32},
    ),
    "MATMUL_T_BLOCK_SCALED": (
        ((2, 3, 64), (2, 3, 2), (1, 5, 64), (1, 5, 2)),
        {"block_size": BlockSize.BLOCK_SIZE_32},
    ),
    "CONV2D_BLOCK_SCALED": (
        (
            *(
                (1, 8, 6, 32),
                (1, 8, 6, 1),
                Constant((5, 3, 3, 32)),
                Constant((5, 3, 3, 1)),
                Constant((5,)),
            ),
            *(Shape((1, 0, 1, 1)), Shape((2, 1)), Shape((1, 1))),
        ),
        {"block_size": BlockSize.BLOCK_SIZE_32},
    ),
    "DIM": (((2, 3),), {"axis": 1}),
    "CONCAT_SHAPE": ((Shape((2, 3)), Shape((4,))), {}),
    "SLICE_SHAPE": ((Shape((2, 3, 4)), One(), One()), {}),
    "ASSERT_EQUAL_SHAPE": ((Shape((2, 3)), Shape((2, 1))), {"allow_broadcast": True}),
    **{
        f"{name}_SHAPE": ((Shape((9, 4)), Shape((2, 3))), {})
        for name in "ADD SUB MUL MAX MIN MOD".split()
    },
    **{
        f"{name}_SHAPE": ((Shape((9, 4)), Shape((2, 3))), {})
        for name in ("DIV_CEIL", "DIV_FLOOR")
    },
    **{
        f"{name}_SHAPE": ((Shape((9, 4)),), {})
        for name in ("EXP2", "LOG2_CEIL", "LOG2_FLOOR")
    },
    **{
        f"REDUCE_{name}": (((2, 3, 4),), {"axis": 1})
        for name in ("ALL", "ANY", "MAX", "MIN", "PRODUCT", "SUM")
    },
}
BLOCKED: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "CONV2D": (
        ((1, 8, 6, 32), Constant((5, 3, 3, 32)), Constant((5,)), Zero(), Zero()),
        CONV,
    ),
    "CONV3D": (
        (((1, 3, 8, 6, 32)), Constant((5, 1, 3, 3, 32)), *RECIPES["CONV3D"][0][2:]),
        RECIPES["CONV3D"][1],
    ),
    "TRANSPOSE_CONV2D": (
        ((1, 4, 5, 32), Constant((5, 3, 2, 32)), *RECIPES["TRANSPOSE_CONV2D"][0][2:]),
        RECIPES["TRANSPOSE_CONV2D"][1],
    ),
    "MATMUL_T": (((2, 3, 32), (1, 5, 32), Zero(), Zero()), {}),
    "CONCAT": (((2, 32), (2, 64)), {"axis": 1}),
    "RESHAPE": (((2, 64), Shape((4, 1, 32))), {}),
    "REVERSE": (((2, 64),), {"axis": 1}),
    "SLICE": (((2, 64), Shape((0, 32)), Shape((2, 32))), {}),
    "TILE": (((2, 32), Shape((2, 3))), {}),
    "TRANSPOSE": (((2, 3, 32),), {"perms": (1, 0, 2)}),
    "ROW_GATHER": (((2, 9, 32), (2, 4), One()), {}),
    "RESIZE": (((1, 8, 6, 32), *RECIPES["RESIZE"][0][1:]), {}),
    **{name: (((2, 32),), {}) for name in ("CAST", "IDENTITY")},
    "DIM": (((2, 32),), {"axis": 1}),
}
"""Recipes of operators on block-scaled tensors, whose last axis is made of blocks."""
WITH_BODIES_OR_STATE = {
    "COND_IF",
    "WHILE_LOOP",
    "VARIABLE",
    "VARIABLE_READ",
    "VARIABLE_WRITE",
}


class Sample(NamedTuple):
    """A graph of one operator and the alternatives of profiles and extensions that
    allow it.
    """

    label: str
    graph: Graph
    allowed_by: tuple[Names, ...]


def samples(*wanted: DType, version: tuple[int, int] = (1, 0)) -> Iterator[Sample]:
    """A sample for each row of a version's table; with ``wanted``, only where all
    element types are among these.
    """
    for name in sorted(OPERATORS.keys() & rows(version).keys() - WITH_BODIES_OR_STATE):
        row = rows(version)[name]
        for mode in row.modes:
            if not wanted or all(t in wanted for t in mode.types.values()):
                label = f"{name}({', '.join(str(t) for t in mode.types.values() if t)})"
                yield Sample(label, graph_of(row, mode), mode.allowed_by)


def merged(graphs: Iterable[Graph]) -> Graph:
    """One graph that has the inputs, operators and outputs of all."""
    listed = list(graphs)
    inputs = [v for g in listed for v in g.inputs]
    outputs = [v for g in listed for v in g.outputs]
    return Graph(inputs, outputs, [op for g in listed for op in g.operators])


def make_operator(kind: type[Operator], *inputs: Value, **attributes: Any) -> Operator:
    """An operator with its results."""
    operator = kind(inputs, **attributes)
    operator.outputs = tuple(
        Value(type, producer=operator) for type in operator.infer()
    )
    return operator


def random_inputs(graph: Graph, seed: int = 0) -> list[np.ndarray]:
    """Inputs for a graph: small positive numbers, in the domain of every operator and
    valid as indices.
    """
    random = np.random.default_rng(seed)
    return [elements(value.type, random) for value in graph.inputs]


def elements(type: Type, random: np.random.Generator) -> np.ndarray:
    """Random elements, as memory holds them."""
    array = ARRAY_DTYPES[type.dtype]
    if array.kind == "f":
        return random.uniform(0.5, 2, type.shape).astype(array)
    if type.dtype in BLOCK_SCALED:
        values, scales = (elements(t, random) for t in stored_types(type))
        return paired(values, scales, type)
    if type.dtype is DType.FP8UE8M0:
        return random.integers(126, 129, type.shape).astype(array)  # from 1/2 to 2
    if type.dtype is DType.BF16:
        return (
            random.uniform(0.5, 2, type.shape).astype(np.float32).view(np.uint32) >> 16
        ).astype(array)
    if type.dtype in FLOAT8:
        # from 1 or 0.5 to 2
        return random.integers(0x38, 0x41, type.shape).astype(array)
    if type.dtype is DType.BOOL:
        return random.integers(0, 2, type.shape).astype(array)
    return random.integers(1, 4, type.shape).astype(array)


def graph_of(row: Row, mode: Mode) -> Graph:
    """A graph of one operator with the element types of a mode."""
    default = ((2, 3), (1, 3))[: len(row.inputs)]
    blocked = any(t in BLOCK_SCALED for t in mode.types.values())
    operands, attributes = (BLOCKED if blocked else RECIPES).get(
        row.name, (default, {})
    )
    if mode.types.get("scale_t", 0) is None:  # a tensor without a scale
        operands = (operands[0], *operands[2:])
        attributes = attributes | {"block_size": BlockSize.BLOCK_SIZE_1}
    types = [_dtype(row, mode, i, len(operands)) for i in range(len(operands))]
    inputs = [_operand(row, i, operand, types[i]) for i, operand in enumerate(operands)]
    operator = make_operator(
        OPERATORS[row.name], *inputs, **attributes | _attributes(row, mode)
    )
    outputs = [output for output in operator.outputs if output.dtype is not DType.SHAPE]
    return Graph([v for v in inputs if v.constant is None], outputs, [operator])


def _dtype(row: Row, mode: Mode, position: int, count: int) -> DType:
    element = row.operands(count)[position]
    if element == "mul_t":
        return DType.INT16 if mode.types["in_t"] is DType.INT48 else DType.INT32
    return (
        mode.types.get(element)
        or ELEMENTS.get(element)
        or (DType.SHAPE if element == "shape" else DType.FP32)
    )


def _operand(row: Row, position: int, operand: Any, dtype: DType) -> Value:
    if isinstance(operand, Zero):
        return literal([0], dtype, ARRAY_DTYPES[dtype])
    if isinstance(operand, One):
        return literal([1], dtype, ARRAY_DTYPES[dtype])
    if isinstance(operand, Shape):
        return literal(operand.entries, dtype, np.int64)
    if not isinstance(operand, Constant):
        return Value(Type(operand, dtype))
    type = Type(
        (513,) if row.name == "TABLE" and dtype is DType.INT16 else operand.shape, dtype
    )
    if row.name == "SCATTER":
        return Value(type, Literal(np.array([[4, 0, 2, 1]], ARRAY_DTYPES[dtype])))
    if row.name == "RESCALE":
        scale = (
            20 if dtype is DType.INT8 else 1 << 14 if dtype is DType.INT16 else 1 << 20
        )
        return Value(type, Literal(np.full(type.shape, scale, ARRAY_DTYPES[dtype])))
    return Value(type, Literal(elements(type, np.random.default_rng(position))))


def _attributes(row: Row, mode: Mode) -> dict[str, Any]:
    """The attributes that follow from the element types."""
    attributes: dict[str, Any] = {}
    kind = OPERATORS[row.name]
    if "acc_type" in kind.attributes:
        attributes["acc_type"] = mode.types["acc_t"]
    if "dtype" in kind.attributes:
        attributes["dtype"] = mode.types[row.outputs[0]]
    if row.name == "RESIZE":
        integer = mode.types["in_t"] in (DType.INT8, DType.INT16)
        nearest = integer and mode.types["in_t"] is mode.types["out_t"]
        nearest = nearest or mode.types["in_t"] in BLOCK_SCALED
        attributes["mode"] = ResizeMode.NEAREST if nearest else ResizeMode.BILINEAR
    if row.name == "RESCALE":
        wide = mode.types["in_t"] is not DType.INT48
        attributes |= {"scale32": wide, "rounding_mode": RoundingMode.SINGLE_ROUND}
    if row.name == "CUSTOM":
        attributes["types"] = (Type((2, 3), DType.FP32),)
    return attributes

"""Block-scaled tensors and operators, computed: against the reference model, and where
it has none, against the same operator on fp32 numbers.
"""

from __future__ import annotations

import numpy as np
import pytest
from delegraph.errors import InputError
from delegraph_tosa.evaluate import evaluate, numbers_of
from delegraph_tosa.evaluate.small_floats import decoded, encoded, overflow
from delegraph_tosa.ir import operators as ops
from delegraph_tosa.ir.block_scaled_arrays import paired, parted
from delegraph_tosa.ir.graph import Graph, Literal, Operator, Scaled, Value, literal
from delegraph_tosa.ir.types import (
    ARRAY_DTYPES,
    BLOCK_SCALED,
    BlockSize,
    DType,
    ResizeMode,
    Type,
    stored_types,
)
from delegraph_tosa.serialize import TosaFile
from delegraph_tosa.spec import TosaSpec
from delegraph_tosa.spec.target import extensions

from ..support import reference_tools
from ..support.samples import make_operator

FP32 = DType.FP32
FP16 = DType.FP16
BF16 = DType.BF16
I32 = DType.INT32
SPEC = TosaSpec((1, 1), frozenset({"FP", "INT"}), frozenset(extensions((1, 1))))
BY_VALUE = {blocks.value: dtype for dtype, blocks in BLOCK_SCALED.items()}
VALUES = list(BY_VALUE)
B32 = BlockSize.BLOCK_SIZE_32
B1 = BlockSize.BLOCK_SIZE_1
R = np.random.default_rng(11)


def constant(array: np.ndarray, dtype: DType = FP32) -> Value:
    return Value(Type(array.shape, dtype), Literal(array.astype(ARRAY_DTYPES[dtype])))


def random_normal(*shape: int) -> np.ndarray:
    return R.standard_normal(shape).astype(np.float32)


def random_elements(dtype: DType, *shape: int) -> np.ndarray:
    """Random values of the type from -2 to 2 or its largest number, whichever is less."""
    return encoded(R.uniform(-2, 2, shape), dtype)


def random_scales(*shape: int, spread: int = 4) -> np.ndarray:
    return R.integers(127 - spread, 128 + spread, shape).astype(np.uint8)


def block_scaled_constant(dtype: DType, *shape: int) -> Value:
    """A block-scaled constant."""
    type = Type(shape, dtype)
    values, scale = stored_types(type)
    return Value(
        type,
        Scaled(
            random_elements(values.dtype, *shape), random_scales(*scale.shape), type
        ),
    )


def shape_constant(*entries: int) -> Value:
    return literal(entries, DType.SHAPE, np.int64)


def zero(dtype: DType = FP32) -> Value:
    return literal([0], dtype, ARRAY_DTYPES[dtype])


def graph_of_constants(*operators: Operator) -> Graph:
    """A graph of constants; what is block-scaled is returned in fp32, and scales as
    what they make of ones.
    """
    added = list(operators)
    for value in operators[-1].outputs:
        added.append(readable(value))
    return Graph(
        [], [added[k].outputs[0] for k in range(len(operators), len(added))], added
    )


def readable(value: Value) -> Operator:
    if value.dtype in BLOCK_SCALED:
        return make_operator(ops.CAST, value, dtype=FP32)
    if value.dtype is DType.FP8UE8M0:
        ones = constant(
            np.full((*value.shape[:-1], value.shape[-1] * 32), 64), DType.MXINT8
        )
        return make_operator(
            ops.CAST_FROM_BLOCK_SCALED, ones, value, block_size=B32, dtype=FP32
        )
    if (
        value.dtype in BY_VALUE
        and value.dtype is not DType.FP8E4M3
        and value.dtype is not DType.FP8E5M2
    ):
        one = constant(
            np.full((*value.shape[:-1], value.shape[-1] // 32), 127), DType.FP8UE8M0
        )
        return make_operator(
            ops.CAST_FROM_BLOCK_SCALED, value, one, block_size=B32, dtype=FP32
        )
    return (
        make_operator(ops.CAST, value, dtype=FP32)
        if value.dtype is not FP32
        else make_operator(ops.IDENTITY, value)
    )


CASES: dict[str, tuple[Graph, float]] = {}
"""Graphs that the reference model judges, and how far outputs may be from its own, as a
share of the largest one.
"""
SUMS = 1e-6
"""Sixteen units in the last place: the model sums in fp32."""


def hard_blocks() -> np.ndarray:
    """[*,32] fp32: all exponents, zeros, NaN, infinities, subnormals, and largest
    numbers at every edge of a scale.
    """
    exponents = R.integers(0, 255, (600, 1)) - R.integers(0, 12, (600, 32))
    bits = R.integers(0, 1 << 32, (600, 32), np.uint32) & 0x807FFFFF
    random = (
        bits | np.clip(exponents, 0, 254).astype(np.uint32) << np.uint32(23)
    ).view(np.float32)
    random[:2], random[1, 3], random[2, 5], random[3, 6], random[4, 7] = (
        0,
        -0.0,
        np.nan,
        np.inf,
        -np.inf,
    )
    random[5], random[6] = np.float32(1e-45), np.float32(3.4e38)
    edges = np.array(
        [448, 464, 57344, 61440, 7.5, 7.75, 28, 30, 6, 7, 127 / 64, 127.5 / 64, 2],
        np.float32,
    )
    near = np.concatenate(
        [
            edges,
            np.nextafter(edges, np.float32(0)),
            np.nextafter(edges, np.float32(1e9)),
        ]
    )
    largest = np.concatenate(
        [near * np.float32(2.0**k) for k in (-120, -9, 0, 7, 110)]
    )[:, None]
    rest = R.uniform(-1, 1, (len(largest), 32)).astype(np.float32)
    return np.concatenate(
        [random, largest * rest, largest * np.eye(1, 32, dtype=np.float32)]
    )


for value in VALUES:
    numbers = hard_blocks()
    for given in (constant(numbers), constant(numbers.view(np.uint32) >> 16, BF16)):
        apart = make_operator(
            ops.CAST_TO_BLOCK_SCALED, given, block_size=B32, dtype=value
        )
        CASES[f"CAST_TO_BLOCK_SCALED {given.dtype} to {value}"] = (
            graph_of_constants(apart),
            0,
        )
        CASES[f"CAST {given.dtype} to blocks of {value}"] = (
            graph_of_constants(make_operator(ops.CAST, given, dtype=BY_VALUE[value])),
            0,
        )
    for dtype in (FP32, FP16, BF16, DType.FP8E4M3, DType.FP8E5M2):
        cast = make_operator(
            ops.CAST, block_scaled_constant(BY_VALUE[value], 4, 96), dtype=dtype
        )
        CASES[f"CAST blocks of {value} to {dtype}"] = graph_of_constants(cast), 0
    for dtype in (FP32, BF16):
        data, scale = (
            constant(random_elements(value, 4, 96), value),
            constant(random_scales(4, 3), DType.FP8UE8M0),
        )
        cast = make_operator(
            ops.CAST_FROM_BLOCK_SCALED, data, scale, block_size=B32, dtype=dtype
        )
        CASES[f"CAST_FROM_BLOCK_SCALED {value} to {dtype}"] = (
            graph_of_constants(cast),
            0,
        )

    pair = [
        constant(random_elements(value, *s), value) for s in ((2, 3, 96), (1, 5, 96))
    ]
    sizes = [
        constant(random_scales(*s), DType.FP8UE8M0) for s in ((2, 3, 3), (1, 5, 3))
    ]
    product = make_operator(
        ops.MATMUL_T_BLOCK_SCALED, pair[0], sizes[0], pair[1], sizes[1], block_size=B32
    )
    CASES[f"MATMUL_T_BLOCK_SCALED {value}"] = graph_of_constants(product), SUMS
    right = block_scaled_constant(BY_VALUE[value], 1, 5, 96)
    half = constant(random_normal(2, 3, 96), FP16)
    product = make_operator(
        ops.MATMUL_T,
        block_scaled_constant(BY_VALUE[value], 2, 3, 96),
        right,
        zero(),
        zero(),
        dtype=FP32,
    )
    CASES[f"MATMUL_T blocks of {value}"] = graph_of_constants(product), SUMS
    product = make_operator(ops.MATMUL_T, half, right, zero(FP16), zero(), dtype=FP32)
    CASES[f"MATMUL_T fp16 and blocks of {value}"] = graph_of_constants(product), SUMS

    windows = {"pad": (1, 0, 0, 1), "stride": (2, 1), "dilation": (1, 2)}
    bias = constant(random_normal(5))
    if value is not DType.MXINT8:  # of which the table has no row
        pair = [
            constant(random_elements(value, *s), value)
            for s in ((1, 6, 5, 64), (5, 3, 2, 64))
        ]
        sizes = [
            constant(random_scales(*s), DType.FP8UE8M0)
            for s in ((1, 6, 5, 2), (5, 3, 2, 2))
        ]
        operands = (
            pair[0],
            sizes[0],
            pair[1],
            sizes[1],
            bias,
            *(shape_constant(*w) for w in windows.values()),
        )
        CASES[f"CONV2D_BLOCK_SCALED {value}"] = (
            graph_of_constants(
                make_operator(ops.CONV2D_BLOCK_SCALED, *operands, block_size=B32)
            ),
            SUMS,
        )
    weight = block_scaled_constant(BY_VALUE[value], 5, 3, 2, 64)
    for name, image in (
        ("blocks", block_scaled_constant(BY_VALUE[value], 1, 6, 5, 64)),
        ("fp32", constant(random_normal(1, 6, 5, 64))),
    ):
        convolved = make_operator(
            ops.CONV2D, image, weight, bias, zero(), zero(), acc_type=FP32, **windows
        )
        CASES[f"CONV2D {name} and blocks of {value}"] = (
            graph_of_constants(convolved),
            SUMS,
        )

    tensors = (
        constant(random_elements(value, 2, 9, 64), value),
        constant(random_scales(2, 9, 2), DType.FP8UE8M0),
    )
    rows, count = (
        constant(np.array([[3, 1], [0, 7]]), I32),
        constant(np.array([2]), I32),
    )
    gathered = make_operator(
        ops.ROW_GATHER_BLOCK_SCALED, *tensors, rows, count, block_size=B32
    )
    reshaped = make_operator(
        ops.RESHAPE_BLOCK_SCALED, *tensors, shape_constant(18, 1, 64), block_size=B32
    )
    CASES[f"ROW_GATHER_BLOCK_SCALED {value}"] = graph_of_constants(gathered), 0
    CASES[f"RESHAPE_BLOCK_SCALED {value}"] = graph_of_constants(reshaped), 0


MOVES = {
    "RESHAPE": lambda x: make_operator(ops.RESHAPE, x(2, 64), shape_constant(4, 1, 32)),
    "CONCAT last": lambda x: make_operator(ops.CONCAT, x(2, 64), x(2, 32), axis=1),
    "CONCAT first": lambda x: make_operator(ops.CONCAT, x(1, 64), x(2, 64), axis=0),
    "ROW_GATHER": lambda x: make_operator(
        ops.ROW_GATHER,
        x(2, 9, 32),
        constant(np.array([[3, 1], [0, 7]]), I32),
        constant(np.array([2]), I32),
    ),
    "RESIZE": lambda x: make_operator(
        ops.RESIZE,
        x(1, 4, 4, 32),
        shape_constant(3, 2, 2, 1),
        shape_constant(-1, 0),
        shape_constant(0, 1),
        mode=ResizeMode.NEAREST,
    ),
}
ONLY_OURS = {
    "IDENTITY": lambda x: make_operator(ops.IDENTITY, x(2, 64)),
    "REVERSE last": lambda x: make_operator(ops.REVERSE, x(2, 64), axis=1),
    "REVERSE first": lambda x: make_operator(ops.REVERSE, x(2, 64), axis=0),
    "SLICE": lambda x: make_operator(ops.SLICE, x(3, 96), shape_constant(1, 32), shape_constant(2, 64)),
    "TILE": lambda x: make_operator(ops.TILE, x(2, 64), shape_constant(2, 3)),
    "TRANSPOSE": lambda x: make_operator(ops.TRANSPOSE, x(2, 3, 64), perms=(1, 0, 2)),
    "CONV3D": lambda x: make_operator(
        ops.CONV3D, x(1, 3, 4, 4, 32), x(5, 1, 2, 2, 32), constant(random_normal(5)), zero(), zero(),
        pad=(0,) * 6, stride=(1, 1, 1), dilation=(1, 1, 1), acc_type=FP32,
    ),
    "TRANSPOSE_CONV2D": lambda x: make_operator(
        ops.TRANSPOSE_CONV2D, x(1, 4, 4, 32), x(5, 2, 2, 32), constant(random_normal(5)), zero(), zero(),
        out_pad=(0, 1, 0, 0), stride=(1, 2), acc_type=FP32,
    ),
}  # fmt: skip
"""The reference model of tosa-tools 2026.8 does not have these on block-scaled tensors.
"""


for value in VALUES:
    for name, make in MOVES.items():
        moved = make(lambda *s: block_scaled_constant(BY_VALUE[value], *s))  # noqa: B023 (called here)
        CASES[f"{name} blocks of {value}"] = graph_of_constants(moved), 0


@pytest.fixture(scope="module")
def reference_outputs() -> dict[str, list[np.ndarray]]:
    """Case -> outputs of the reference model."""
    jobs = [(TosaFile(given, SPEC).join(), []) for given, _ in CASES.values()]
    return dict(
        zip(CASES, reference_tools.run_reference_model_on_all(jobs), strict=True)
    )


@pytest.mark.parametrize("name", CASES)
def test_equals_the_reference_model(name, reference_outputs):
    """Zeros have their signs, too. What values are worth whose scale is NaN is left
    open.
    """
    given, tolerance = CASES[name]
    ours = evaluate(given, [])
    lost = np.zeros(ours[0].shape, bool)
    if len(ours) == 2:
        lost = np.isnan(ours[1])
    for result, reference in zip(ours, reference_outputs[name], strict=True):
        assert result.dtype == reference.dtype == np.float32
        known = (
            ~lost & ~np.isnan(reference) if result is ours[0] else ~np.isnan(reference)
        )
        largest = float(np.abs(reference[np.isfinite(reference)]).max(initial=0))
        np.testing.assert_allclose(
            result[known], reference[known], rtol=0, atol=tolerance * largest
        )
        np.testing.assert_array_equal(
            np.isnan(result)[~lost], np.isnan(reference)[~lost]
        )
        if not tolerance:
            np.testing.assert_array_equal(
                np.signbit(result)[known], np.signbit(reference)[known]
            )


@pytest.mark.parametrize("value", VALUES)
def test_scales_are_the_least_without_overflow(value):
    """From the definition: the largest quotient is in range, and with half of the scale
    it would not be.
    """
    x = random_normal(200, 32) * np.exp2(R.integers(-40, 40, (200, 1))).astype(
        np.float32
    )
    cast = make_operator(
        ops.CAST_TO_BLOCK_SCALED, constant(x), block_size=B32, dtype=value
    )
    bits, scale = evaluate(Graph([], cast.outputs, [cast]), [])
    factor = decoded(scale, DType.FP8UE8M0).astype(np.float64)
    np.testing.assert_array_equal(bits, encoded(x / factor, value))
    largest, (limit, itself) = np.abs(x).max(axis=1) / factor[:, 0], overflow(value)
    assert ((largest < limit) | ((largest == limit) & (not itself))).all()
    assert (2 * largest >= limit).all()


def test_scales_are_multiplied_with_each_other_first():
    """2**127 * 2**-127 is 1, as the pseudocode has it; the reference model makes
    infinity of 448 * 2**127.
    """
    data = constant(np.full((1, 1, 32), 0x7E), DType.FP8E4M3)
    up, down = (constant(np.full((1, 1, 1), bits), DType.FP8UE8M0) for bits in (254, 0))
    product = make_operator(
        ops.MATMUL_T_BLOCK_SCALED, data, up, data, down, block_size=B32
    )
    assert (
        evaluate(Graph([], product.outputs, [product]), [])[0].item() == 32 * 448.0**2
    )


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("name", [*MOVES, *ONLY_OURS])
def test_equals_the_operator_on_the_numbers(name, value):
    """The operator on block-scaled operands against the same on CAST operands, in fp32."""
    operands: list[Value] = []

    def block_scaled(*sizes: int) -> Value:
        operands.append(block_scaled_constant(BY_VALUE[value], *sizes))
        return operands[-1]

    operator = (MOVES | ONLY_OURS)[name](block_scaled)
    number_of = {
        v: constant(numbers_of(v.constant.materialize(), v.dtype)) for v in operands
    }
    inputs = [number_of.get(value, value) for value in operator.inputs]
    plain = make_operator(type(operator), *inputs, **operator.attribute_values())
    ours, numbers = (
        evaluate(graph_of_constants(op), [])[0] for op in (operator, plain)
    )
    np.testing.assert_array_equal(ours, numbers)


@pytest.mark.parametrize("value", VALUES)
def test_moved_pairs_keep_their_bits(value):
    """Nothing is decoded on the way: NaN keep their payload, blocks their scale even
    where it does not matter.
    """
    type = Type((2, 96), BY_VALUE[value])
    bits = R.integers(0, 256, type.shape).astype(np.uint8).view(ARRAY_DTYPES[value])
    x = Value(type, Scaled(bits, R.integers(0, 256, (2, 3)).astype(np.uint8), type))
    taken = make_operator(ops.SLICE, x, shape_constant(0, 32), shape_constant(2, 64))
    (out,) = evaluate(Graph([], taken.outputs, [taken]), [])
    values, held = parted(out, taken.outputs[0].type)
    np.testing.assert_array_equal(values, bits[:, 32:])
    np.testing.assert_array_equal(held, x.constant.scales[:, 1:])


@pytest.mark.parametrize("value", VALUES)
def test_blocks_of_one_element_have_no_scales(value):
    """Blocks of one element have no scales; bits are moved as they are."""
    bits = random_elements(value, 2, 9, 64)
    rows = constant(np.array([[3, 1], [0, 7]]), I32)
    count = constant(np.array([2]), I32)
    gathered = make_operator(
        ops.ROW_GATHER_BLOCK_SCALED, constant(bits, value), rows, count, block_size=B1
    )
    reshaped = make_operator(
        ops.RESHAPE_BLOCK_SCALED,
        constant(bits, value),
        shape_constant(18, 64),
        block_size=B1,
    )
    (taken,), (turned,) = (
        evaluate(Graph([], op.outputs, [op]), []) for op in (gathered, reshaped)
    )
    np.testing.assert_array_equal(
        taken, bits[np.arange(2)[:, None], [[3, 4, 1, 2], [0, 1, 7, 8]]]
    )
    np.testing.assert_array_equal(turned, bits.reshape(18, 64))


def test_inputs_and_outputs_are_pairs():
    type = Type((2, 64), BY_VALUE[DType.FP4E2M1])
    x = Value(type)
    reverse = make_operator(ops.REVERSE, x, axis=1)
    bits = random_elements(DType.FP4E2M1, 2, 64)
    scale = random_scales(2, 2)
    (out,) = evaluate(
        Graph([x], reverse.outputs, [reverse]), [paired(bits, scale, type)]
    )
    values, held = parted(out, type)
    np.testing.assert_array_equal(values, bits[:, ::-1])
    np.testing.assert_array_equal(held, scale[:, ::-1])
    with pytest.raises(InputError, match="is wanted, uint8"):
        evaluate(Graph([x], reverse.outputs, [reverse]), [bits])


def test_control_flow_keeps_the_stored_type():
    for dtype in (BF16, DType.FP8E4M3, DType.FP4E2M1, BY_VALUE[DType.FP4E2M1]):
        type = Type((1, 32), dtype)
        condition = Value(Type((1,), DType.BOOL))
        x = Value(type)
        inner = Value(type)
        body = Graph([inner], [inner], [])
        choice = make_operator(
            ops.COND_IF, condition, x, then_graph=body, else_graph=body
        )
        given = np.zeros((1, 32), ARRAY_DTYPES[dtype])
        (out,) = evaluate(
            Graph([condition, x], choice.outputs, [choice]), [np.array([True]), given]
        )
        assert out.dtype == given.dtype

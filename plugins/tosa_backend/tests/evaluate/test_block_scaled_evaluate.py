"""``evaluate`` computes block-scaled operators as the reference model does, or, if the
model lacks an operator, as the same operator on fp32 numbers.
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
    """Return a graph without inputs that returns the results of the last operator in
    fp32, which the reference model can hand over.
    """
    casts = [cast_to_fp32(value) for value in operators[-1].outputs]
    return Graph([], [cast.outputs[0] for cast in casts], [*operators, *casts])


def cast_to_fp32(value: Value) -> Operator:
    """Return an operator that makes fp32 of a value. Scales are multiplied by ones, and
    elements without scales by a scale of one.
    """
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
    if value.dtype is FP32:
        return make_operator(ops.IDENTITY, value)
    return make_operator(ops.CAST, value, dtype=FP32)


CASES: dict[str, tuple[Graph, float]] = {}
"""Name -> a graph, and how far its outputs may be from those of the reference model, as
a share of the largest output.
"""
SUMS = 1e-6
"""Sixteen units in the last place: the model sums in fp32."""


def hard_blocks() -> np.ndarray:
    """Return fp32 [*, 32] with all exponents, zeros, NaN, infinities, subnormals, and
    blocks whose largest number is next to the limit of a scale.
    """
    exponents = R.integers(0, 255, (600, 1)) - R.integers(0, 12, (600, 32))
    bits = R.integers(0, 1 << 32, (600, 32), np.uint32) & 0x807FFFFF
    random = (
        bits | np.clip(exponents, 0, 254).astype(np.uint32) << np.uint32(23)
    ).view(np.float32)
    random[:2] = 0
    random[1, 3] = -0.0
    random[2, 5] = np.nan
    random[3, 6] = np.inf
    random[4, 7] = -np.inf
    random[5] = np.float32(1e-45)
    random[6] = np.float32(3.4e38)
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
"""The reference model of tosa-tools 2026.8 lacks these on block-scaled tensors."""


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
    graph, tolerance = CASES[name]

    results = evaluate(graph, [])

    compared = np.ones(results[0].shape, bool)
    if len(results) == 2:
        # The specification does not define elements whose scale is NaN.
        _, scales = results
        compared = ~np.isnan(scales)
    for result, reference in zip(results, reference_outputs[name], strict=True):
        assert result.dtype == reference.dtype == np.float32
        np.testing.assert_array_equal(
            np.isnan(result)[compared], np.isnan(reference)[compared]
        )
        known = ~np.isnan(reference)
        if result is results[0]:
            known &= compared
        largest = float(np.abs(reference[np.isfinite(reference)]).max(initial=0))
        np.testing.assert_allclose(
            result[known], reference[known], rtol=0, atol=tolerance * largest
        )
        if tolerance == 0:  # then zeros have equal signs, too
            np.testing.assert_array_equal(
                np.signbit(result)[known], np.signbit(reference)[known]
            )


@pytest.mark.parametrize("value", VALUES)
def test_scales_are_the_smallest_that_do_not_overflow(value):
    powers_of_two = np.exp2(R.integers(-40, 40, (200, 1))).astype(np.float32)
    x = random_normal(200, 32) * powers_of_two
    cast = make_operator(
        ops.CAST_TO_BLOCK_SCALED, constant(x), block_size=B32, dtype=value
    )

    bits, scale_bits = evaluate(Graph([], cast.outputs, [cast]), [])

    scales = decoded(scale_bits, DType.FP8UE8M0).astype(np.float64)
    np.testing.assert_array_equal(bits, encoded(x / scales, value))
    largest = np.abs(x).max(axis=1) / scales[:, 0]
    limit, limit_overflows = overflow(value)
    in_range = largest < limit if limit_overflows else largest <= limit
    assert in_range.all()
    half_the_scale_would_overflow = 2 * largest >= limit
    assert half_the_scale_would_overflow.all()


def test_scales_are_multiplied_with_each_other_before_elements():
    """The pseudocode of the specification computes 2**127 * 2**-127 = 1 first. The
    reference model computes 448 * 2**127 first, which is infinite.
    """
    elements = constant(np.full((1, 1, 32), 0x7E), DType.FP8E4M3)  # 0x7E is 448
    large_scale = constant(np.full((1, 1, 1), 254), DType.FP8UE8M0)  # 2**127
    small_scale = constant(np.full((1, 1, 1), 0), DType.FP8UE8M0)  # 2**-127
    product = make_operator(
        ops.MATMUL_T_BLOCK_SCALED,
        elements,
        large_scale,
        elements,
        small_scale,
        block_size=B32,
    )

    (result,) = evaluate(Graph([], product.outputs, [product]), [])

    assert result.item() == 32 * 448.0**2


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("name", [*MOVES, *ONLY_OURS])
def test_equals_the_operator_on_fp32_operands(name, value):
    operands: list[Value] = []

    def block_scaled(*sizes: int) -> Value:
        operands.append(block_scaled_constant(BY_VALUE[value], *sizes))
        return operands[-1]

    operator = (MOVES | ONLY_OURS)[name](block_scaled)
    in_fp32 = {
        v: constant(numbers_of(v.constant.materialize(), v.dtype)) for v in operands
    }
    fp32_inputs = [in_fp32.get(value, value) for value in operator.inputs]
    fp32_operator = make_operator(
        type(operator), *fp32_inputs, **operator.attribute_values()
    )

    (result,) = evaluate(graph_of_constants(operator), [])
    (expected,) = evaluate(graph_of_constants(fp32_operator), [])

    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("value", VALUES)
def test_slice_keeps_the_bits_of_elements_and_scales(value):
    """Decoding and encoding would lose the payload of NaN, and scales of zero blocks."""
    type = Type((2, 96), BY_VALUE[value])
    bits = R.integers(0, 256, type.shape).astype(np.uint8).view(ARRAY_DTYPES[value])
    x = Value(type, Scaled(bits, R.integers(0, 256, (2, 3)).astype(np.uint8), type))
    sliced = make_operator(ops.SLICE, x, shape_constant(0, 32), shape_constant(2, 64))

    (result,) = evaluate(Graph([], sliced.outputs, [sliced]), [])

    result_bits, result_scales = parted(result, sliced.outputs[0].type)
    np.testing.assert_array_equal(result_bits, bits[:, 32:])
    # The slice begins with the second block of 32 elements.
    np.testing.assert_array_equal(result_scales, x.constant.scales[:, 1:])


@pytest.mark.parametrize("value", VALUES)
def test_row_gather_in_blocks_of_one_takes_no_scales(value):
    bits = random_elements(value, 2, 9, 64)
    first_rows = constant(np.array([[3, 1], [0, 7]]), I32)
    rows_each = constant(np.array([2]), I32)
    gather = make_operator(
        ops.ROW_GATHER_BLOCK_SCALED,
        constant(bits, value),
        first_rows,
        rows_each,
        block_size=B1,
    )

    (result,) = evaluate(Graph([], gather.outputs, [gather]), [])

    np.testing.assert_array_equal(result[0], bits[0, [3, 4, 1, 2]])
    np.testing.assert_array_equal(result[1], bits[1, [0, 1, 7, 8]])


@pytest.mark.parametrize("value", VALUES)
def test_reshape_in_blocks_of_one_takes_no_scales(value):
    bits = random_elements(value, 2, 9, 64)
    reshape = make_operator(
        ops.RESHAPE_BLOCK_SCALED,
        constant(bits, value),
        shape_constant(18, 64),
        block_size=B1,
    )

    (result,) = evaluate(Graph([], reshape.outputs, [reshape]), [])

    np.testing.assert_array_equal(result, bits.reshape(18, 64))


@pytest.fixture
def reverse_of_blocks() -> Graph:
    """A graph that reverses a block-scaled input along its blocks."""
    x = Value(Type((2, 64), BY_VALUE[DType.FP4E2M1]))
    reverse = make_operator(ops.REVERSE, x, axis=1)
    return Graph([x], reverse.outputs, [reverse])


def test_inputs_and_outputs_pair_elements_with_scales(reverse_of_blocks):
    type = reverse_of_blocks.inputs[0].type
    bits = random_elements(DType.FP4E2M1, 2, 64)
    scales = random_scales(2, 2)

    (result,) = evaluate(reverse_of_blocks, [paired(bits, scales, type)])

    result_bits, result_scales = parted(result, type)
    np.testing.assert_array_equal(result_bits, bits[:, ::-1])
    np.testing.assert_array_equal(result_scales, scales[:, ::-1])


def test_input_without_scales_is_refused(reverse_of_blocks):
    bits = random_elements(DType.FP4E2M1, 2, 64)

    with pytest.raises(InputError, match="is wanted, uint8"):
        evaluate(reverse_of_blocks, [bits])


@pytest.mark.parametrize(
    "dtype", [BF16, DType.FP8E4M3, DType.FP4E2M1, BY_VALUE[DType.FP4E2M1]]
)
def test_control_flow_keeps_the_array_dtype(dtype):
    condition = Value(Type((1,), DType.BOOL))
    x = Value(Type((1, 32), dtype))
    inner = Value(x.type)
    body = Graph([inner], [inner], [])
    cond_if = make_operator(ops.COND_IF, condition, x, then_graph=body, else_graph=body)
    graph = Graph([condition, x], cond_if.outputs, [cond_if])
    array = np.zeros((1, 32), ARRAY_DTYPES[dtype])

    (result,) = evaluate(graph, [np.array([True]), array])

    assert result.dtype == array.dtype

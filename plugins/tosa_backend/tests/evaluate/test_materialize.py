"""``materialize`` folds constants and ``evaluate`` runs graphs, with little memory and
with errors for wrong graphs and inputs.
"""

from __future__ import annotations

import math
import re
import tracemalloc
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from delegraph.errors import InputError, InternalError, Unsupported
from delegraph_tosa.evaluate import (
    Program,
    convolution,
    evaluate,
    kernels,
    materialize,
    why_not,
)
from delegraph_tosa.ir import operators as ops
from delegraph_tosa.ir.graph import Deferred, Folded, Graph, Literal, Value, literal
from delegraph_tosa.ir.types import DType, NanMode, Type
from hypothesis import given, settings
from hypothesis import strategies as st

FP32 = DType.FP32
ZERO = literal([0.0], FP32, np.float32)


def make_operator(cls, *operands, **attributes):
    """Return an operator with outputs of the inferred types."""
    operator = cls(operands, **attributes)
    operator.outputs = tuple(Value(t, producer=operator) for t in operator.infer())
    return operator


def folded_constant(cls, *operands, **attributes):
    """Return a constant that is computed by an operator when it is materialized."""
    operator = cls(operands, **attributes)
    return Value(operator.infer()[0], Folded(operator))


def fp32(elements):
    return literal(elements, FP32, np.float32)


def shape_constant(*sizes):
    return literal(sizes, DType.SHAPE, np.int64)


def graph_of_one(cls, size):
    """Return a graph of one operator with one fp32 operand."""
    x = Value(Type(size, FP32), name="x")
    operator = make_operator(cls, x)
    return Graph([x], operator.outputs, [operator])


def peak_memory_of(function) -> int:
    """Return the most bytes that were allocated at once during the call."""
    tracemalloc.start()
    try:
        function()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return peak


# ---- constants


def test_scales_of_batch_norms_fold_into_weights():
    weight = np.random.default_rng(0).standard_normal((5, 3))
    variance = [0.5, 2.0, 4.0]
    scale = folded_constant(ops.RSQRT, fp32([variance]))
    scaled = folded_constant(
        ops.MUL, fp32(weight), scale, literal([0], DType.INT8, np.int8)
    )
    turned = folded_constant(ops.TRANSPOSE, scaled, perms=(1, 0))

    np.testing.assert_allclose(
        materialize(turned), (weight / np.sqrt(variance)).T, rtol=1e-6
    )


@pytest.mark.parametrize("factor", [(1, 3), (7, 1), (7, 3), (1, 1)])
def test_bfloat16_weights_are_scaled_in_pieces(factor, monkeypatch):
    draw = np.random.default_rng(0)
    left, right = (
        torch.from_numpy(draw.standard_normal(size)).bfloat16()
        for size in ((7, 3), factor)
    )
    values = [
        literal(x.view(torch.uint16).numpy(), DType.BF16, np.uint16)
        for x in (left, right)
    ]
    product = folded_constant(ops.MUL, *values, literal([0], DType.INT8, np.int8))
    monkeypatch.setattr(kernels, "PIECE", 6)  # elements; the weight has 21

    assert materialize(product).tolist() == (left * right).view(torch.uint16).tolist()


def test_scaling_bfloat16_weights_takes_little_more_memory_than_the_result():
    shape = (2048, 2048)
    weight = Value(Type(shape, DType.BF16), Deferred(lambda: np.ones(shape, np.uint16)))
    factor = literal(np.ones((1, 2048)), DType.BF16, np.uint16)
    product = folded_constant(
        ops.MUL, weight, factor, literal([0], DType.INT8, np.int8)
    )

    peak = peak_memory_of(lambda: materialize(product))

    tensor_bytes = 2048 * 2048 * 2
    # the weight, the result, and 24 bytes for each element of one piece
    assert peak < 2 * tensor_bytes + 24 * kernels.PIECE


def test_weights_are_loaded_on_first_use():
    load = Mock(return_value=np.ones((2, 3), np.float32))
    weight = Value(Type((2, 3), FP32), Deferred(load))
    turned = folded_constant(ops.TRANSPOSE, weight, perms=(1, 0))
    load.assert_not_called()

    assert materialize(turned).shape == (3, 2)

    load.assert_called_once()


def test_chains_longer_than_the_recursion_limit_fold():
    value = fp32([1.0])
    for _ in range(20_000):
        value = folded_constant(ops.NEGATE, value, ZERO, ZERO)
    assert materialize(value).tolist() == [1.0]


def test_shared_expressions_are_computed_once():
    """Without sharing, forty doublings of one value would take 2**40 additions."""
    value = large_weight(1 << 16)
    for _ in range(40):
        value = folded_constant(ops.ADD, value, value)

    assert materialize(value)[0] == 2.0**40


def large_weight(size: int) -> Value:
    """Return an fp32 constant of ones that is loaded when it is used."""
    return Value(Type((size,), FP32), Deferred(lambda: np.ones(size, np.float32)))


def test_large_results_are_not_kept():
    doubled = folded_constant(ops.ADD, *[large_weight(1 << 16)] * 2)

    materialize(doubled)

    assert doubled.constant.elements is None


def test_temporaries_are_dropped_after_their_last_use():
    elements = 1 << 20
    value = large_weight(elements)
    for _ in range(12):
        value = folded_constant(ops.ABS, value)

    peak = peak_memory_of(lambda: materialize(value))

    assert peak < 4 * elements * 4  # fewer than four of the twelve, of 4 bytes each


def test_small_results_are_kept_without_the_weight():
    weight = large_weight(1 << 18)
    part = folded_constant(ops.SLICE, weight, shape_constant(5), shape_constant(2))

    assert materialize(folded_constant(ops.ABS, part)).tolist() == [1, 1]

    assert materialize(part) is materialize(part)
    is_view_of_the_weight = part.constant.elements.base is not None
    assert not is_view_of_the_weight


def test_scalar_constants_stay_arrays():
    total = folded_constant(ops.ADD, fp32(1.5), fp32(2.0))

    array = materialize(total)

    assert isinstance(array, np.ndarray)
    assert array.shape == ()
    assert array.dtype == np.float32
    assert array.item() == 3.5


def test_int64_indices_fold():
    ids = literal(np.arange(12).reshape(3, 4), DType.INT64, np.int64)
    row = folded_constant(ops.SLICE, ids, shape_constant(1, 0), shape_constant(1, 4))
    narrow = folded_constant(
        ops.CAST, folded_constant(ops.ADD, row, row), dtype=DType.INT32
    )

    array = materialize(narrow)

    assert array.tolist() == [[8, 10, 12, 14]]
    assert array.dtype == np.int32


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (2.0**63, 2**63 - 1),
        (-(2.0**63), -(2**63)),
        (1e30, 2**63 - 1),
        (-np.inf, -(2**63)),
        (np.nan, -(2**63)),
        (3.5, 4),
    ],
)
def test_casts_to_int64_saturate(number, expected):
    integer = folded_constant(ops.CAST, fp32([number]), dtype=DType.INT64)

    assert materialize(integer).tolist() == [expected]


def test_casts_to_bf16_round_as_torch_does():
    any_bits = np.random.default_rng(0).integers(
        0, 1 << 32, 20_000, np.uint32, endpoint=False
    )
    halfway_or_exact = any_bits & 0xFFFF8000
    nans = [0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001]
    largest = [0x7F7FFFFF]
    bits = np.concatenate([any_bits, halfway_or_exact, nans, largest])
    x = bits.astype(np.uint32).view(np.float32)

    result = materialize(folded_constant(ops.CAST, fp32(x), dtype=DType.BF16))

    expected = torch.from_numpy(x).to(torch.bfloat16)
    as_torch = torch.from_numpy(result.copy()).view(torch.bfloat16)
    torch.testing.assert_close(as_torch, expected, rtol=0, atol=0, equal_nan=True)


def test_bf16_products_equal_those_of_torch():
    values = torch.tensor(
        [1.0, 1.00390625, -3.1415, 1e38, math.inf, math.nan, 1e-40]
    ).to(torch.bfloat16)
    bits = literal(values.view(torch.uint16).numpy(), DType.BF16, np.uint16)

    squares = materialize(
        folded_constant(ops.MUL, bits, bits, literal([0], DType.INT8, np.int8))
    )

    as_torch = torch.from_numpy(squares.copy()).view(torch.bfloat16)
    torch.testing.assert_close(
        as_torch, values * values, rtol=0, atol=0, equal_nan=True
    )


def test_materializing_a_value_that_is_no_constant_fails():
    with pytest.raises(InternalError, match="not a constant"):
        materialize(Value(Type((2,), FP32)))


def test_constants_of_another_dtype_than_declared_fail():
    with pytest.raises(InternalError, match=r"constant .* float64 \[2\]"):
        materialize(Value(Type((2,), FP32), Literal(np.zeros(2))))


# ---- graphs


FLOATS = np.zeros((2, 3), np.float32)


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ([FLOATS, FLOATS], "1 input is wanted, 2 were given"),
        (
            [FLOATS.T],
            "input 0 (x): float32 [2, 3] is wanted, float32 [3, 2] was given",
        ),
        (
            [FLOATS.astype(np.float64)],
            "float32 [2, 3] is wanted, float64 [2, 3] was given",
        ),
    ],
    ids=["number", "shape", "dtype"],
)
def test_wrong_inputs_are_refused(inputs, text):
    graph = graph_of_one(ops.EXP, (2, 3))

    with pytest.raises(InputError, match=re.escape(text)):
        evaluate(graph, inputs)


@pytest.fixture
def graph_of_custom() -> Graph:
    """A graph of a CUSTOM operator, for which the evaluator has no kernel."""
    x = Value(Type((2,), FP32))
    custom = make_operator(
        ops.CUSTOM,
        x,
        operator_name="f",
        domain_name="d",
        implementation_attrs=b"",
        types=(x.type,),
    )
    return Graph([x], custom.outputs, [custom])


def test_operators_without_kernel_are_refused_before_anything_runs(graph_of_custom):
    (custom,) = graph_of_custom.operators
    assert why_not(custom) == "the host runtime does not compute CUSTOM"

    with pytest.raises(Unsupported, match="does not compute CUSTOM"):
        Program(graph_of_custom)


def test_control_flow_around_operators_without_kernel_is_refused(graph_of_custom):
    condition = Value(Type((1,), DType.BOOL))
    cond_if = make_operator(
        ops.COND_IF,
        condition,
        *graph_of_custom.inputs,
        then_graph=graph_of_custom,
        else_graph=graph_of_custom,
    )

    assert why_not(cond_if) == "the host runtime does not compute CUSTOM"


@pytest.mark.parametrize("index", [-1, 4])
def test_gather_indices_out_of_range_are_refused(index):
    values = Value(Type((1, 4, 2), FP32))
    indices = Value(Type((1, 1), DType.INT32))
    gather = make_operator(ops.GATHER, values, indices)
    given = [np.zeros((1, 4, 2), np.float32), np.array([[index]], np.int32)]

    with pytest.raises(InputError, match=rf"GATHER: index {index} is outside 0 \.\. 3"):
        evaluate(Graph([values, indices], gather.outputs, [gather]), given)


def test_operators_out_of_order_are_refused():
    x = Value(Type((2,), FP32))
    first = make_operator(ops.EXP, x)
    second = make_operator(ops.LOG, first.outputs[0])

    with pytest.raises(InternalError, match="before it is computed"):
        Program(Graph([x], second.outputs, [second, first]))


def test_outputs_may_be_inputs_constants_or_repeated():
    x = Value(Type((2,), FP32))
    one = fp32([1.0, 2.0])
    total = make_operator(ops.ADD, x, one).outputs[0]
    given = np.array([3.0, 4.0], np.float32)

    results = evaluate(Graph([x], [total, x, one, total], [total.producer]), [given])

    assert [r.tolist() for r in results] == [[4, 6], [3, 4], [1, 2], [4, 6]]


def test_intermediate_values_are_freed():
    x = value = Value(Type((1 << 20,), FP32))
    operators = []
    for _ in range(20):
        operators.append(make_operator(ops.ABS, value))
        value = operators[-1].outputs[0]
    program = Program(Graph([x], [value], operators))
    given = np.zeros(1 << 20, np.float32)

    peak = peak_memory_of(lambda: program([given]))

    assert peak < 3 * given.nbytes


# ---- kernels for which the reference model is a weak test


def test_erf_equals_the_standard_library():
    x = np.concatenate([np.linspace(-6, 6, 20001), np.geomspace(1e-30, 1, 500)]).astype(
        np.float32
    )

    (result,) = evaluate(graph_of_one(ops.ERF, x.shape), [x])

    exact = np.array([math.erf(v) for v in x.tolist()])
    np.testing.assert_allclose(result, exact, rtol=1.2e-7)


def test_long_sums_keep_their_digits():
    x = np.random.default_rng(0).random((100_000, 2)).astype(np.float32)
    value = Value(Type(x.shape, FP32))
    operator = make_operator(ops.REDUCE_SUM, value, axis=0)

    (result,) = evaluate(Graph([value], operator.outputs, [operator]), [x])

    np.testing.assert_allclose(result[0], x.astype(np.float64).sum(0), rtol=6e-8)


def test_relu_keeps_nan_and_infinity():
    x = Value(Type((4,), FP32))
    clamp = make_operator(ops.CLAMP, x, min_val=0, max_val=math.inf)

    (result,) = evaluate(
        Graph([x], clamp.outputs, [clamp]),
        [np.array([-1, np.inf, -np.inf, np.nan], np.float32)],
    )

    np.testing.assert_array_equal(result, [0, np.inf, 0, np.nan])


def test_max_pool_of_minus_infinity_is_minus_infinity():
    """The padding must not count as the lowest finite number."""
    x = Value(Type((1, 2, 2, 1), FP32))
    pool = make_operator(
        ops.MAX_POOL2D,
        x,
        kernel=(2, 2),
        stride=(1, 1),
        pad=(1, 0, 0, 0),
        nan_mode=NanMode.PROPAGATE,
    )

    (result,) = evaluate(
        Graph([x], pool.outputs, [pool]), [np.full((1, 2, 2, 1), -np.inf, np.float32)]
    )

    assert np.isneginf(result).all()


@pytest.mark.parametrize("block", [1, 300, 1 << 19])
@pytest.mark.parametrize("images", [1, 5])
def test_convolution_in_blocks_equals_torch(block, images, monkeypatch):
    monkeypatch.setattr(convolution, "BLOCK", block)
    rng = np.random.default_rng(1)
    x = rng.standard_normal((images, 9, 7, 4))
    weight = rng.standard_normal((6, 3, 3, 4))

    result = _conv(ops.CONV2D, x, weight, (2, 1), (1, 1, 1, 1), (1, 1))

    weight_oihw = weight.transpose(0, 3, 1, 2)
    expected = _torch_conv(x, weight_oihw, (2, 1), (1, 1), (1, 1))
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("block", [1, 300, 1 << 19])
@pytest.mark.parametrize("images", [1, 5])
def test_depthwise_convolution_in_blocks_equals_torch(block, images, monkeypatch):
    monkeypatch.setattr(convolution, "BLOCK", block)
    rng = np.random.default_rng(1)
    x = rng.standard_normal((images, 9, 7, 4))
    weight = rng.standard_normal((3, 3, 4, 1))

    result = _conv(ops.DEPTHWISE_CONV2D, x, weight, (2, 1), (1, 1, 1, 1), (1, 1))

    weight_oihw = weight.transpose(2, 3, 0, 1)
    expected = _torch_conv(x, weight_oihw, (2, 1), (1, 1), (1, 1), groups=4)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


def _conv(cls, x, weight, stride, pad, dilation):
    value = Value(Type(x.shape, FP32))
    attributes = dict(pad=pad, stride=stride, dilation=dilation, acc_type=FP32)
    operator = make_operator(
        cls, value, fp32(weight), fp32([0.0]), ZERO, ZERO, **attributes
    )
    return evaluate(
        Graph([value], operator.outputs, [operator]), [x.astype(np.float32)]
    )[0]


def _torch_conv(x, weight_oihw, stride, pad, dilation, groups=1):
    nchw = torch.from_numpy(x.transpose(0, 3, 1, 2))
    result = torch.nn.functional.conv2d(
        nchw, torch.from_numpy(weight_oihw.copy()), None, stride, pad, dilation, groups
    )
    return result.numpy().transpose(0, 2, 3, 1)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_convolution_of_any_geometry_equals_torch(data):
    draw = lambda low, high: data.draw(st.integers(low, high))
    images = draw(1, 3)
    input_channels = draw(1, 4)
    output_channels = draw(1, 4)
    kernel = (draw(1, 3), draw(1, 3))
    stride = (draw(1, 3), draw(1, 3))
    dilation = (draw(1, 2), draw(1, 2))
    pad = (draw(0, 2), draw(0, 2))
    size = []
    for axis in (0, 1):
        # TOSA requires that windows end exactly at the padded border.
        window = (kernel[axis] - 1) * dilation[axis] + 1
        length = stride[axis] * draw(0, 4) + window - 2 * pad[axis]
        while length < 1:
            length += stride[axis]
        size.append(length)
    rng = np.random.default_rng(draw(0, 99))
    x = rng.standard_normal((images, *size, input_channels))
    weight = rng.standard_normal((output_channels, *kernel, input_channels))

    result = _conv(
        ops.CONV2D, x, weight, stride, (pad[0], pad[0], pad[1], pad[1]), dilation
    )

    expected = _torch_conv(x, weight.transpose(0, 3, 1, 2), stride, pad, dilation)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


def test_large_convolution_never_holds_all_windows():
    """All 3x3 windows of one image would take 56 * 56 * 9 * 64 * 4 bytes = 7 MB."""
    x = np.zeros((4, 56, 56, 64))
    weight = np.zeros((64, 3, 3, 64))

    peak = peak_memory_of(
        lambda: _conv(ops.CONV2D, x, weight, (1, 1), (1, 1, 1, 1), (1, 1))
    )

    assert peak < 18 * 2**20  # for four images


def test_integer_sums_beyond_the_digits_of_fp64_stay_exact():
    terms = 2**22
    a = np.full((1, 1, terms), -(2**15), np.int16)
    b = np.full((1, terms, 1), -(2**15), np.int16)
    b[0, 0, 0] = 1
    left = Value(Type(a.shape, DType.INT16))
    right = Value(Type(b.shape, DType.INT16))
    zero = literal([0], DType.INT16, np.int16)
    matmul = make_operator(ops.MATMUL, left, right, zero, zero, dtype=DType.INT48)

    (result,) = evaluate(Graph([left, right], matmul.outputs, [matmul]), [a, b])

    assert result.item() == (terms - 1) * 2**30 - 2**15

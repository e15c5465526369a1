"""The range that the lowering derives for integers contains every element."""

from __future__ import annotations

import numpy as np
import pytest
from delegraph_tosa.evaluate import materialize
from delegraph_tosa.ir import operators as tosa
from delegraph_tosa.ir.graph import Literal, Value
from delegraph_tosa.ir.types import ARRAY_DTYPES, DType, Type
from delegraph_tosa.lowering import Tosa
from delegraph_tosa.lowering.ranges.value_ranges import (
    INT32,
    RANGES,
    range_of,
    range_of_type,
)
from delegraph_tosa.spec import TosaSpec
from hypothesis import given, settings
from hypothesis import strategies as st

# Operator -> how a builder emits it for two int32 or int64 values [2, 3].
OPERATORS = {
    "RESHAPE": lambda t, x, y: t.reshape(x, (3, 2)),
    "TRANSPOSE": lambda t, x, y: t.transpose(x, (1, 0)),
    "SLICE": lambda t, x, y: t.slice(x, (0, 1), (2, 1)),
    "TILE": lambda t, x, y: t.tile(x, (2, 1)),
    "REVERSE": lambda t, x, y: t.reverse(x, 1),
    "IDENTITY": lambda t, x, y: t.emit(tosa.IDENTITY, (x,)),
    "REDUCE_MAX": lambda t, x, y: t.reduce_max(x, 1),
    "REDUCE_MIN": lambda t, x, y: t.reduce_min(x, 0),
    "REDUCE_SUM": lambda t, x, y: t.reduce_sum(x, 1),
    "CONCAT": lambda t, x, y: t.concat((x, y), 0),
    "PAD": lambda t, x, y: t.pad(x, (1, 0, 0, 1), 7),
    "SELECT": lambda t, x, y: t.select(t.greater(x, y), x, y),
    "MAXIMUM": lambda t, x, y: t.maximum(x, y),
    "MINIMUM": lambda t, x, y: t.minimum(x, y),
    "ADD": lambda t, x, y: t.add(x, y),
    "SUB": lambda t, x, y: t.sub(x, y),
    "MUL": lambda t, x, y: t.mul(x, y),
    "INTDIV": lambda t, x, y: t.emit(
        tosa.INTDIV, (x, t.select(t.equal(y, 0), t.like(3, y), y))
    ),
    "ABS": lambda t, x, y: t.abs(x),
    "NEGATE": lambda t, x, y: t.negate(x),
    "ARGMAX": lambda t, x, y: t.emit(tosa.ARGMAX, (x,), axis=1),
    "CAST": lambda t, x, y: t.cast(x, DType.INT8),
    "GATHER": lambda t, x, y: t.emit(
        tosa.GATHER, (t.reshape(x, (1, 6, 1)), t.constant(2, DType.INT32, (1, 4)))
    ),
    "SCATTER": lambda t, x, y: t.emit(
        tosa.SCATTER,
        (
            t.reshape(x, (1, 6, 1)),
            t.constant(2, DType.INT32, (1, 1)),
            t.reshape(t.slice(y, (0, 0), (1, 1)), (1, 1, 1)),
        ),
    ),
    "LOGICAL_LEFT_SHIFT": lambda t, x, y: t.left_shift(
        x, t.minimum(t.maximum(y, 0), 9)
    ),
    "ARITHMETIC_RIGHT_SHIFT": lambda t, x, y: t.right_shift(
        x, t.minimum(t.maximum(y, 0), 9)
    ),
    "LOGICAL_RIGHT_SHIFT": lambda t, x, y: t.right_shift_of_bits(
        x, t.minimum(t.maximum(y, 0), 9)
    ),
    "CLZ": lambda t, x, y: t.clz(x),
    "BITWISE_NOT": lambda t, x, y: t.bitwise_not(x),
    "BITWISE_AND": lambda t, x, y: t.emit(tosa.BITWISE_AND, (x, y)),
    "BITWISE_OR": lambda t, x, y: t.emit(tosa.BITWISE_OR, (x, y)),
    "BITWISE_XOR": lambda t, x, y: t.emit(tosa.BITWISE_XOR, (x, y)),
}


def test_every_operator_with_a_range_is_tested():
    assert set(OPERATORS) == {operator.__name__ for operator in RANGES}


SMALL = st.integers(-9, 9)
LARGE = st.integers(-(2**62), 2**62)
NUMBERS = st.lists(SMALL, min_size=6, max_size=6) | st.lists(
    LARGE, min_size=6, max_size=6
)


@settings(max_examples=30, deadline=None)
@given(left=NUMBERS, right=NUMBERS, slack=st.integers(0, 5), shift=st.integers(1, 62))
def test_range_of_a_shifted_product_contains_every_element(left, right, slack, shift):
    builder = Tosa(TosaSpec.parse("TOSA-1.0+FP+INT"))
    x = _constant(left, slack, DType.INT32)
    y = _constant(right, slack, DType.INT32)

    low, high = range_of(builder.mul(x, y, shift=shift))

    products = materialize(x).astype(object) * materialize(y).astype(object)
    rounded = (products + (1 << (shift - 1))) >> shift
    contains_all = low <= rounded.min() and rounded.max() <= high
    assert contains_all or (low, high) == INT32  # the range of the type


@settings(max_examples=30, deadline=None)
@given(numbers=NUMBERS, slack=st.integers(0, 5), shift=st.integers(0, 31))
def test_range_of_a_rounding_shift_contains_every_element(numbers, slack, shift):
    builder = Tosa(TosaSpec.parse("TOSA-1.0+INT"))
    x = _constant(numbers, slack, DType.INT32)
    result = builder.emit(
        tosa.ARITHMETIC_RIGHT_SHIFT, (x, builder.like(shift, x)), round=True
    )

    low, high = range_of(result)

    elements = materialize(result)
    assert low <= elements.min()
    assert elements.max() <= high


@pytest.mark.parametrize("name", OPERATORS)
@settings(max_examples=30, deadline=None)
@given(
    left=NUMBERS,
    right=NUMBERS,
    slack=st.integers(0, 5),
    dtype=st.sampled_from([DType.INT32, DType.INT64]),
)
def test_range_of_a_result_contains_every_element(name, left, right, slack, dtype):
    builder = Tosa(TosaSpec.parse("TOSA-1.0+FP+INT"))
    result = OPERATORS[name](
        builder, _constant(left, slack, dtype), _constant(right, slack, dtype)
    )

    low, high = range_of(result)

    elements = materialize(result)
    assert low <= elements.min()
    assert elements.max() <= high
    least, most = range_of_type(result.dtype)
    assert least <= low
    assert high <= most


def _constant(numbers, slack, dtype):
    """Return a constant whose recorded range exceeds its elements by ``slack``."""
    array = np.array(numbers, np.int64).astype(ARRAY_DTYPES[dtype]).reshape(2, 3)
    value = Value(Type((2, 3), dtype), Literal(array))
    least, most = range_of_type(dtype)
    value.range = (
        max(int(array.min()) - slack, least),
        min(int(array.max()) + slack, most),
    )
    return value

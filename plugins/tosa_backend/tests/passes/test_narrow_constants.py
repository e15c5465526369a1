"""The pass that stores int32 constants of sums and products as int8."""

from __future__ import annotations

import numpy as np
import pytest
from delegraph_tosa.evaluate import evaluate
from delegraph_tosa.ir import operators as tosa
from delegraph_tosa.ir.graph import Folded, Graph, Value, literal
from delegraph_tosa.ir.types import DType, RoundingMode, Type
from delegraph_tosa.passes import run_passes
from delegraph_tosa.spec import TosaSpec

from ..support.drafts import Draft, assert_well_formed, count_operators, sizes

INT = TosaSpec.parse("TOSA-1.0+INT")


def scale_by_steps(d: Draft, x: Value, dtype: DType = DType.INT32) -> Value:
    """Return int8 ``x`` rescaled to ``dtype``: (x + 3) * 6. If x is a constant, the
    result is a folded constant, as in a lowering.
    """
    numbers = (
        literal([3 << 29], DType.INT32, np.int32),
        literal([28], DType.INT8, np.int8),
    )
    zeros = literal([-3], DType.INT8, np.int8), literal([0], dtype, np.int32)
    flags = {
        "scale32": True,
        "per_channel": False,
        "input_unsigned": False,
        "output_unsigned": False,
    }
    flags |= {"dtype": dtype, "rounding_mode": RoundingMode.SINGLE_ROUND}
    result = d.op(tosa.RESCALE, x, *numbers, *zeros, **flags)
    if x.constant is None:
        return result
    return Value(result.type, Folded(d.operators.pop()))


def gain(d: Draft, width: int) -> Value:
    """Return a folded constant [1,1,width]: int8 elements, rescaled to int32."""
    elements = d.random.integers(-128, 128, width)
    wide = scale_by_steps(d, literal(elements, DType.INT8, np.int8))
    reshape = tosa.RESHAPE((wide, sizes((1, 1, width))))
    reshape.outputs = (Value(Type((1, 1, width), DType.INT32), Folded(reshape)),)
    return reshape.outputs[0]


def optimize_and_compare(d: Draft, *outputs: Value) -> Graph:
    """Run the passes, check that results are equal, and return the new graph."""
    given = d.graph(*outputs)
    result = run_passes(given, INT)
    assert_well_formed(result, INT)
    arrays = [
        d.random.integers(-128, 128, value.shape).astype(np.int8) for value in d.inputs
    ]
    for old, new in zip(evaluate(given, arrays), evaluate(result, arrays), strict=True):
        np.testing.assert_array_equal(new, old)
    return result


@pytest.mark.parametrize(
    "cls", [tosa.MUL, tosa.ADD, tosa.SUB], ids=lambda cls: cls.__name__
)
def test_constants_are_stored_as_int8_like_the_other_operand(cls):
    draft = Draft()
    x = scale_by_steps(draft, draft.input(1, 64, 96, dtype=DType.INT8))
    shift = [draft.no_shift] if cls is tosa.MUL else []
    result = optimize_and_compare(draft, draft.op(cls, gain(draft, 96), x, *shift))
    assert count_operators(result) == {"RESCALE": 2, cls.__name__: 1}
    constants = {
        v.dtype
        for op in result.operators
        for v in op.inputs
        if v.constant is not None and v.shape[-1:] == (96,)
    }
    assert constants == {DType.INT8}


def test_constants_in_small_products_stay_int32():
    draft = Draft()
    x = scale_by_steps(draft, draft.input(1, 4, 96, dtype=DType.INT8))
    optimized = optimize_and_compare(draft, draft.mul(x, gain(draft, 96)))
    assert count_operators(optimized) == {
        "RESCALE": 1,
        "MUL": 1,
    }


def test_constants_with_int32_operands_stay_int32():
    draft = Draft()
    x = draft.op(
        tosa.ABS, scale_by_steps(draft, draft.input(1, 64, 96, dtype=DType.INT8))
    )
    optimized = optimize_and_compare(draft, draft.mul(x, gain(draft, 96)))
    assert count_operators(optimized) == {
        "RESCALE": 1,
        "ABS": 1,
        "MUL": 1,
    }

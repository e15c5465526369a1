"""The compiler demo's shape rules against what torch computes."""

import torch
from delegraph.errors import Unsupported
from delegraph_demo.compiler.operators import TABLE, fitting
from hypothesis import given, settings
from hypothesis import strategies as st

shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)


def infer_shapes(row, operands):
    try:
        return row.check_shapes(*operands)
    except Unsupported as refusal:
        assert refusal.message
        return None


def torchs(row, operands):
    try:
        return tuple(row.target(*(torch.zeros(shape) for shape in operands)).shape)
    except (RuntimeError, IndexError):
        return None


def outside(row, operands):
    """What torch calls linear and the compiler refuses."""
    if row.target is not torch.ops.aten.linear.default:
        return False
    _, weight, *bias = operands
    return len(weight) != 2 or (bias and bias[0] not in ((), weight[:1]))


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(TABLE), st.lists(shapes, min_size=3, max_size=3), st.booleans())
def test_shapes_are_those_of_torch(row, operands, fewer):
    operands = operands[: row.min_operands if fewer else row.max_operands]
    assert infer_shapes(row, operands) == (
        None if outside(row, operands) else torchs(row, operands)
    )


def test_limits_of_values_are_checked():
    assert fitting((2**16, 2**15)) == (2**16, 2**15)
    assert fitting((1,) * 64) == (1,) * 64
    assert [
        infer_shapes(row, [(2**16, 1), (1, 2**16)][: row.min_operands])
        for row in TABLE
        if row.max_operands == 2
    ] == [None] * 3

"""The compiler demo infers the shapes that torch computes."""

import pytest
import torch
from delegraph.errors import Unsupported
from delegraph_demo.compiler.operators import TABLE, fitting
from hypothesis import given, settings
from hypothesis import strategies as st

shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)


def inferred_shape(row, operands):
    """Return the shape that the compiler infers, or None if it refuses the operands."""
    try:
        return row.check_shapes(*operands)
    except Unsupported as refusal:
        assert refusal.message
        return None


def shape_of_torch(row, operands):
    """Return the shape that torch computes, or None if it raises an error."""
    tensors = [torch.zeros(shape) for shape in operands]
    try:
        return tuple(row.target(*tensors).shape)
    except (RuntimeError, IndexError):
        return None


def is_unusual_linear(row, operands):
    """Return whether this is a linear layer of torch that the compiler refuses.

    Its weight has not two dimensions, or its bias is broadcast.
    """
    if row.target is not torch.ops.aten.linear.default:
        return False
    _, weight, *bias = operands
    if len(weight) != 2:
        return True
    return bool(bias) and bias[0] not in ((), weight[:1])


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(TABLE), st.lists(shapes, min_size=3, max_size=3), st.booleans())
def test_inferred_shapes_are_those_of_torch(row, operands, fewest):
    count = row.min_operands if fewest else row.max_operands
    operands = operands[:count]

    inferred = inferred_shape(row, operands)

    if is_unusual_linear(row, operands):
        assert inferred is None
    else:
        assert inferred == shape_of_torch(row, operands)


@pytest.mark.parametrize("shape", [(2**16, 2**15), (1,) * 64])
def test_the_largest_shapes_are_accepted(shape):
    assert fitting(shape) == shape


@pytest.mark.parametrize(
    "row",
    [row for row in TABLE if row.max_operands == 2],
    ids=lambda row: str(row.target),
)
def test_results_of_too_many_elements_are_refused(row):
    column = (2**16, 1)
    line = (1, 2**16)

    assert inferred_shape(row, [column, line]) is None

"""The pass that slices the original values instead of slices or concatenations of them."""

from __future__ import annotations

import numpy as np
import pytest
from delegraph_tosa.evaluate import evaluate
from delegraph_tosa.ir import operators as tosa
from delegraph_tosa.ir.graph import Value
from delegraph_tosa.ir.types import DType
from delegraph_tosa.passes import run_passes
from delegraph_tosa.passes.joined_slices import join_slices
from delegraph_tosa.spec import TosaSpec

from ..support.drafts import Draft, assert_well_formed, count_operators

INT = TosaSpec.parse("TOSA-1.0+INT")


def join_slices_and_compare(d: Draft, *outputs: Value):
    """Run the pass, check that results are equal, and return the new graph."""
    given = d.graph(*outputs)
    result = run_passes(join_slices(given, INT), INT)
    assert_well_formed(result, INT)
    arrays = [
        d.random.integers(-128, 128, value.shape).astype(np.int8) for value in d.inputs
    ]
    for old, new in zip(evaluate(given, arrays), evaluate(result, arrays), strict=True):
        np.testing.assert_array_equal(new, old)
    return result


def test_slice_of_slices_becomes_a_slice_of_the_original():
    draft = Draft()
    x = draft.input(5, 4, 6, dtype=DType.INT8)
    row = draft.slice(draft.slice(x, (1, 0, 0), (3, 4, 6)), (1, 1, 0), (1, 2, 6))
    result = join_slices_and_compare(
        draft,
        draft.slice(row, (0, 1, 3), (1, 1, 2)),
        draft.slice(row, (0, 0, 0), (1, 1, 6)),
    )
    assert count_operators(result) == {"SLICE": 2}
    assert {op.inputs[0] for op in result.operators} == set(result.inputs)


@pytest.mark.parametrize(
    ("start", "size", "operators_left"),
    [
        (2, 3, {}),  # the whole second operand
        (0, 2, {}),
        (3, 2, {"SLICE": 1}),
        (5, 1, {}),
        (1, 2, {"CONCAT": 1, "SLICE": 1}),  # parts of two operands
        (0, 6, {"CONCAT": 1}),
    ],
)
def test_slice_of_a_concatenation_reads_one_operand(start, size, operators_left):
    draft = Draft()
    parts = [draft.input(1, n, 3, dtype=DType.INT8) for n in (2, 3, 1)]
    result = join_slices_and_compare(
        draft,
        draft.op(
            tosa.BITWISE_NOT,
            draft.slice(
                draft.op(tosa.CONCAT, *parts, axis=1), (0, start, 0), (1, size, 3)
            ),
        ),
    )
    operators = count_operators(result)
    assert operators.pop("BITWISE_NOT") == 1
    assert operators == operators_left


def test_outputs_that_are_whole_slices_stay_separate_values():
    draft = Draft()
    x = draft.input(2, 3, dtype=DType.INT8)
    y = draft.input(1, 3, dtype=DType.INT8)
    whole = draft.op(tosa.CONCAT, x, y, axis=0)
    result = join_slices_and_compare(
        draft, draft.slice(whole, (0, 0), (2, 3)), draft.slice(whole, (0, 0), (2, 3))
    )
    assert len(set(result.outputs)) == 2
    assert not set(result.outputs) & set(result.inputs)

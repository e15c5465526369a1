"""The pass that multiplies by one matrix instead of repeating it along the batch."""

from __future__ import annotations

import pytest
from delegraph_tosa.ir import operators as tosa
from delegraph_tosa.ir.graph import Value
from delegraph_tosa.ir.types import DType
from delegraph_tosa.passes import run_passes, sources_of
from delegraph_tosa.spec import TosaSpec

from ..support.drafts import Draft, count_operators, optimize_and_compare, sizes


def repeated_keys(
    d: Draft, shape: tuple[int, ...], multiples: tuple[int, ...]
) -> Value:
    """Keys of ``shape``, for example [N,H,1,S,E], repeated to [12,E,S]."""
    tiled = d.op(tosa.TILE, d.input(*shape), sizes(multiples))
    return d.transpose(d.reshape(tiled, 12, 5, 4), 0, 2, 1)


@pytest.mark.parametrize("shape", [(1, 4, 1, 5, 4), (2, 2, 1, 5, 4)], ids=str)
def test_queries_that_share_keys_become_one_matrix(shape):
    draft = Draft()
    keys = repeated_keys(draft, shape, (1, 1, 12 // shape[0] // shape[1], 1, 1))
    result = optimize_and_compare(draft, draft.matmul(draft.input(12, 7, 4), keys))
    assert count_operators(result) == {"RESHAPE": 3, "TRANSPOSE": 1, "MATMUL": 1}
    (product,) = [op for op in result.operators if op.name == "MATMUL"]
    assert product.outputs[0].shape == (4, 21, 5)
    assert "TILE:0" in sources_of(product.source)


def test_products_by_one_repeated_matrix_become_one():
    draft = Draft()
    result = optimize_and_compare(
        draft,
        draft.matmul(
            draft.input(3, 7, 4),
            draft.op(tosa.TILE, draft.input(1, 4, 5), sizes((3, 1, 1))),
        ),
    )
    assert count_operators(result) == {"RESHAPE": 2, "MATMUL": 1}


REPETITIONS = {
    "apart": ((1, 1, 4, 5, 4), (1, 3, 1, 1, 1)),
    "of rows": ((1, 12, 1, 1, 4), (1, 1, 1, 5, 1)),
    "of two axes": ((1, 4, 1, 1, 4), (1, 1, 3, 5, 1)),
    "of pairs": ((1, 1, 6, 5, 4), (1, 1, 2, 1, 1)),
}
"""Name -> shape of keys, and repetitions along each axis. In no case are equal keys
adjacent in the batch.
"""


@pytest.mark.parametrize(("shape", "multiples"), REPETITIONS.values(), ids=REPETITIONS)
def test_repetitions_that_are_not_adjacent_in_the_batch_stay(shape, multiples):
    draft = Draft()
    keys = repeated_keys(draft, shape, multiples)
    optimized = optimize_and_compare(draft, draft.matmul(draft.input(12, 7, 4), keys))
    assert count_operators(optimized)["TILE"] == 1


def test_repeated_keys_with_another_use_stay():
    draft = Draft()
    keys = repeated_keys(draft, (1, 4, 1, 5, 4), (1, 1, 3, 1, 1))
    operators = count_operators(
        optimize_and_compare(draft, draft.matmul(draft.input(12, 7, 4), keys), keys)
    )
    assert operators == {"TILE": 1, "RESHAPE": 1, "TRANSPOSE": 1, "MATMUL": 1}


def test_products_of_48_bits_keep_repeated_operands():
    draft = Draft(dtype=DType.INT16)
    keys = repeated_keys(draft, (1, 4, 1, 5, 4), (1, 1, 3, 1, 1))
    y = draft.op(
        tosa.MATMUL,
        draft.input(12, 7, 4),
        keys,
        draft.zero(),
        draft.zero(),
        dtype=DType.INT48,
    )
    optimized = run_passes(draft.graph(y), TosaSpec.parse("TOSA-1.0+INT+int16"))
    assert count_operators(optimized)["TILE"] == 1

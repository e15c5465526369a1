"""The pass by which linear layers take over a transposition of their operand."""

from __future__ import annotations

import pytest
from delegraph_tosa.ir import operators as tosa
from delegraph_tosa.ir.graph import Value
from delegraph_tosa.passes import sources_of

from ..support.drafts import Draft, count_operators, optimize_and_compare


def joined_heads(d: Draft, batch: int, heads: int = 3) -> Value:
    """Return [batch,5,heads*4], the joined heads of an attention."""
    y = d.reshape(
        d.matmul(d.input(batch * heads, 5, 7), d.input(batch * heads, 7, 4)),
        batch,
        heads,
        5,
        4,
    )
    return d.reshape(d.transpose(y, 0, 2, 1, 3), batch, 5, heads * 4)


@pytest.mark.parametrize("batch", [1, 2])
def test_linear_layer_after_attention_needs_no_transpose(batch):
    draft = Draft()
    result = optimize_and_compare(draft, draft.linear(joined_heads(draft, batch), 6))
    assert count_operators(result) == {"MATMUL": 1, "RESHAPE": 2, "CONV2D": 1}
    (layer,) = [op for op in result.operators if op.name == "CONV2D"]
    assert layer.inputs[1].shape == (6, 3, 1, 4)
    assert {"TRANSPOSE:2", "RESHAPE:3", "CONV2D:5"} <= set(sources_of(layer.source))


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 3, 4, 5), (2, 3, 4, 1)], ids=str)
def test_linear_layers_read_flattened_maps_without_a_transpose(shape):
    draft = Draft()
    y = draft.conv(draft.input(*shape), 6)
    optimized = optimize_and_compare(
        draft,
        draft.linear(draft.reshape(y, shape[0], 6 * shape[2] * shape[3]), 7),
    )
    assert count_operators(optimized)["TRANSPOSE"] == 1


def test_values_with_other_uses_are_transposed_for_linear_layers():
    draft = Draft()
    x = joined_heads(draft, 1)
    operators = count_operators(optimize_and_compare(draft, draft.linear(x, 6), x))
    assert operators == {"MATMUL": 1, "TRANSPOSE": 1, "RESHAPE": 3, "CONV2D": 1}


def test_shared_weight_is_not_transposed():
    draft = Draft()
    weight = draft.constant(6, 1, 1, 12)
    bias = draft.constant(6)
    ys = [
        draft.bare(draft.reshape(x, 1, 1, 5, 12), tosa.CONV2D, weight, bias)
        for x in (joined_heads(draft, 1), draft.input(1, 5, 12))
    ]
    result = optimize_and_compare(draft, *ys)
    assert count_operators(result)["TRANSPOSE"] == 1
    weights = {op.inputs[1] for op in result.operators if op.name == "CONV2D"}
    assert weights == {weight}


PERMUTED = {(1, 0, 2): 0, (0, 2, 1): 0, (1, 2, 0): 0, (2, 0, 1): 1}
"""Permutation of [3,5,4] before its last two axes are joined -> transpositions that are
left. One is left if the layer does not sum over the input's last axis.
"""


@pytest.mark.parametrize("perms", PERMUTED, ids=str)
def test_a_linear_layer_sums_axes_in_any_order(perms):
    draft = Draft()
    moved = draft.transpose(draft.input(3, 5, 4), *perms)
    result = optimize_and_compare(
        draft,
        draft.linear(
            draft.reshape(moved, moved.shape[0], moved.shape[1] * moved.shape[2]), 6
        ),
    )
    assert count_operators(result)["TRANSPOSE"] == PERMUTED[perms]


@pytest.mark.parametrize("batch", [1, 2])
def test_channel_shuffles_fold_into_pointwise_convolution_weights(batch):
    draft = Draft()
    y = draft.conv(draft.shuffle(draft.conv(draft.input(batch, 3, 8, 8), 6), 2), 5)
    optimized = optimize_and_compare(draft, y)
    assert count_operators(optimized) == {
        "TRANSPOSE": 2,
        "CONV2D": 2,
    }


def test_linear_layers_join_heads_without_a_transpose():
    draft = Draft()
    operators = count_operators(
        optimize_and_compare(
            draft, draft.linear(draft.reshape(joined_heads(draft, 2), 10, 12), 6)
        )
    )
    assert operators["TRANSPOSE"] == 0
    assert operators["CONV2D"] == 1

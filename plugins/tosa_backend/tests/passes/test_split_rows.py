"""The pass that computes norms, softmax and attention in blocks of rows for Ethos-U."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from delegraph_tosa.evaluate import evaluate
from delegraph_tosa.ir import operators as tosa
from delegraph_tosa.ir.graph import Graph, Value, literal
from delegraph_tosa.ir.types import DType, RoundingMode
from delegraph_tosa.passes import run_passes, split_rows
from delegraph_tosa.spec import TosaSpec, target

from ..support.drafts import Draft, assert_well_formed, count_operators

INT = TosaSpec.parse("TOSA-1.0+INT+int16")
ROWS = 7
CHANNELS = 5


@pytest.fixture(autouse=True)
def npu(monkeypatch) -> TosaSpec:
    """An NPU with one byte of fast memory, so that everything is split into three
    blocks, the most that is allowed.
    """
    monkeypatch.setitem(target._DEVICES, "u85", lambda operator: None)
    monkeypatch.setattr(split_rows, "FAST_MEMORY", 1)
    monkeypatch.setattr(split_rows, "LEAST_SHARE", 0)
    monkeypatch.setattr(split_rows, "MOST_BLOCKS", 3)
    return replace(INT, devices=frozenset({"u85"}))


def rescale(d: Draft, x: Value, shift: int, dtype: DType, channels: int = 1) -> Value:
    """Return x divided by about 2**(shift - 30), with a separate scale for each channel
    if there are several.
    """
    multiplier = literal(
        [(1 << 30) - 1000 * channel for channel in range(channels)],
        DType.INT32,
        np.int32,
    )
    shifts = literal([shift] * channels, DType.INT8, np.int8)
    points = [literal([0], v, v.name.lower()) for v in (x.dtype, dtype)]
    flags = {
        "scale32": True,
        "per_channel": channels > 1,
        "input_unsigned": False,
        "output_unsigned": False,
    }
    return d.op(
        tosa.RESCALE,
        x,
        multiplier,
        shifts,
        *points,
        **flags,
        dtype=dtype,
        rounding_mode=RoundingMode.SINGLE_ROUND,
    )


def cast_to_int32(d: Draft, x: Value) -> Value:
    return d.op(tosa.CAST, x, dtype=DType.INT32)


def subtract_half_sum(d: Draft, x: Value, axis: int = 2) -> Value:
    """Return x - (sum of x along the axis) / 2 as int8, like the centring of a norm."""
    return centred_sums(d, cast_to_int32(d, x), axis)


def centred_sums(d: Draft, q: Value, axis: int) -> Value:
    """Return q - (sum of q along the axis) / 2 of int32 q, as int8."""
    return rescale(
        d,
        d.op(tosa.SUB, d.add(q, q), d.op(tosa.REDUCE_SUM, q, axis=axis)),
        33,
        DType.INT8,
    )


def shares(d: Draft, scores: Value, hidden: Value | None = None) -> Value:
    """Return the difference of int32 scores from the largest of their row, as int8."""
    if hidden is not None:
        scores = d.op(
            tosa.SELECT,
            hidden,
            literal(np.full((1, 1, 1), -999), DType.INT32, np.int32),
            scores,
        )
    half = scores.shape[2] // 2
    parts = [
        d.slice(scores, (0, 0, start), (*scores.shape[:2], half))
        for start in (0, scores.shape[2] - half)
    ]
    largest = d.op(tosa.REDUCE_MAX, d.op(tosa.MAXIMUM, *parts), axis=2)
    return rescale(d, d.op(tosa.SUB, scores, largest), 39, DType.INT8)


def product(d: Draft, a: Value, b: Value) -> Value:
    zero = literal([0], DType.INT8, np.int8)
    return d.op(tosa.MATMUL, a, b, zero, zero, dtype=DType.INT32)


def attention(d: Draft, heads: int = 2, hidden: Value | None = None) -> Value:
    """Return an attention of three inputs."""
    sizes = (ROWS, 3), (3, 6), (6, 4)
    return attend(
        d, *[d.input(heads, *size, dtype=DType.INT8) for size in sizes], hidden
    )


def attend(
    d: Draft, query: Value, key: Value, value: Value, hidden: Value | None = None
) -> Value:
    """Return an attention: a product of queries and keys, its shares of each row, and
    their product with the values.
    """
    weights = shares(d, product(d, query, key), hidden)
    sums = d.op(tosa.REDUCE_SUM, cast_to_int32(d, weights), axis=2)
    return rescale(d, d.op(tosa.SUB, product(d, weights, value), sums), 40, DType.INT8)


def layer(d: Draft, x: Value, channels: int, bias: int) -> Value:
    """Return a quantized linear layer of x [1,1,L,C] with ``bias`` bias numbers."""
    weight = literal(
        d.random.integers(-127, 128, (channels, 1, 1, x.shape[-1])), DType.INT8, np.int8
    )
    added = literal(d.random.integers(-99, 99, bias), DType.INT32, np.int32)
    zero = literal([0], DType.INT8, np.int8)
    attributes = {
        "pad": (0,) * 4,
        "stride": (1, 1),
        "dilation": (1, 1),
        "acc_type": DType.INT32,
    }
    return rescale(
        d,
        d.op(tosa.CONV2D, x, weight, added, zero, zero, **attributes),
        38,
        DType.INT8,
        channels,
    )


def in_heads(d: Draft, x: Value, size: int, *perms: int) -> Value:
    """Split x [1,1,L,heads * size] into [L,heads,size], and transpose that."""
    return d.transpose(d.reshape(x, x.shape[2], x.shape[3] // size, size), *perms)


def layers_of_heads(d: Draft, x: Value) -> list[Value]:
    """Return queries, keys and values of two heads, laid out for products."""
    query = layer(d, x, 6, 6)
    key = layer(d, x, 6, 1)
    value = layer(d, x, 8, 8)
    return [
        in_heads(d, query, 3, 1, 0, 2),
        in_heads(d, key, 3, 1, 2, 0),
        in_heads(d, value, 4, 1, 0, 2),
    ]


def split_and_compare(d: Draft, spec: TosaSpec, *outputs: Value) -> Graph:
    """Run the passes, check that results are equal, and return the new graph."""
    given = d.graph(*outputs)
    result = run_passes(given, spec)
    assert_well_formed(result, spec)
    arrays = [
        d.random.integers(-128, 128, value.shape).astype(np.int8) for value in d.inputs
    ]
    for old, new in zip(evaluate(given, arrays), evaluate(result, arrays), strict=True):
        assert len(np.unique(old)) > 5
        np.testing.assert_array_equal(new, old)
    return result


def test_norms_are_split_into_blocks_of_similar_size(npu):
    draft = Draft()
    result = split_and_compare(
        draft,
        npu,
        subtract_half_sum(draft, draft.input(1, ROWS, CHANNELS, dtype=DType.INT8)),
    )
    sums = [
        op.outputs[0].shape
        for op in result.operators
        if isinstance(op, tosa.REDUCE_SUM)
    ]
    assert sums == [(1, 3, 1), (1, 2, 1), (1, 2, 1)]
    assert count_operators(result)["SLICE"] == 3
    assert count_operators(result)["CONCAT"] == 1


def test_table_of_8_bits_is_looked_up_in_blocks(npu):
    draft = Draft()
    q = cast_to_int32(draft, draft.input(1, ROWS, CHANNELS, dtype=DType.INT8))
    total = draft.op(tosa.REDUCE_SUM, q, axis=2)
    entries = literal(draft.random.integers(-128, 128, 256), DType.INT8, np.int8)
    found = draft.op(
        tosa.TABLE,
        rescale(draft, draft.op(tosa.SUB, q, total), 33, DType.INT8),
        entries,
    )
    result = split_and_compare(
        draft,
        npu,
        rescale(draft, draft.add(cast_to_int32(draft, found), total), 32, DType.INT8),
    )
    assert (
        count_operators(result)["TABLE"] == count_operators(result)["REDUCE_SUM"] == 3
    )
    assert count_operators(result)["CONCAT"] == 1


def test_blocks_divide_the_longest_axis_that_is_not_reduced(npu):
    draft = Draft()
    result = split_and_compare(
        draft,
        npu,
        subtract_half_sum(draft, draft.input(2, CHANNELS, 9, dtype=DType.INT8), axis=1),
    )
    assert {
        op.outputs[0].shape
        for op in result.operators
        if isinstance(op, tosa.REDUCE_SUM)
    } == {(2, 1, 3)}


def test_attention_is_split_into_blocks_of_queries(npu):
    draft = Draft()
    result = split_and_compare(draft, npu, attention(draft))
    products = [
        op.outputs[0].shape for op in result.operators if isinstance(op, tosa.MATMUL)
    ]
    assert Counter(products) == {(1, 3, 6): 2, (1, 3, 4): 2, (1, 2, 6): 4, (1, 2, 4): 4}
    # One for each head's results and one for both heads, but none for the weights.
    assert count_operators(result)["CONCAT"] == 3


def count_channels(graph: Graph) -> Counter:
    return Counter(
        op.outputs[0].shape[-1] for op in graph.operators if isinstance(op, tosa.CONV2D)
    )


def test_each_head_gets_its_own_layers(npu):
    draft = Draft()
    result = split_and_compare(
        draft,
        npu,
        attend(
            draft, *layers_of_heads(draft, draft.input(1, 1, ROWS, 5, dtype=DType.INT8))
        ),
    )
    assert count_channels(result) == {3: 4, 4: 2}
    # Within one head, only keys need a transposition.
    assert [
        op.outputs[0].shape for op in result.operators if isinstance(op, tosa.TRANSPOSE)
    ] == [(1, 3, ROWS)] * 2


def test_layers_with_another_use_are_computed_whole(npu):
    draft = Draft()
    heads = layers_of_heads(draft, draft.input(1, 1, ROWS, 5, dtype=DType.INT8))
    result = split_and_compare(
        draft, npu, attend(draft, *heads), draft.op(tosa.BITWISE_NOT, heads[0])
    )
    assert count_channels(result) == {6: 1, 3: 2, 4: 2}


def test_heads_mixed_by_a_reshape_are_split_after_it(npu):
    draft = Draft()
    _, key, value = layers_of_heads(draft, draft.input(1, 1, ROWS, 5, dtype=DType.INT8))
    query = draft.reshape(draft.input(ROWS, 6, dtype=DType.INT8), 2, ROWS, 3)
    result = split_and_compare(draft, npu, attend(draft, query, key, value))
    assert (2, ROWS, 3) in {
        op.inputs[0].shape for op in result.operators if isinstance(op, tosa.SLICE)
    }


def test_more_heads_than_blocks_stay_together(npu):
    draft = Draft()
    result = split_and_compare(draft, npu, attention(draft, heads=4))
    assert {
        op.outputs[0].shape[0] for op in result.operators if isinstance(op, tosa.MATMUL)
    } == {4}


def test_more_heads_than_rows_are_split_along_the_heads(npu):
    draft = Draft()
    result = split_and_compare(draft, npu, attention(draft, heads=9))
    shapes = [
        op.outputs[0].shape for op in result.operators if isinstance(op, tosa.MATMUL)
    ]
    assert Counter(shapes) == {(3, ROWS, 6): 3, (3, ROWS, 4): 3}


def test_a_mask_that_is_constant_is_cut_with_the_rows(npu):
    draft = Draft()
    hidden = literal(
        draft.random.integers(0, 2, (1, ROWS, 6)) > 0, DType.BOOL, np.bool_
    )
    result = split_and_compare(draft, npu, attention(draft, hidden=hidden))
    assert sorted(
        op.inputs[0].shape[1] for op in result.operators if isinstance(op, tosa.SELECT)
    ) == [2, 2, 2, 2, 3, 3]


def test_a_mask_for_all_rows_is_read_whole(npu):
    draft = Draft()
    hidden = literal(draft.random.integers(0, 2, (1, 1, 6)) > 0, DType.BOOL, np.bool_)
    result = split_and_compare(draft, npu, attention(draft, hidden=hidden))
    assert {
        op.inputs[0].shape for op in result.operators if isinstance(op, tosa.SELECT)
    } == {(1, 1, 6)}


def test_norms_that_are_read_twice_are_joined_once(npu):
    draft = Draft()
    y = subtract_half_sum(draft, draft.input(1, ROWS, CHANNELS, dtype=DType.INT8))
    result = split_and_compare(draft, npu, y, draft.op(tosa.BITWISE_NOT, y))
    assert count_operators(result)["CONCAT"] == 1


KEPT = {
    "32 bits are a result": lambda d, x: d.op(
        tosa.REDUCE_SUM, cast_to_int32(d, x), axis=2
    ),
    "nothing is summed": lambda d, x: rescale(
        d, d.add(cast_to_int32(d, x), cast_to_int32(d, x)), 31, DType.INT8
    ),
    "rows are reversed": lambda d, x: rescale(
        d,
        d.op(
            tosa.SUB,
            d.op(tosa.REVERSE, cast_to_int32(d, x), axis=1),
            d.op(tosa.REDUCE_SUM, cast_to_int32(d, x), axis=2),
        ),
        33,
        DType.INT8,
    ),
    "rows are summed as well": lambda d, x: rescale(
        d,
        d.op(
            tosa.REDUCE_SUM, d.op(tosa.REDUCE_SUM, cast_to_int32(d, x), axis=2), axis=1
        ),
        33,
        DType.INT8,
    ),
    "each row has a scale": lambda d, x: rescale(
        d,
        d.add(cast_to_int32(d, x), d.op(tosa.REDUCE_SUM, cast_to_int32(d, x), axis=1)),
        31,
        DType.INT8,
        CHANNELS,
    ),
    "rows are columns of a product": lambda d, x: centred_sums(
        d,
        product(d, x, literal(np.ones((1, CHANNELS, CHANNELS)), DType.INT8, np.int8)),
        axis=1,
    ),
    "a part of the rows": lambda d, x: rescale(
        d,
        d.op(
            tosa.REDUCE_SUM,
            d.slice(cast_to_int32(d, x), (0, 1, 0), (1, ROWS - 1, CHANNELS)),
            axis=2,
        ),
        33,
        DType.INT8,
    ),
}


def test_product_that_reads_all_rows_of_a_norm_stays_whole(npu):
    draft = Draft()
    q = cast_to_int32(draft, draft.input(1, ROWS, ROWS, dtype=DType.INT8))
    sums = draft.op(tosa.REDUCE_SUM, q, axis=2)
    y = rescale(draft, draft.op(tosa.SUB, q, sums), 33, DType.INT8)
    result = split_and_compare(
        draft,
        npu,
        rescale(draft, draft.op(tosa.SUB, product(draft, y, y), sums), 38, DType.INT8),
    )
    assert [
        op.outputs[0].shape for op in result.operators if isinstance(op, tosa.MATMUL)
    ] == [(1, ROWS, ROWS)]


def test_product_of_rows_with_all_rows_is_split_in_one_operand(npu):
    draft = Draft()
    x = draft.input(1, ROWS, ROWS, dtype=DType.INT8)
    y = product(draft, x, x)
    result = split_and_compare(
        draft,
        npu,
        rescale(
            draft,
            draft.op(tosa.SUB, y, draft.op(tosa.REDUCE_SUM, y, axis=2)),
            38,
            DType.INT8,
        ),
    )
    shapes = [
        [v.shape for v in op.inputs[:2]]
        for op in result.operators
        if isinstance(op, tosa.MATMUL)
    ]
    assert shapes == [[(1, rows, ROWS), (1, ROWS, ROWS)] for rows in (3, 2, 2)]


@pytest.mark.parametrize("network", KEPT.values(), ids=KEPT)
def test_graphs_without_row_chains_are_unchanged(network, npu):
    draft = Draft()
    given = draft.graph(
        network(draft, draft.input(1, ROWS, CHANNELS, dtype=DType.INT8))
    )
    assert split_rows.split_rows(given, npu) is given


def test_interdependent_results_are_not_split(npu):
    """The second result reads all rows of the first, so it cannot start with one block."""
    draft = Draft()
    q = cast_to_int32(draft, draft.input(1, ROWS, ROWS, dtype=DType.INT8))
    total = draft.op(tosa.REDUCE_SUM, q, axis=2)
    first = rescale(draft, draft.op(tosa.SUB, q, total), 33, DType.INT8)
    other = draft.reshape(draft.op(tosa.BITWISE_NOT, first), 1, 1, ROWS * ROWS)
    largest = draft.op(tosa.REDUCE_MAX, other, axis=2)
    second = rescale(
        draft, draft.op(tosa.SUB, q, cast_to_int32(draft, largest)), 33, DType.INT8
    )
    given = draft.graph(first, second)
    assert split_rows.split_rows(given, npu) is given


def norm_graph() -> Graph:
    draft = Draft()
    x = draft.input(1, ROWS, CHANNELS, dtype=DType.INT8)
    return draft.graph(subtract_half_sum(draft, x))


def test_graphs_for_other_targets_are_unchanged():
    graph = norm_graph()

    assert split_rows.split_rows(graph, INT) is graph


def test_graphs_that_fit_fast_memory_are_unchanged(npu, monkeypatch):
    monkeypatch.setattr(split_rows, "FAST_MEMORY", 1 << 16)
    graph = norm_graph()

    assert split_rows.split_rows(graph, npu) is graph


@pytest.mark.parametrize(("larger", "blocks"), [(1, 3), (4, 1)])
def test_regions_within_the_peak_memory_are_not_split(larger, blocks, npu):
    """Splitting cannot lower the peak if another image needs as much memory anyway."""
    draft = Draft()
    x = draft.input(1, ROWS, CHANNELS, dtype=DType.INT8)
    image = draft.input(1, ROWS, 4 * larger * CHANNELS, dtype=DType.INT8)
    result = split_and_compare(
        draft, npu, subtract_half_sum(draft, x), draft.op(tosa.BITWISE_NOT, image)
    )
    assert count_operators(result)["REDUCE_SUM"] == blocks

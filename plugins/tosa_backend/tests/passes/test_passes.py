"""The passes: what they make of the patterns of real networks, and that they compute
the same on any graph.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from delegraph.backend import CompileSpec
from delegraph_tosa.backend import TOSABackend
from delegraph_tosa.evaluate import evaluate
from delegraph_tosa.ir import operators as tosa
from delegraph_tosa.ir.dynamic_sizes import symbol
from delegraph_tosa.ir.graph import Folded, Value, literal
from delegraph_tosa.ir.types import DType, RoundingMode, Type
from delegraph_tosa.passes import PASSES, run_passes, sources_of
from delegraph_tosa.serialize import read
from delegraph_tosa.spec import TosaSpec
from delegraph_tosa.text import render
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ..support.drafts import (
    FP,
    NHWC,
    Draft,
    assert_well_formed,
    count_operators,
    optimize_and_compare,
)
from ..support.random_graphs import PATTERNS, drafts, shapes_of_any_size


def before_and_after(draft: Draft, *outputs: Value) -> str:
    return (
        f"{render(draft.graph(*outputs))}\n-- after the passes"
        f" --\n\n{render(optimize_and_compare(draft, *outputs))}"
    )


def test_golden_residual_block(golden):
    """Transposes meet and go; batch norms fold."""
    d = Draft()
    x = d.relu(d.norm(d.conv(d.input(1, 2, 4, 4), 3)))
    y = d.norm(d.conv(d.relu(d.norm(d.conv(x, 2))), 3))
    golden("residual_block", before_and_after(d, d.relu(d.add(x, y))))


def test_golden_head(golden):
    """A mean over height and width is taken in NHWC, where its reshape needs no
    transpose.
    """
    d = Draft()
    x = d.relu(d.depthwise(d.input(1, 2, 3, 3)))
    golden(
        "head",
        before_and_after(
            d, d.matmul(d.reshape(d.mean(x), 1, 1, 2), d.constant(1, 2, 3))
        ),
    )


def test_convolution_batch_norm_and_relu_become_two_operators():
    d = Draft()
    x = d.input(2, 3, 5, 7)
    y = d.relu(d.norm(d.conv(d.relu(d.norm(d.conv(x, 4, 3))), 6)))
    assert count_operators(optimize_and_compare(d, y)) == {
        "TRANSPOSE": 2,
        "CONV2D": 2,
        "CLAMP": 2,
    }


def test_batch_norm_folds_into_depthwise_with_a_multiplier():
    d = Draft()
    y = d.norm(d.depthwise(d.input(1, 4, 6, 6), multiplier=3))
    assert count_operators(optimize_and_compare(d, y)) == {
        "TRANSPOSE": 2,
        "DEPTHWISE_CONV2D": 1,
    }


def test_a_scalar_factor_folds_into_any_convolution():
    d = Draft()
    x = d.input(1, 4, 6, 6)
    ys = [
        d.mul(d.constant(1, 1, 1, 1), d.conv(x, 3)),
        d.mul(d.depthwise(x), d.constant(1, 1, 1, 1)),
    ]
    assert count_operators(optimize_and_compare(d, *ys))["MUL"] == 0


def test_a_subtracted_constant_folds_and_a_minuend_does_not():
    d = Draft()
    x = d.input(1, 4, 6, 6)
    ys = [
        d.op(tosa.SUB, d.conv(x, 3), d.constant(1, 3, 1, 1)),
        d.op(tosa.SUB, d.constant(1, 3, 1, 1), d.conv(x, 3)),
    ]
    assert count_operators(optimize_and_compare(d, *ys))["SUB"] == 1


def test_a_convolution_that_something_else_uses_keeps_its_value():
    d = Draft()
    y = d.conv(d.input(1, 3, 4, 4), 5)
    assert count_operators(optimize_and_compare(d, d.add(d.norm(y), y))) == {
        "TRANSPOSE": 2,
        "CONV2D": 1,
        "MUL": 1,
        "ADD": 2,
    }


def test_a_convolution_that_is_a_result_keeps_its_value():
    d = Draft()
    y = d.bare(d.input(1, 4, 4, 3), tosa.CONV2D, d.constant(5, 1, 1, 3), d.constant(5))
    assert count_operators(
        optimize_and_compare(d, d.mul(y, d.constant(1, 1, 1, 5)), y)
    ) == {
        "CONV2D": 1,
        "MUL": 1,
    }


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (1, 3, 1, 1)], ids=str)
def test_a_factor_before_a_convolution_folds_into_its_weight(shape):
    d = Draft()
    x = d.relu(d.conv(d.input(1, 3, 6, 6), 3))
    ys = [
        d.conv(d.mul(x, d.constant(*shape)), 4, 3),
        d.depthwise(d.mul(d.constant(*shape), x), multiplier=2),
    ]
    assert count_operators(optimize_and_compare(d, *ys)) == {
        "TRANSPOSE": 3,
        "CLAMP": 1,
        "CONV2D": 2,
        "DEPTHWISE_CONV2D": 1,
    }


def test_a_factor_that_something_else_uses_stays():
    d = Draft()
    x = d.mul(d.relu(d.conv(d.input(1, 3, 6, 6), 3)), d.constant(1, 1, 1, 1))
    result = optimize_and_compare(d, d.add(x, d.conv(x, 3)))
    convolution = [op for op in result.operators if op.name == "CONV2D"][1]
    assert convolution.inputs[0].producer.name == "MUL"


def test_a_factor_that_makes_channels_stays():
    d = Draft()
    x = d.relu(d.conv(d.input(1, 3, 6, 6), 1))
    assert (
        count_operators(
            optimize_and_compare(d, d.conv(d.mul(x, d.constant(1, 5, 1, 1)), 3))
        )["MUL"]
        == 1
    )


def test_only_factors_after_half_precision_convolutions_fold():
    d = Draft(dtype=DType.FP16)
    x = d.mul(
        d.relu(d.mul(d.conv(d.input(1, 3, 6, 6), 3), d.constant(1, 1, 1, 1))),
        d.constant(1, 1, 1, 1),
    )
    result = run_passes(d.graph(d.conv(x, 2)), FP)
    assert [op.name for op in result.operators] == [
        "TRANSPOSE",
        "CONV2D",
        "CLAMP",
        "MUL",
        "CONV2D",
        "TRANSPOSE",
    ]


def test_hard_swish_between_convolutions_costs_one_product():
    d = Draft()
    x = d.norm(d.conv(d.input(1, 3, 6, 6), 4))
    gate = d.op(tosa.CLAMP, d.add(x, d.constant(1, 1, 1, 1)), min_val=0.0, max_val=6.0)
    y = d.norm(d.conv(d.mul(d.mul(x, gate), d.constant(1, 1, 1, 1)), 5))
    assert count_operators(optimize_and_compare(d, y)) == {
        "TRANSPOSE": 2,
        "CONV2D": 2,
        "ADD": 1,
        "CLAMP": 1,
        "MUL": 1,
    }


@pytest.mark.parametrize("convolution", [Draft.conv, Draft.depthwise])
def test_padding_with_zeros_becomes_that_of_the_convolution(convolution):
    d = Draft()
    padded = d.pad(
        d.relu(d.conv(d.input(1, 3, 6, 6), 3)), 0, 0, 0, 0, 1, 2, 0, 3, number=0.0
    )
    *others, operator, last = optimize_and_compare(
        d, convolution(d, padded, kernel=3)
    ).operators
    assert [op.name for op in (*others, last)] == [
        "TRANSPOSE",
        "CONV2D",
        "CLAMP",
        "TRANSPOSE",
    ]
    assert operator.pad == (1 + 1, 2 + 1, 0 + 1, 3 + 1)


@pytest.mark.parametrize(
    ("padding", "number"),
    [((0, 0, 0, 0, 1, 1, 1, 1), 1.5), ((0, 1, 0, 0, 1, 1, 1, 1), 0.0)],
)
def test_padding_that_a_convolution_cannot_do_stays(padding, number):
    d = Draft()
    x = d.pad(d.relu(d.conv(d.input(1, 3, 6, 6), 3)), *padding, number=number)
    assert count_operators(optimize_and_compare(d, d.conv(x, 4)))["PAD"] == 1


def test_padding_beyond_the_level_stays():
    d = Draft()
    x = d.pad(
        d.relu(d.conv(d.input(1, 3, 6, 6), 3)), 0, 0, 0, 0, 0, 0, 8193, 0, number=0.0
    )
    assert count_operators(run_passes(d.graph(d.conv(x, 4)), FP))["PAD"] == 1


@pytest.mark.parametrize("shape", [(1, 1, 4, 1), (1, 5, 4, 1), (2, 5, 1, 1)], ids=str)
def test_a_factor_that_differs_within_a_channel_stays(shape):
    d = Draft()
    y = d.mul(d.conv(d.input(1, 3, 4, 4), 5), d.constant(*shape))
    assert count_operators(optimize_and_compare(d, y))["MUL"] == 1


def test_the_same_weight_with_the_same_factor_is_folded_once():
    d = Draft()
    x = d.input(1, 3, 4, 4)
    weight = d.constant(5, 1, 1, 3)
    bias = d.constant(5)
    factor = d.constant(1, 5, 1, 1)
    ys = [d.mul(d.around(v, tosa.CONV2D, weight, bias), factor) for v in (x, d.relu(x))]
    convolutions = [
        op for op in optimize_and_compare(d, *ys).operators if op.name == "CONV2D"
    ]
    assert len({op.inputs[1] for op in convolutions}) == 1


def test_the_merged_operator_names_all_its_sources():
    d = Draft()
    result = optimize_and_compare(d, d.norm(d.conv(d.input(1, 3, 4, 4), 5)))
    (convolution,) = [op for op in result.operators if op.name == "CONV2D"]
    assert sources_of(convolution.source) == ("CONV2D:1", "MUL:3", "ADD:4")
    assert str(convolution.source) == "CONV2D:1 and MUL:3 and ADD:4"


def test_one_transpose_in_place_of_several_names_all_their_sources():
    d = Draft()
    x = d.relu(d.transpose(d.input(2, 3, 4), 1, 0, 2))
    result = optimize_and_compare(d, d.transpose(x, 0, 2, 1))
    assert [op.source for op in result.operators] == [
        "CLAMP:1",
        ("TRANSPOSE:0", "TRANSPOSE:2"),
    ]


def test_merged_operators_name_both_sources():
    d = Draft()
    x = d.input(1, 3, 4, 4)
    result = optimize_and_compare(d, d.transpose(x, *NHWC), d.transpose(x, *NHWC))
    assert [op.source for op in result.operators] == [
        ("TRANSPOSE:0", "TRANSPOSE:1"),
        "TRANSPOSE:1",
    ]


def test_outputs_of_cancelled_operators_name_their_sources():
    d = Draft()
    x = d.input(2, 3)
    result = optimize_and_compare(d, d.transpose(d.transpose(x, 1, 0), 1, 0))
    assert [(op.name, op.source) for op in result.operators] == [
        ("IDENTITY", "TRANSPOSE:1")
    ]


def test_convolutions_get_the_debug_handles_of_folded_nodes():
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 1), torch.nn.BatchNorm2d(4), torch.nn.ReLU()
    ).eval()
    program = torch.export.export(model, (torch.randn(1, 3, 4, 4),))
    for handle, node in enumerate(
        (n for n in program.graph.nodes if n.op == "call_function"), start=1
    ):
        node.meta["debug_handle"] = handle
    specs = [
        CompileSpec("output_format", b"tosa"),
        CompileSpec("tosa_spec", b"TOSA-1.0+FP"),
    ]
    result = TOSABackend.preprocess(program, specs)
    operators = [op.name for op in read(result.processed_bytes.join()).operators]
    assert list(zip(operators, result.debug_handle_map.values(), strict=True)) == [
        ("TRANSPOSE", (1,)),
        ("CONV2D", (1, 2)),
        ("CLAMP", (3,)),
        ("TRANSPOSE", (1,)),
    ]


def test_integers_are_not_folded():
    d = Draft()
    zero = literal([0], DType.INT8, np.int8)
    x = d.input(1, 2, 2, 3, dtype=DType.INT8)
    weight = literal(np.ones((4, 1, 1, 3)), DType.INT8, np.int8)
    attributes = {
        "pad": (0,) * 4,
        "stride": (1, 1),
        "dilation": (1, 1),
        "acc_type": DType.INT32,
    }
    y = d.op(
        tosa.CONV2D,
        x,
        weight,
        literal([0], DType.INT32, np.int32),
        zero,
        zero,
        **attributes,
    )
    graph = d.graph(d.add(y, literal(np.ones((1, 1, 1, 4)), DType.INT32, np.int32)))
    assert count_operators(run_passes(graph, TosaSpec.parse("TOSA-1.0+INT"))) == {
        "CONV2D": 1,
        "ADD": 1,
    }


def test_an_inverted_residual_chain_has_two_transposes():
    d = Draft()
    x = d.conv(d.input(1, 3, 8, 8), 4)
    for _ in range(3):
        y = d.relu(d.norm(d.conv(x, 8)))
        y = d.relu(d.norm(d.depthwise(y)))
        x = d.add(x, d.norm(d.conv(y, 4)))
    assert count_operators(optimize_and_compare(d, x)) == {
        "TRANSPOSE": 2,
        "CONV2D": 7,
        "DEPTHWISE_CONV2D": 3,
        "CLAMP": 6,
        "ADD": 3,
    }


def test_a_residual_of_the_input_transposes_the_input_once():
    d = Draft()
    x = d.input(1, 4, 6, 6)
    assert count_operators(optimize_and_compare(d, d.relu(d.add(d.conv(x, 4), x)))) == {
        "TRANSPOSE": 2,
        "CONV2D": 1,
        "ADD": 1,
        "CLAMP": 1,
    }


def test_squeeze_and_excite_stays_in_the_layout_of_its_convolutions():
    d = Draft()
    x = d.relu(d.conv(d.input(1, 3, 8, 8), 4))
    scale = d.op(tosa.SIGMOID, d.conv(d.relu(d.conv(d.mean(x), 2)), 4))
    y = d.conv(d.mul(scale, x), 3)
    kept = {"CONV2D": 4, "CLAMP": 2, "SIGMOID": 1, "REDUCE_SUM": 2, "MUL": 1}
    assert count_operators(optimize_and_compare(d, y)) == {"TRANSPOSE": 2, **kept}


@pytest.mark.parametrize("batch", [1, 2])
def test_squeeze_and_excite_with_linear_layers(batch):
    d = Draft()
    x = d.conv(d.input(batch, 3, 8, 8), 4)
    flat = d.reshape(d.reshape(d.mean(x), batch, 4), 1, batch, 4)
    hidden = d.op(
        tosa.SIGMOID, d.reshape(d.matmul(flat, d.constant(1, 4, 4)), batch, 4)
    )
    y = d.conv(d.mul(x, d.reshape(hidden, batch, 4, 1, 1)), 3)
    kept = {"CONV2D": 2, "SIGMOID": 1, "REDUCE_SUM": 2, "MUL": 2, "MATMUL": 1}
    found = count_operators(optimize_and_compare(d, y))
    assert found.pop("RESHAPE") <= 2
    assert found == {"TRANSPOSE": 2, **kept}


@pytest.mark.parametrize("batch", [1, 2])
def test_global_mean_and_linear_need_no_transpose_after_the_convolution(batch):
    d = Draft()
    y = d.reshape(d.mean(d.conv(d.input(batch, 3, 8, 8), 4)), batch, 4)
    y = d.reshape(d.matmul(d.reshape(y, 1, batch, 4), d.constant(1, 4, 6)), batch, 6)
    found = count_operators(optimize_and_compare(d, y))
    assert found["TRANSPOSE"] == 1
    assert found["RESHAPE"] == 2


def test_branches_are_joined_along_the_channel_axis_of_their_layout():
    d = Draft()
    x = d.conv(d.input(1, 3, 8, 8), 4)
    for _ in range(3):
        x = d.op(tosa.CONCAT, x, d.relu(d.norm(d.conv(x, 2, 3))), axis=1)
    result = optimize_and_compare(d, x)
    assert count_operators(result) == {
        "TRANSPOSE": 2,
        "CONV2D": 4,
        "CLAMP": 3,
        "CONCAT": 3,
    }
    assert {op.axis for op in result.operators if op.name == "CONCAT"} == {3}


@pytest.mark.parametrize("batch", [1, 2])
def test_a_channel_shuffle_is_one_transpose_within_the_channels(batch):
    d = Draft()
    y = d.conv(d.input(batch, 3, 8, 8), 6)
    for _ in range(2):
        y = d.depthwise(d.shuffle(y, 2))
    assert count_operators(optimize_and_compare(d, y)) == {
        "TRANSPOSE": 2 + 2,
        "RESHAPE": 4,
        "CONV2D": 1,
        "DEPTHWISE_CONV2D": 2,
    }


@pytest.mark.parametrize("batch", [1, 2])
def test_patches_of_a_vision_transformer_need_no_transpose(batch):
    d = Draft()
    y = d.transpose(
        d.reshape(d.conv(d.input(batch, 3, 8, 8), 6), batch, 6, 64), 0, 2, 1
    )
    assert count_operators(optimize_and_compare(d, y)) == {
        "TRANSPOSE": 1,
        "CONV2D": 1,
        "RESHAPE": 1,
    }


@pytest.mark.parametrize("batch", [1, 2])
def test_attention_heads_cost_one_transpose_each_way(batch):
    d = Draft()
    x = d.input(batch, 5, 12)
    split = d.transpose(d.reshape(x, batch, 5, 3, 4), 0, 2, 1, 3)
    heads = d.reshape(split, batch * 3, 5, 4)
    y = d.reshape(d.matmul(heads, d.constant(batch * 3, 4, 4)), batch, 3, 5, 4)
    y = d.reshape(d.transpose(y, 0, 2, 1, 3), batch, 5, 12)
    found = count_operators(optimize_and_compare(d, y))
    assert found["TRANSPOSE"] == 2
    assert found["RESHAPE"] <= (2 if batch == 1 else 4)


def test_flattening_a_feature_map_keeps_the_order_of_its_elements():
    d = Draft()
    y = d.reshape(d.conv(d.input(2, 3, 4, 5), 6), 2, 120)
    assert count_operators(optimize_and_compare(d, y)) == {
        "TRANSPOSE": 2,
        "CONV2D": 1,
        "RESHAPE": 1,
    }


def test_a_transpose_that_only_moves_single_axes_is_a_reshape():
    d = Draft()
    assert count_operators(
        optimize_and_compare(d, d.transpose(d.input(1, 1, 7, 1), 2, 1, 0, 3))
    ) == {"RESHAPE": 1}


def test_views_move_past_operands_that_broadcast_added_axes():
    d = Draft()
    x = d.reshape(d.input(2, 3), 2, 3, 1)
    assert (
        count_operators(
            optimize_and_compare(
                d, d.add(x, d.input(2, 3, 4)), d.add(d.constant(2, 3, 4), x)
            )
        )["RESHAPE"]
        == 1
    )


def test_a_constant_that_is_transposed_already_is_transposed_once():
    d = Draft()
    folded = tosa.TRANSPOSE((d.constant(3, 2, 4),), perms=(0, 2, 1))
    constant = Value(folded.infer()[0], Folded(folded))
    folded.outputs = (constant,)
    y = d.op(tosa.MAXIMUM, d.transpose(d.input(4, 2, 3), 2, 0, 1), constant)
    maximum, _ = optimize_and_compare(d, y).operators
    assert maximum.inputs[1].constant.operator.inputs[0] is folded.inputs[0]


def test_axes_of_size_one_inside_a_group_that_is_joined():
    d = Draft()
    y = d.reshape(d.transpose(d.input(1, 5, 2, 3), 2, 0, 3, 1), 6, 5)
    assert count_operators(optimize_and_compare(d, y)) == {"TRANSPOSE": 1, "RESHAPE": 1}


def test_joining_axes_around_size_one_is_a_reshape():
    """Heads of a single token: [N,H,1,E] to [N,H*E]."""
    d = Draft()
    assert count_operators(
        optimize_and_compare(d, d.reshape(d.input(2, 4, 1, 3), 2, 12))
    ) == {"RESHAPE": 1}


def test_no_rank_above_the_level_arises():
    d = Draft()
    y = d.transpose(d.reshape(d.input(1, 1, 1, 2, 3, 4), 2, 3, 4), 2, 1, 0)
    optimize_and_compare(d, d.relu(d.reshape(y, 2, 2, 3, 2)))


def test_operators_without_a_form_of_rank_0_keep_their_rank():
    d = Draft()
    scalar = d.slice(d.relu(d.reshape(d.input(), 1, 1)), (0, 0), (1, 1))
    index = d.op(tosa.ARGMAX, d.relu(d.reshape(d.input(5), 1, 5)), axis=1)
    result = optimize_and_compare(
        d, scalar, d.slice(index, (0,), (1,)), spec=TosaSpec.parse("TOSA-1.0+FP+INT")
    )
    assert all(op.inputs[0].rank for op in result.operators if op.name == "SLICE")


def test_reshapes_in_a_row_are_one():
    d = Draft()
    y = d.reshape(d.reshape(d.reshape(d.input(6, 4), 2, 3, 4), 3, 8), 4, 6)
    assert count_operators(optimize_and_compare(d, y)) == {"RESHAPE": 1}


def test_a_shape_and_back_is_nothing():
    d = Draft()
    x = d.relu(d.input(6, 4))
    assert count_operators(
        optimize_and_compare(d, d.relu(d.reshape(d.reshape(x, 2, 3, 4), 6, 4)))
    ) == {"CLAMP": 2}


def test_one_value_is_transposed_once_for_all_its_uses():
    d = Draft()
    x = d.relu(d.input(1, 3, 4, 4))
    ys = [d.conv(x, 3), d.conv(x, 3, 3)]
    assert count_operators(optimize_and_compare(d, d.add(*ys)))["TRANSPOSE"] == 2


def test_the_smaller_of_two_operands_is_transposed():
    d = Draft()
    y = d.add(d.transpose(d.input(1, 6, 1, 5), 0, 2, 3, 1), d.input(4, 1, 5, 6))
    (transpose,) = [
        op for op in optimize_and_compare(d, y).operators if op.name == "TRANSPOSE"
    ]
    assert math.prod(transpose.inputs[0].shape) == 30


def test_argmax_over_the_channels_takes_the_transposition_along():
    d = Draft()
    y = d.op(tosa.ARGMAX, d.conv(d.input(1, 3, 4, 4), 5), axis=1)
    result = optimize_and_compare(d, y, spec=TosaSpec.parse("TOSA-1.0+FP+INT"))
    assert count_operators(result) == {"TRANSPOSE": 1, "CONV2D": 1, "ARGMAX": 1}


def test_transposes_avoid_types_the_target_cannot_transpose():
    d = Draft()
    y = d.op(tosa.CAST, d.transpose(d.input(2, 3, 4), 2, 0, 1), dtype=DType.INT32)
    y = d.op(tosa.CAST, d.add(y, y), dtype=DType.FP32)
    result = optimize_and_compare(d, d.transpose(y, 1, 2, 0))
    assert [op.name for op in result.operators] == [
        "TRANSPOSE",
        "CAST",
        "ADD",
        "CAST",
        "TRANSPOSE",
    ]
    assert (
        count_operators(
            optimize_and_compare(
                d, d.transpose(y, 1, 2, 0), spec=TosaSpec.parse("TOSA-1.0+FP+INT")
            )
        )["TRANSPOSE"]
        == 0
    )


def test_scales_of_channels_stay_on_the_last_axis():
    d = Draft()
    x = d.transpose(d.input(2, 3, 4, dtype=DType.INT8), 0, 2, 1)
    zero = literal([0], DType.INT8, np.int8)
    scales = (
        literal([1 << 30] * 3, DType.INT32, np.int32),
        literal([30, 31, 32], DType.INT8, np.int8),
    )
    flags = {
        "scale32": True,
        "per_channel": True,
        "input_unsigned": False,
        "output_unsigned": False,
    }
    y = d.op(
        tosa.RESCALE,
        x,
        *scales,
        zero,
        zero,
        dtype=DType.INT8,
        rounding_mode=RoundingMode.SINGLE_ROUND,
        **flags,
    )
    result = run_passes(
        d.graph(d.transpose(y, 0, 2, 1)), TosaSpec.parse("TOSA-1.0+INT")
    )
    assert [op.name for op in result.operators] == ["TRANSPOSE", "RESCALE", "TRANSPOSE"]


def test_equal_operators_are_computed_once_and_keep_both_sources():
    d = Draft()
    x = d.input(4, 6)
    y = d.add(*[d.slice(x, (1, 2), (2, 3)) for _ in range(2)])
    result = optimize_and_compare(d, y, exact=True)
    assert count_operators(result) == {"SLICE": 1, "ADD": 1}
    assert result.operators[0].source == ("SLICE:0", "SLICE:1")


def test_clamps_with_different_zero_signs_are_kept():
    d = Draft()
    x = d.input(4)
    ys = [d.op(tosa.CLAMP, x, min_val=low, max_val=1.0) for low in (0.0, -0.0)]
    assert count_operators(run_passes(d.graph(*ys), FP))["CLAMP"] == 2


def test_operators_without_use_are_dropped():
    d = Draft()
    x = d.input(4)
    d.op(tosa.EXP, d.op(tosa.TANH, x))
    assert count_operators(optimize_and_compare(d, d.relu(x))) == {"CLAMP": 1}


def test_writing_a_variable_is_a_use():
    d = Draft()
    x = d.input(4)
    d.operators.append(tosa.VARIABLE_WRITE((d.op(tosa.EXP, x),), variable="state"))
    assert count_operators(run_passes(d.graph(d.relu(x)), FP)) == {
        "EXP": 1,
        "VARIABLE_WRITE": 1,
        "CLAMP": 1,
    }


def test_variable_reads_around_a_write_are_kept():
    d = Draft()
    x = d.input(4)
    types = (Type((4,), DType.FP32),)
    before = d.op(tosa.VARIABLE_READ, variable="state", types=types)
    d.operators.append(tosa.VARIABLE_WRITE((x,), variable="state"))
    after = d.op(tosa.VARIABLE_READ, variable="state", types=types)
    assert (
        count_operators(run_passes(d.graph(d.add(before, after)), FP))["VARIABLE_READ"]
        == 2
    )


def test_each_output_is_a_value_of_its_own():
    d = Draft()
    x = d.input(2, 3)
    y = d.relu(x)
    result = optimize_and_compare(d, x, y, y, d.constant(2, 3), d.relu(x), exact=True)
    assert count_operators(result) == {"CLAMP": 1, "IDENTITY": 4}


def test_outputs_keep_their_names_and_nothing_else_has_them():
    d = Draft()
    x = d.input(1, 3, 4, 4)
    y = d.norm(d.conv(x, 5))
    outputs = [d.relu(y), d.op(tosa.IDENTITY, x), y, d.op(tosa.IDENTITY, y)]
    for position, value in enumerate(outputs):
        value.name = f"output_{position}"
    result = optimize_and_compare(d, *outputs)
    assert [v.name for v in result.outputs] == [
        f"output_{position}" for position in range(4)
    ]
    named = [v.name for op in result.operators for v in op.outputs if v.name]
    assert sorted(named) == [f"output_{position}" for position in range(4)]


def test_the_same_graph_gives_the_same_operators():
    def listing() -> list:
        d = Draft()
        x = d.conv(d.input(1, 3, 8, 8), 4)
        result = run_passes(
            d.graph(d.mean(x), d.op(tosa.CONCAT, x, d.norm(d.conv(x, 2)), axis=1)), FP
        )
        return [
            (op.name, [v.type for v in op.inputs], op.attribute_values(), op.source)
            for op in result.operators
        ]

    assert listing() == listing()


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(drafts(), st.sampled_from(["TOSA-1.0+FP+INT", "TOSA-1.0+FP"]))
def test_any_graph_computes_the_same(draft_and_outputs, target):
    draft, outputs = draft_and_outputs
    optimize_and_compare(draft, *outputs, spec=TosaSpec.parse(target))


@pytest.mark.parametrize(
    "name", [name for named in PATTERNS.values() for name in named]
)
def test_passes_keep_results_of_random_graphs(name):
    pattern, targets = next(named[name] for named in PATTERNS.values() if name in named)

    @settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
    @given(drafts(pattern), st.sampled_from(targets))
    def computes_the_same(draft_and_outputs, target):
        draft, outputs = draft_and_outputs
        optimize_and_compare(draft, *outputs, spec=TosaSpec.parse(target))

    computes_the_same()


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    shapes_of_any_size(),
    st.sampled_from(["TOSA-1.1+FP+INT+shape", "TOSA-1.1+FP+shape"]),
)
def test_passes_treat_dynamic_sizes_like_known_sizes(draft_of, target):
    """A graph with a symbol in its shapes, at two sizes, beside the same graph with
    these sizes in its shapes.
    """
    dynamic, outputs = draft_of(symbol("n", 2, 64))
    result = run_passes(dynamic.graph(*outputs), TosaSpec.parse(target))
    assert_well_formed(result, TosaSpec.parse(target))
    for size in (2, 3):
        known, wanted = draft_of(size)
        arrays = known.example()
        for old, new in zip(
            evaluate(known.graph(*wanted), arrays),
            evaluate(result, arrays),
            strict=True,
        ):
            np.testing.assert_array_equal(new, old)


def test_every_pass_has_random_graphs_with_its_pattern():
    """Shapes that are computed have the test before this one."""
    assert {run.__name__ for run in PASSES} == {*PATTERNS, "compute_shapes"}


DRAFT = TosaSpec.parse("TOSA-1.1+FP")


def test_products_with_transposed_matrices_become_matmul_t():
    d = Draft()
    y = d.matmul(d.input(2, 3, 4), d.transpose(d.input(2, 5, 4), 0, 2, 1))
    result = optimize_and_compare(d, d.relu(y), spec=DRAFT)
    assert count_operators(result) == {"MATMUL_T": 1, "CLAMP": 1}
    assert [str(op.source) for op in result.operators] == [
        "TRANSPOSE:0 and MATMUL:1",
        "CLAMP:2",
    ]


def test_heads_are_joined_before_such_a_product():
    d = Draft()
    heads = d.transpose(d.input(2, 3, 5, 4), 0, 1, 3, 2)
    y = d.matmul(d.input(6, 2, 4), d.reshape(heads, 6, 4, 5))
    assert count_operators(optimize_and_compare(d, y, spec=DRAFT)) == {
        "RESHAPE": 1,
        "MATMUL_T": 1,
    }


def test_other_transposes_and_targets_keep_matmul():
    d = Draft()
    x = d.input(5, 3, 4)
    matrix = d.input(4, 5, 2)
    assert count_operators(
        optimize_and_compare(d, d.matmul(x, d.transpose(matrix, 1, 0, 2)), spec=DRAFT)
    ) == {
        "TRANSPOSE": 1,
        "MATMUL": 1,
    }
    d = Draft()
    y = d.matmul(d.input(2, 3, 4), d.transpose(d.input(2, 5, 4), 0, 2, 1))
    assert count_operators(optimize_and_compare(d, y)) == {"TRANSPOSE": 1, "MATMUL": 1}

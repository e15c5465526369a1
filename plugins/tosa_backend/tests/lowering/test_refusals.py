"""Refusals have the exact texts that users read in the report."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from delegraph.errors import InternalError, Unsupported
from delegraph_tosa.ir.graph import Value
from delegraph_tosa.ir.types import DType, Type
from delegraph_tosa.lowering import RULES, Tosa, lower_program, lowers
from delegraph_tosa.lowering.ranges.index_bounds import rows
from delegraph_tosa.spec import TosaSpec
from torch import nn

aten = torch.ops.aten


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def lower(function, *inputs, spec="TOSA-1.0+FP+INT", **options):
    module = function if isinstance(function, nn.Module) else Function(function)
    return lower_program(
        torch.export.export(module, inputs, **options), Tosa(TosaSpec.parse(spec))
    )


def refusal_message(function, *inputs, **options):
    with pytest.raises(Unsupported) as caught:
        lower(function, *inputs, **options)
    assert caught.value.code == "unsupported"
    return caught.value.message


x = torch.randn(1, 2, 6, 6)
REFUSALS = [
    (
        lambda x: torch.special.i1(x),
        (x,),
        "aten.special_i1.default: no TOSA lowering for this operator",
    ),
    (
        lambda x: x.double(),
        (x,),
        "aten.to.dtype: the result: TOSA has no torch.float64",
    ),
    (
        lambda x: F.max_pool2d(x, 3, 1, 1, return_indices=True)[1],
        (torch.randn(1, 1, 400, 400),),
        "result 1 of aten.max_pool2d_with_indices.default is not lowered",
    ),
    (
        lambda x: F.dropout(x, 0.25, training=True),
        (x,),
        (
            "aten.dropout.default: dropout of 0.25 in training draws random numbers,"
            " which TOSA cannot"
        ),
    ),
    (
        lambda x: F.batch_norm(x, None, None, training=True),
        (x,),
        (
            "aten.batch_norm.default: batch normalization with statistics of the batch"
            " is not lowered, only with running ones"
        ),
    ),
    (
        lambda x: x.sum(),
        (torch.ones(3, dtype=torch.int32),),
        (
            "aten.sum.default: TOSA REDUCE_SUM: its int64 result may be from"
            " -6442450944 to 6442450941, which does not fit into 32 bits"
        ),
    ),
    (
        lambda x: x + 1000,
        (torch.ones(3, dtype=torch.int8),),
        "aten.add.Tensor: the number 1000 does not fit into int8",
    ),
    (
        lambda x: x.clamp(0.5),
        (torch.ones(3, dtype=torch.int32),),
        (
            "aten.clamp.default: limits 0.5 and None of int32 are not lowered, only"
            " whole numbers"
        ),
    ),
    (
        lambda x: x**-2,
        (torch.ones(3, dtype=torch.int32),),
        "aten.pow.Tensor_Scalar: the power -2 of an integer is not lowered",
    ),
    (
        lambda x: x / 1e-39,
        (x,),
        (
            "aten.div.Tensor: 1 / 1e-39, by which a division multiplies, is no normal"
            " number of fp32"
        ),
    ),
    (
        lambda x: x[:, :0].sum() + 1,
        (x,),
        (
            "aten.sum.default: the input slice_1 of shape [1, 0, 6, 6] is empty; TOSA"
            " has no empty tensors"
        ),
    ),
    (
        lambda x: x + 1,
        (torch.ones(3, dtype=torch.int64),),
        "the input args_0: a tensor of int64 is not in TOSA 1.0",
    ),
    (
        lambda x: x + 1,
        (torch.ones(3, dtype=torch.bfloat16),),
        (
            "the input args_0: a tensor of bf16 needs EXT-BF16; the target is"
            " TOSA-1.0+FP+INT"
        ),
    ),
    (
        lambda x: x.reshape(1, 1, 1, 2, 3, 2, 6).relu(),
        (x,),
        (
            "aten.reshape.default: TOSA RESHAPE: [1x1x1x2x3x2x6]fp32 has rank 7,"
            " MAX_RANK is 6"
        ),
    ),
    (
        lambda x, w: F.conv2d(x, w, dilation=5000, padding=5000),
        (x, torch.ones(2, 2, 2, 2)),
        (
            "aten.conv2d.default: TOSA CONV2D: dilation_y * KH is 10000, MAX_KERNEL is"
            " 8192"
        ),
    ),
]


@pytest.mark.parametrize(
    ("function", "inputs", "text"), REFUSALS, ids=[text[:60] for *_, text in REFUSALS]
)
def test_refused_programs_have_the_expected_message(function, inputs, text):
    assert refusal_message(function, *inputs) == text


INTS = torch.ones(2, 3, dtype=torch.int32)


def test_integers_are_refused_for_the_float_profile():
    message = refusal_message(lambda x: x.reshape(3, 2) + 1, INTS, spec="TOSA-1.0+FP")

    assert (
        message
        == "aten.reshape.default: TOSA RESHAPE on int32 needs PRO-INT; the target is"
        " TOSA-1.0+FP"
    )


def test_integers_are_accepted_for_the_integer_profile():
    assert lower(lambda x: x.reshape(3, 2) + 1, INTS, spec="TOSA-1.0+FP+INT").operators


def test_floats_are_refused_for_the_integer_profile():
    message = refusal_message(lambda x: x.relu(), torch.ones(3), spec="TOSA-1.0+INT")

    assert (
        message
        == "the input args_0: a tensor of fp32 needs PRO-FP; the target is TOSA-1.0+INT"
    )


def test_dynamic_shapes_are_refused_by_tosa_1_0():
    rows = torch.export.Dim("rows")
    said = refusal_message(
        lambda x: x + 1, torch.ones(3, 4), dynamic_shapes=(({0: rows},),)
    )
    assert said.startswith("the input args_0 has the dynamic shape [")
    assert said.endswith("TOSA 1.0 needs every size at compile time")


def test_python_values_as_inputs_are_refused():
    message = refusal_message(lambda x, n: x + n, torch.ones(3), 2)

    assert message == "the input args_1 is 2, not a tensor"


def test_python_values_as_outputs_are_refused():
    message = refusal_message(lambda x: (x + 1, 5), torch.ones(3))

    assert message == "output 1 is the Python value 5, not a tensor"


def test_error_names_the_node_and_the_source_line():
    with pytest.raises(Unsupported) as caught:
        lower(lambda x: torch.special.i1(x), x)
    assert caught.value.node.target is aten.special_i1.default
    assert caught.value.source.file == __file__
    assert "special_i1" in str(caught.value)


def test_rule_with_a_result_of_wrong_type_is_an_internal_error(monkeypatch):
    wrong = RULES[aten.relu.default, Value]._replace(
        function=lambda t, self: Value(Type((1,), DType.FP32))
    )
    monkeypatch.setitem(RULES, (aten.relu.default, Value), wrong)
    with pytest.raises(
        InternalError,
        match=r"made \[1\]fp32 of aten.relu.default, which returns \[1x2x6x6\]fp32",
    ):
        lower(lambda x: x.relu(), x)


def test_rules_with_other_argument_names_are_not_registered():
    with pytest.raises(TypeError, match="does not match aten::relu"):

        @lowers(aten.relu.default)
        def misnamed(t, x):
            return x


def test_rules_that_lack_an_argument_are_not_registered():
    with pytest.raises(TypeError, match="does not match aten::special_zeta"):

        @lowers(aten.special_zeta.default)
        def without_an_argument_that_has_an_effect(t, self):
            return self


def test_second_rule_for_an_operator_is_not_registered():
    with pytest.raises(ValueError, match="has a rule on Value already"):

        @lowers(aten.relu.default)
        def again(t, self):
            return self


def test_rules_with_indexes_of_unknown_arguments_are_not_registered():
    with pytest.raises(
        TypeError,
        match=r"indexes of aten::special_i1\(Tensor self\).*: it has no argument rows",
    ):
        lowers(aten.special_i1.default, indexes={"rows": rows("self")})(
            lambda t, self: self
        )

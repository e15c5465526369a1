"""What becomes of whole quantized programs: operators that are there, and those that
are not.
"""

from __future__ import annotations

from collections import Counter

import delegraph
import pytest
import torch
import torch.nn.functional as F
from delegraph.errors import InputError, Unsupported
from delegraph_tosa.backend import compile_program
from delegraph_tosa.borders import integer_borders
from delegraph_tosa.evaluate import evaluate
from delegraph_tosa.ir.types import DType
from delegraph_tosa.serialize import TosaFile, read
from delegraph_tosa.spec import TosaSpec
from torch import nn
from torch.utils._pytree import tree_leaves

from ...support.quantized_cases import (
    SPECS,
    WithWeight,
    assert_within_steps,
    dequantize,
    quantize,
    quantized_decomposed,
)
from ...support.reference_tools import check_strictly_for_spec as strictly
from ...support.rule_cases import SPEC, Function, judge, randn

INT8 = SPECS[torch.int8]


def random_bytes(*shape, seed=0):
    return torch.randint(
        -128,
        128,
        shape,
        generator=torch.Generator().manual_seed(seed),
        dtype=torch.int8,
    )


def count_operators(function, *inputs, spec=INT8):
    module = function if isinstance(function, nn.Module) else Function(function)
    return Counter(
        op.name
        for op in compile_program(torch.export.export(module, inputs), spec).operators
    )


def test_limits_that_the_type_has_anyhow_cost_nothing():
    weighted = WithWeight(
        lambda x, w, b: F.conv2d(x, w, b).relu(), randn(4, 3, 3, 3), randn(4)
    )
    operators = count_operators(
        lambda x: quantize(weighted(dequantize(x, 0.1, 3)), 0.05, -128, torch.int8),
        random_bytes(1, 3, 6, 6),
    )
    assert operators == {"TRANSPOSE": 2, "CONV2D": 1, "RESCALE": 1}


def test_quantizing_again_in_the_same_way_is_nothing():
    operators = count_operators(
        lambda x: quantize(dequantize(x, 0.1, 3).reshape(-1), 0.1, 3, torch.int8),
        random_bytes(2, 3),
    )
    assert operators == {"RESHAPE": 1}


def test_a_chain_of_functions_is_one_table():
    def chain(x):
        y = dequantize(x, 0.1, 3)
        return quantize(torch.tanh(F.silu(y) * 2 + 1), 0.01, 0, torch.int8)

    assert count_operators(chain, random_bytes(2, 3)) == {"TABLE": 1}


@pytest.mark.parametrize(
    "function", [F.silu, F.mish, F.gelu, F.hardswish, F.hardsigmoid, torch.tanh]
)
def test_curves_of_int16_are_tables_also_where_the_result_saturates(function):
    """GATHER from all values costs an NPU several times as much."""

    def program(x):
        return quantize(function(dequantize(x, 0.0004, 0)), 0.0002, 0, torch.int16)

    assert "GATHER" not in count_operators(
        program, torch.arange(-9, 9, dtype=torch.int16), spec=SPECS[torch.int16]
    )


def test_each_use_gets_its_own_rescale():
    def twice(x, y):
        a = dequantize(x, 0.1, 3)
        b = dequantize(y, 0.2, 0)
        return quantize(a + b, 0.2, 0, torch.int8), quantize(a - b, 0.2, 0, torch.int8)

    assert count_operators(twice, random_bytes(2, 3), random_bytes(2, 3)) == {
        "RESCALE": 6,
        "ADD": 1,
        "SUB": 1,
    }


def test_operators_without_integer_rules_need_a_float_profile():
    def ordered(x):
        return quantize(dequantize(x, 0.1, 3).cumprod(1), 0.2, 0, torch.int8)

    with pytest.raises(
        Unsupported,
        match=r"in integers: no integer rule; in floats: TOSA CAST from int8 to fp32",
    ):
        count_operators(ordered, random_bytes(2, 3))
    assert count_operators(ordered, random_bytes(2, 3), spec=SPEC)["CAST"]


def test_floats_at_the_border_stay_outside_of_integers():
    weighted = WithWeight(F.linear, randn(4, 3), randn(4))

    def program(x):
        y = weighted(dequantize(quantize(x, 0.1, 3, torch.int8), 0.1, 3))
        return dequantize(quantize(y, 0.05, 3, torch.int8), 0.05, 3)

    x = randn(2, 3)
    for spec, left in ((str(INT8), 2), ("TOSA-1.0+FP+INT", 0)):
        lowered = delegraph.lower(
            Function(program).eval(),
            (x,),
            backends=["tosa"],
            options={"tosa": {"spec": spec}},
        )
        assert len(lowered.delegates) == 1
        assert len(lowered.report.refusals) == left
        torch.testing.assert_close(lowered(x), program(x), rtol=0, atol=0.051)


def test_reports_have_the_scales_of_inputs_and_outputs():
    def program(x):
        return quantize(torch.tanh(dequantize(x, 0.1, 3)), 1 / 128, -7, torch.int8)

    lowered = delegraph.lower(
        Function(program).eval(), (random_bytes(2, 3),), backends=["tosa"]
    )
    facts = lowered.report.delegates[0].facts
    assert facts["input args_0"] == "int8, scale 0.1, zero point 3"
    assert facts["output 0"] == "int8, scale 0.0078125, zero point -7"
    assert "int8, scale 0.1, zero point 3" in str(lowered.report)


@pytest.mark.parametrize(
    "function", [F.conv2d, lambda x, w, b: F.conv2d(x, w, b, groups=3)]
)
def test_weights_of_int4_take_half_a_byte(function):
    class FourBits(nn.Module):
        def __init__(self):
            super().__init__()
            shape = (4, 3, 3, 3) if function is F.conv2d else (12, 1, 3, 3)
            integers = torch.randint(
                -7,
                8,
                shape,
                generator=torch.Generator().manual_seed(0),
                dtype=torch.int8,
            )
            self.register_buffer("weight", integers)
            self.register_buffer("scales", torch.rand(shape[0]) / 10 + 0.01)
            self.register_buffer(
                "zero_points", torch.zeros(shape[0], dtype=torch.int64)
            )

        def forward(self, x):
            weight = quantized_decomposed.dequantize_per_channel(
                self.weight, self.scales, self.zero_points, 0, -7, 7, torch.int8
            )
            return quantize(
                function(dequantize(x, 0.02, 5), weight, None), 0.05, -3, torch.int8
            )

    module = FourBits().eval()
    x = random_bytes(1, 3, 6, 6)
    spec = TosaSpec.parse("TOSA-1.0+INT+int4")
    graph = compile_program(torch.export.export(module, (x,)), spec)
    assert DType.INT4 in [v.dtype for op in graph.operators for v in op.inputs]
    blob = TosaFile(graph, spec).join()
    again = read(blob)
    assert_within_steps(evaluate(again, [x.numpy()])[0], module(x))


def bordered(x, y):
    first = dequantize(quantize(x, 0.1, 3, torch.int8), 0.1, 3)
    both = first + dequantize(quantize(y, 0.2, 0, torch.int8), 0.2, 0)
    return dequantize(quantize(both, 0.25, -5, torch.int8), 0.25, -5), first > 0


def test_a_program_can_take_and_return_integers():
    module = Function(bordered).eval()
    reals = (randn(2, 3), randn(2, 3, seed=1))
    program = torch.export.export(module, reals)
    options = {"tosa": {"spec": str(INT8)}}
    lowered = delegraph.lower(
        program, backends=["tosa"], options=options, transforms=[integer_borders]
    )
    assert not lowered.report.refusals
    assert len(lowered.delegates) == 1
    integers = (
        quantize(reals[0], 0.1, 3, torch.int8),
        quantize(reals[1], 0.2, 0, torch.int8),
    )
    found, positive = lowered(*integers)
    expected, _ = module(*reals)
    assert found.dtype is torch.int8
    assert positive.dtype is torch.bool
    torch.testing.assert_close(dequantize(found, 0.25, -5), expected, rtol=0, atol=0)
    assert (
        lowered.report.delegates[0].facts["output 0"]
        == "int8, scale 0.25, zero point -5"
    )
    with pytest.raises(
        InputError,
        match=(
            r"is int8\[2, 3\] since a transform changed it, and float32\[2, 3\] in"
            r" eager"
        ),
    ):
        lowered.verify(*reals)


def test_integer_borders_of_a_program_without_any_are_refused():
    with pytest.raises(Unsupported, match="quantizes none of its inputs"):
        delegraph.lower(
            nn.ReLU().eval(),
            (randn(2),),
            backends=["tosa"],
            transforms=[integer_borders],
        )


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: x.softmax(-1) + 0 * y,
        lambda x, y: x @ y,
        lambda x, y: torch.where(x > y, torch.tanh(x), y),
    ],
    ids=["softmax", "matmul", "chosen"],
)
def test_int8_and_int16_meet(function):
    def program(x, y):
        return quantize(
            function(dequantize(x, 0.05, 3), dequantize(y, 0.0001, 0)),
            0.0007,
            0,
            torch.int16,
        )

    module = Function(program)
    inputs = (
        random_bytes(9, 9),
        torch.arange(-7600, 8600, 200).reshape(9, 9).to(torch.int16),
    )
    graph = compile_program(torch.export.export(module, inputs), SPECS[torch.int16])
    assert all(
        value.dtype is not DType.FP32 for op in graph.operators for value in op.outputs
    )
    assert_within_steps(
        evaluate(graph, [x.numpy() for x in inputs])[0], module(*inputs)
    )


def test_embedding_rows_have_separate_scales():
    table = WithWeight(
        lambda i, w, b: F.embedding(i, w), randn(50, 16) * torch.arange(1, 51)[:, None]
    )
    module = Function(lambda i: quantize(table(i), 0.5, 3, torch.int8))
    indices = torch.arange(0, 50, 3, dtype=torch.int32)
    graph = compile_program(torch.export.export(module, (indices,)), INT8)
    assert_within_steps(evaluate(graph, [indices.numpy()])[0], module(indices))


def to_bytes(x, scale, zero_point):
    return quantized_decomposed.quantize_per_tensor(
        x, scale, zero_point, 0, 255, torch.uint8
    )


def of_bytes(x, scale, zero_point):
    return quantized_decomposed.dequantize_per_tensor(
        x, scale, zero_point, 0, 255, torch.uint8
    )


def between_bytes(u):
    x = of_bytes(u.reshape(2, 12), 0.02, 100)
    y = of_bytes(to_bytes(torch.tanh(x), 0.008, 120), 0.008, 120)
    return to_bytes(x + y, 0.03, 77).t()


class BytesOfWeights(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer(
            "weight", torch.arange(30, dtype=torch.uint8).reshape(5, 6) * 8
        )

    def forward(self, u):
        return to_bytes(
            F.linear(of_bytes(u, 0.02, 100), of_bytes(self.weight, 0.01, 128)),
            0.05,
            128,
        )


@pytest.mark.parametrize(
    "program",
    [
        between_bytes,
        BytesOfWeights(),
        lambda u: to_bytes((u.float() / 255 - 0.45) / 0.22, 0.03, 60),
    ],
    ids=["inside", "weights", "image"],
)
def test_uint8_is_int8_inside(program):
    module = program if isinstance(program, nn.Module) else Function(program)
    u = torch.randint(
        0, 256, (4, 6), generator=torch.Generator().manual_seed(0), dtype=torch.uint8
    )
    lowered = delegraph.lower(
        module.eval(), (u,), backends=["tosa"], options={"tosa": {"spec": str(INT8)}}
    )
    assert not lowered.report.refusals
    assert len(lowered.delegates) == 1
    assert torch.equal(lowered(u), module(u))
    assert lowered(u).dtype is torch.uint8


def test_files_with_uint8_pass_the_official_tools(tmp_path):
    pytest.importorskip("tosa_reference_model")
    module = BytesOfWeights().eval()
    u = torch.arange(24, dtype=torch.uint8).reshape(4, 6) * 10
    blob = TosaFile(
        compile_program(torch.export.export(module, (u,)), INT8), INT8
    ).join()
    strictly(blob, INT8)
    (found,), valid = judge([("bytes", blob, [u.view(torch.int8).numpy()])], tmp_path)[
        "bytes"
    ]
    assert valid
    assert (found.view("uint8") == module(u).numpy()).all()


def test_uint8_values_are_computed_as_floats_where_allowed():
    """In steps of an integer that reaches to 255, what eps leaves beside 1 would be
    lost.
    """
    u, module = (
        torch.tensor([0, 1, 2, 255], dtype=torch.uint8),
        Function(lambda u: torch.logit(u, 1e-6)).eval(),
    )
    lowered = delegraph.lower(
        module, (u,), backends=["tosa"], options={"tosa": {"spec": "TOSA-1.0+FP+INT"}}
    )
    assert not lowered.report.refusals
    torch.testing.assert_close(lowered(u), module(u))


def test_uint8_is_no_number_to_compute_with():
    with pytest.raises(Unsupported, match=r"its operand: TOSA has no torch\.uint8"):
        count_operators(lambda u: u + 1, torch.zeros(2, dtype=torch.uint8))


class Dynamic(nn.Module):
    def forward(self, x):
        scale, point = quantized_decomposed.choose_qparams(
            x, -128, 127, 1e-5, torch.int8
        )
        q = quantized_decomposed.quantize_per_tensor.tensor(
            x, scale, point, -128, 127, torch.int8
        )
        return (
            quantized_decomposed.dequantize_per_tensor.tensor(
                q, scale, point, -128, 127, torch.int8
            )
            @ x.t()
        )


@pytest.mark.parametrize(
    ("spec", "delegates"), [(str(INT8), 0), ("TOSA-1.0+FP+INT", 1)]
)
def test_scales_chosen_at_run_time_are_refused(spec, delegates):
    x = randn(3, 4)
    lowered = delegraph.lower(
        Dynamic().eval(), (x,), backends=["tosa"], options={"tosa": {"spec": spec}}
    )
    assert len(lowered.delegates) == delegates
    text = str(lowered.report)
    assert "its scale is chosen at run time; TOSA's are constants" in text
    assert "delegraph.quantize" in text
    torch.testing.assert_close(lowered(x), Dynamic()(x))


def test_uint8_scalars_and_mixed_integers_equal_eager():
    """What is joined of mixed types is the host's; a number has no axis along which
    RESCALE could have scales.
    """
    u = torch.tensor(200, dtype=torch.uint8)
    signed = torch.tensor([-3], dtype=torch.int8)
    mixed = Function(lambda u, x: torch.cat([x, u.view(1)]))
    number = Function(lambda u: u.unsqueeze(0))
    made_here = Function(lambda x: (x * 2, torch.full((2,), 7, dtype=torch.uint8)))
    for module, inputs, spec in [
        (mixed, (u, signed), "TOSA-1.0+FP+INT"),
        (number, (u,), "TOSA-1.0+FP+INT"),
        (made_here, (torch.ones(2),), "TOSA-1.0+FP"),
    ]:
        lowered = delegraph.lower(
            module.eval(), inputs, backends=["tosa"], options={"tosa": {"spec": spec}}
        )
        found = lowered(*inputs)
        expected = module(*inputs)
        for mine, theirs in zip(tree_leaves(found), tree_leaves(expected), strict=True):
            assert mine.dtype is theirs.dtype
            assert torch.equal(mine, theirs)
        assert lowered.delegates

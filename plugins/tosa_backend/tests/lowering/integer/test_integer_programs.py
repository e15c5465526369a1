"""Quantized programs lower to few integer operators and compute what eager torch does."""

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
    """Compile a function and count the operators of the graph by name."""
    module = function if isinstance(function, nn.Module) else Function(function)
    return Counter(
        op.name
        for op in compile_program(torch.export.export(module, inputs), spec).operators
    )


def test_relu_that_saturation_implies_needs_no_clamp():
    """The output's zero point is -128, so int8 has no numbers below zero."""
    weighted = WithWeight(
        lambda x, w, b: F.conv2d(x, w, b).relu(), randn(4, 3, 3, 3), randn(4)
    )
    operators = count_operators(
        lambda x: quantize(weighted(dequantize(x, 0.1, 3)), 0.05, -128, torch.int8),
        random_bytes(1, 3, 6, 6),
    )
    assert operators == {"TRANSPOSE": 2, "CONV2D": 1, "RESCALE": 1}


def test_quantizing_again_with_equal_scale_needs_no_rescale():
    operators = count_operators(
        lambda x: quantize(dequantize(x, 0.1, 3).reshape(-1), 0.1, 3, torch.int8),
        random_bytes(2, 3),
    )
    assert operators == {"RESHAPE": 1}


def test_a_chain_of_functions_becomes_one_table():
    def chain(x):
        y = dequantize(x, 0.1, 3)
        return quantize(torch.tanh(F.silu(y) * 2 + 1), 0.01, 0, torch.int8)

    assert count_operators(chain, random_bytes(2, 3)) == {"TABLE": 1}


@pytest.mark.parametrize(
    "function", [F.silu, F.mish, F.gelu, F.hardswish, F.hardsigmoid, torch.tanh]
)
def test_functions_of_int16_never_use_gather(function):
    """A GATHER from all 65536 results costs an NPU several times as much as a TABLE."""

    def program(x):
        return quantize(function(dequantize(x, 0.0004, 0)), 0.0002, 0, torch.int16)

    operators = count_operators(
        program, torch.arange(-9, 9, dtype=torch.int16), spec=SPECS[torch.int16]
    )

    assert "GATHER" not in operators


def test_each_use_of_a_value_gets_its_own_rescale():
    """NPUs fuse a RESCALE with the one operator that uses it."""

    def twice(x, y):
        a = dequantize(x, 0.1, 3)
        b = dequantize(y, 0.2, 0)
        return quantize(a + b, 0.2, 0, torch.int8), quantize(a - b, 0.2, 0, torch.int8)

    operators = count_operators(twice, random_bytes(2, 3), random_bytes(2, 3))

    # Both operands and the result of each operator are rescaled.
    assert operators == {"RESCALE": 6, "ADD": 1, "SUB": 1}


def without_integer_rule(x):
    return quantize(dequantize(x, 0.1, 3).cumprod(1), 0.2, 0, torch.int8)


def test_operators_without_integer_rule_are_refused_for_integer_targets():
    with pytest.raises(
        Unsupported,
        match=r"in integers: no integer rule; in floats: TOSA CAST from int8 to fp32",
    ):
        count_operators(without_integer_rule, random_bytes(2, 3))


def test_operators_without_integer_rule_run_in_floats_if_the_target_has_them():
    operators = count_operators(without_integer_rule, random_bytes(2, 3), spec=SPEC)

    assert operators["CAST"] > 0


@pytest.mark.parametrize(
    ("spec", "host_operators"),
    [
        (str(INT8), 2),  # quantize at the input, dequantize at the output
        ("TOSA-1.0+FP+INT", 0),
    ],
)
def test_float_inputs_and_outputs_convert_on_the_host_for_integer_targets(
    spec, host_operators
):
    weighted = WithWeight(F.linear, randn(4, 3), randn(4))

    def program(x):
        y = weighted(dequantize(quantize(x, 0.1, 3, torch.int8), 0.1, 3))
        return dequantize(quantize(y, 0.05, 3, torch.int8), 0.05, 3)

    x = randn(2, 3)

    lowered = delegraph.lower(
        Function(program).eval(),
        (x,),
        backends=["tosa"],
        options={"tosa": {"spec": spec}},
    )

    assert len(lowered.delegates) == 1
    assert len(lowered.report.refusals) == host_operators
    one_step = 0.05
    torch.testing.assert_close(lowered(x), program(x), rtol=0, atol=one_step + 1e-3)


def test_report_lists_the_scales_of_inputs_and_outputs():
    def program(x):
        return quantize(torch.tanh(dequantize(x, 0.1, 3)), 1 / 128, -7, torch.int8)

    lowered = delegraph.lower(
        Function(program).eval(), (random_bytes(2, 3),), backends=["tosa"]
    )

    facts = lowered.report.delegates[0].facts
    assert facts["input args_0"] == "int8, scale 0.1, zero point 3"
    assert facts["output 0"] == "int8, scale 0.0078125, zero point -7"
    assert "int8, scale 0.1, zero point 3" in str(lowered.report)


class ConvolutionOfFourBits(nn.Module):
    """A quantized convolution with weights from -7 to 7."""

    def __init__(self, channels, groups):
        super().__init__()
        self.groups = groups
        weight = torch.randint(
            -7,
            8,
            (channels, 3 // groups, 3, 3),
            generator=torch.Generator().manual_seed(0),
            dtype=torch.int8,
        )
        self.register_buffer("weight", weight)
        self.register_buffer("scales", torch.rand(channels) / 10 + 0.01)
        self.register_buffer("zero_points", torch.zeros(channels, dtype=torch.int64))

    def forward(self, x):
        weight = quantized_decomposed.dequantize_per_channel(
            self.weight, self.scales, self.zero_points, 0, -7, 7, torch.int8
        )
        y = F.conv2d(dequantize(x, 0.02, 5), weight, groups=self.groups)
        return quantize(y, 0.05, -3, torch.int8)


@pytest.mark.parametrize(
    "module",
    [
        ConvolutionOfFourBits(channels=4, groups=1),
        ConvolutionOfFourBits(channels=12, groups=3),
    ],
    ids=["dense", "depthwise"],
)
def test_weights_of_four_bits_are_stored_as_int4(module):
    x = random_bytes(1, 3, 6, 6)
    spec = TosaSpec.parse("TOSA-1.0+INT+int4")

    graph = compile_program(torch.export.export(module.eval(), (x,)), spec)

    assert DType.INT4 in [v.dtype for op in graph.operators for v in op.inputs]
    graph_of_file = read(TosaFile(graph, spec).join())
    (result,) = evaluate(graph_of_file, [x.numpy()])
    assert_within_steps(result, module(x))


def sum_of_quantized(x, y):
    """Quantize x and y, and return their quantized sum and the sign of x."""
    first = dequantize(quantize(x, 0.1, 3, torch.int8), 0.1, 3)
    both = first + dequantize(quantize(y, 0.2, 0, torch.int8), 0.2, 0)
    return dequantize(quantize(both, 0.25, -5, torch.int8), 0.25, -5), first > 0


X = randn(2, 3)
Y = randn(2, 3, seed=1)


def lower_with_integer_borders():
    return delegraph.lower(
        Function(sum_of_quantized).eval(),
        (X, Y),
        backends=["tosa"],
        options={"tosa": {"spec": str(INT8)}},
        transforms=[integer_borders],
    )


def test_integer_borders_make_a_program_take_and_return_integers():
    lowered = lower_with_integer_borders()

    total, positive = lowered(
        quantize(X, 0.1, 3, torch.int8), quantize(Y, 0.2, 0, torch.int8)
    )

    assert not lowered.report.refusals
    assert len(lowered.delegates) == 1
    assert total.dtype is torch.int8
    assert positive.dtype is torch.bool
    expected, _ = sum_of_quantized(X, Y)
    torch.testing.assert_close(dequantize(total, 0.25, -5), expected, rtol=0, atol=0)


def test_report_has_the_scale_of_an_integer_output():
    facts = lower_with_integer_borders().report.delegates[0].facts

    assert facts["output 0"] == "int8, scale 0.25, zero point -5"


def test_verify_refuses_float_inputs_of_integer_borders():
    lowered = lower_with_integer_borders()

    with pytest.raises(
        InputError,
        match=(
            r"is int8\[2, 3\] since a transform changed it, and float32\[2, 3\] in"
            r" eager"
        ),
    ):
        lowered.verify(X, Y)


def test_integer_borders_of_a_program_of_floats_are_refused():
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
def test_operands_of_int8_and_int16_compute_without_floats(function):
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

    dtypes = {value.dtype for op in graph.operators for value in op.outputs}
    assert DType.FP32 not in dtypes
    (result,) = evaluate(graph, [x.numpy() for x in inputs])
    assert_within_steps(result, module(*inputs))


def test_embedding_rows_may_have_different_scales():
    table = WithWeight(
        lambda i, w, b: F.embedding(i, w), randn(50, 16) * torch.arange(1, 51)[:, None]
    )
    module = Function(lambda i: quantize(table(i), 0.5, 3, torch.int8))
    indices = torch.arange(0, 50, 3, dtype=torch.int32)

    graph = compile_program(torch.export.export(module, (indices,)), INT8)

    (result,) = evaluate(graph, [indices.numpy()])
    assert_within_steps(result, module(indices))


def to_bytes(x, scale, zero_point):
    """Quantize to uint8."""
    return quantized_decomposed.quantize_per_tensor(
        x, scale, zero_point, 0, 255, torch.uint8
    )


def of_bytes(x, scale, zero_point):
    """Dequantize uint8."""
    return quantized_decomposed.dequantize_per_tensor(
        x, scale, zero_point, 0, 255, torch.uint8
    )


def between_bytes(u):
    x = of_bytes(u.reshape(2, 12), 0.02, 100)
    y = of_bytes(to_bytes(torch.tanh(x), 0.008, 120), 0.008, 120)
    return to_bytes(x + y, 0.03, 77).t()


class LinearWithBytes(nn.Module):
    """A linear layer with uint8 inputs, weights and results."""

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
        LinearWithBytes(),
        lambda u: to_bytes((u.float() / 255 - 0.45) / 0.22, 0.03, 60),
    ],
    ids=["inside", "weights", "image"],
)
def test_uint8_programs_lower_to_integer_targets(program):
    """TOSA computes in int8 only; uint8 is converted at the inputs and outputs."""
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
    module = LinearWithBytes().eval()
    u = torch.arange(24, dtype=torch.uint8).reshape(4, 6) * 10
    graph = compile_program(torch.export.export(module, (u,)), INT8)

    file = TosaFile(graph, INT8).join()

    strictly(file, INT8)
    job = ("bytes", file, [u.view(torch.int8).numpy()])
    (result,), valid = judge([job], tmp_path)["bytes"]
    assert valid
    assert (result.view("uint8") == module(u).numpy()).all()


def test_uint8_values_are_computed_as_floats_where_allowed():
    """In integer steps from 0 to 255, the eps of logit would be lost."""
    u = torch.tensor([0, 1, 2, 255], dtype=torch.uint8)
    module = Function(lambda u: torch.logit(u, 1e-6)).eval()

    lowered = delegraph.lower(
        module, (u,), backends=["tosa"], options={"tosa": {"spec": "TOSA-1.0+FP+INT"}}
    )

    assert not lowered.report.refusals
    torch.testing.assert_close(lowered(u), module(u))


def test_arithmetic_on_uint8_without_scale_is_refused():
    with pytest.raises(Unsupported, match=r"its operand: TOSA has no torch\.uint8"):
        count_operators(lambda u: u + 1, torch.zeros(2, dtype=torch.uint8))


class QuantizedAtRunTime(nn.Module):
    """Chooses the scale of its input at run time."""

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
    module = QuantizedAtRunTime().eval()

    lowered = delegraph.lower(
        module, (x,), backends=["tosa"], options={"tosa": {"spec": spec}}
    )

    assert len(lowered.delegates) == delegates
    text = str(lowered.report)
    assert "its scale is chosen at run time; TOSA's are constants" in text
    assert "delegraph.quantize" in text
    torch.testing.assert_close(lowered(x), module(x))


U8_SCALAR = torch.tensor(200, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("function", "inputs", "spec"),
    [
        (
            lambda u, x: torch.cat([x, u.view(1)]),
            (U8_SCALAR, torch.tensor([-3], dtype=torch.int8)),
            "TOSA-1.0+FP+INT",
        ),
        (lambda u: u.unsqueeze(0), (U8_SCALAR,), "TOSA-1.0+FP+INT"),
        (
            lambda x: (x * 2, torch.full((2,), 7, dtype=torch.uint8)),
            (torch.ones(2),),
            "TOSA-1.0+FP",
        ),
    ],
    ids=["concatenated with int8", "scalar", "constant"],
)
def test_uint8_without_scale_equals_eager(function, inputs, spec):
    module = Function(function).eval()

    lowered = delegraph.lower(
        module, inputs, backends=["tosa"], options={"tosa": {"spec": spec}}
    )

    assert lowered.delegates
    results = tree_leaves(lowered(*inputs))
    expected = tree_leaves(module(*inputs))
    torch.testing.assert_close(results, expected, rtol=0, atol=0)

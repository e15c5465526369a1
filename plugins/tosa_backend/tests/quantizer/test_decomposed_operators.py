"""TOSAQuantizer decomposes operators without an integer rule, so that their parts become
integers.
"""

from __future__ import annotations

import delegraph
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from delegraph_tosa.borders import integer_borders
from delegraph_tosa.spec import TosaSpec
from torch import nn

from ..support import reference_tools
from ..support.quantized_cases import assert_within_steps

pytestmark = pytest.mark.filterwarnings("ignore")
aten = torch.ops.aten
INT = {"tosa": {"spec": "TOSA-1.0+INT"}}


def quantizer():
    from delegraph_tosa.quantizer import TOSAQuantizer

    return TOSAQuantizer()


class Composed(nn.Module):
    """Operators that have no integer rule, but whose decompositions have."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.GLU(1)
        self.slopes = nn.PReLU(4, init=0.3)
        self.pool = nn.AvgPool1d(3, 2, 1, count_include_pad=False)
        self.near = nn.CosineSimilarity(-1)
        self.heads = nn.Parameter(torch.randn(10, 2, 5))

    def forward(self, x, y):
        a = self.gate(x)
        b = self.slopes(a + y)
        left, right = (torch.einsum("bcs,shi->bhci", v, self.heads) for v in (a, b))
        scores = torch.einsum("bhci,bhdi->bhcd", left, right)
        losses = F.mse_loss(a, b), F.l1_loss(a, b)
        return (
            scores,
            self.pool(b),
            self.near(a, y),
            torch.lerp(a, y, 0.3),
            torch.diff(b),
            *losses,
        )


@pytest.fixture(scope="module")
def module():
    torch.manual_seed(0)
    return Composed().eval()


@pytest.fixture(scope="module")
def batches():
    generator = torch.Generator().manual_seed(0)
    shapes = (2, 8, 10), (2, 4, 10)
    return [
        tuple(torch.randn(shape, generator=generator) for shape in shapes)
        for _ in range(3)
    ]


@pytest.fixture(scope="module")
def program(module, batches):
    return delegraph.quantize(module, batches)


def calls_of(program, name):
    return [
        node
        for node in program.graph.nodes
        if node.op == "call_function" and name in str(node.target)
    ]


def in_steps(x, node):
    """Quantize x with the scale, zero point and limits of a quantize or dequantize node."""
    scale, zero_point, low, high = node.args[1:5]
    return ((x / scale).round() + zero_point).clamp(low, high).to(torch.int8)


def test_decomposed_operators_compute_only_integers(program, batches):
    lowered = delegraph.lower(program, options=INT, transforms=[integer_borders])
    (delegate,) = lowered.delegates
    inputs = program.graph.find_nodes(op="placeholder")[-2:]
    assert not lowered.report.refusals
    integers = [
        in_steps(x, next(iter(node.users)))
        for x, node in zip(batches[0], inputs, strict=True)
    ]
    with torch.no_grad():
        found = lowered(*integers)
        expected = program.module(check_guards=False)(*batches[0])
    for ours, real, node in zip(
        found, expected, program.graph.output_node().args[0], strict=True
    ):
        assert_within_steps(ours.numpy(), in_steps(real, node))
    file = bytes(delegate.processed_bytes)
    reference_tools.check_strictly_for_spec(file, TosaSpec.parse("TOSA-1.0+INT"))
    official = reference_tools.run_reference_model(file, [x.numpy() for x in integers])
    assert all(
        np.array_equal(a, b.numpy()) for a, b in zip(official, found, strict=True)
    )


def test_error_table_lists_operators_before_decomposition(module, program, batches):
    rows = delegraph.quantization_errors(module, program, batches, options=INT).layers
    operators = {row.layer: row.operator for row in rows}
    assert operators["glu"] == "aten.glu.default"
    assert operators["avg_pool1d"] == "aten.avg_pool1d.default"
    layers = [
        "add",
        "glu",
        "prelu",
        "einsum",
        "einsum_1",
        "einsum_2",
        "avg_pool1d",
        "cosine_similarity",
        "lerp",
    ]
    assert {
        *layers,
        "diff",
        "mse_loss",
        "l1_loss",
        *[f"output {k}" for k in range(7)],
    } == set(operators)
    assert all(row.snr > 30 for row in rows)


def test_decomposed_parts_keep_module_and_source_line(program):
    (gate,) = calls_of(program, "aten.sigmoid")
    assert any(
        name.endswith("gate") for name, _ in gate.meta["nn_module_stack"].values()
    )
    assert "F.glu(" in gate.meta["stack_trace"]


@pytest.mark.parametrize(
    "change",
    [
        lambda q: q.set_operator_type(aten.glu.default, None),
        lambda q: q.set_module_name("gate", None),
    ],
    ids=["operator", "module"],
)
def test_operators_left_in_floats_are_not_decomposed(module, batches, change):
    quantized = delegraph.quantize(module, batches[:1], quantizer=change(quantizer()))

    assert calls_of(quantized, "aten.glu")


def test_precision_of_an_operator_applies_to_its_parts(batches):
    from delegraph_tosa.quantizer import Precision

    fine = quantizer().set_operator_type(
        aten.glu.default, Precision(activations=torch.int16)
    )
    program = delegraph.quantize(
        nn.Sequential(nn.GLU(1), nn.Tanh()).eval(),
        [x for x, _ in batches],
        quantizer=fine,
    )
    (sigmoid,) = calls_of(program, "aten.sigmoid")
    (tanh,) = calls_of(program, "aten.tanh")

    def quantized_dtype(node):
        (quantize,) = node.users
        return quantize.args[-1]

    assert quantized_dtype(sigmoid) is torch.int16  # a part of GLU
    assert quantized_dtype(tanh) is torch.int8


class Loss(nn.Module):
    def forward(self, x, y):
        return F.binary_cross_entropy(x.sigmoid(), y.sigmoid())


def test_operators_with_a_part_without_integer_rule_stay_whole():
    given = [(torch.randn(3, 4), torch.randn(3, 4))]
    assert calls_of(delegraph.quantize(Loss().eval(), given), "binary_cross_entropy")


class Divided(nn.Module):
    def forward(self, x, y):
        floors = (
            torch.div(x, y, rounding_mode="floor"),
            x // y,
            torch.remainder(x, y),
            torch.fmod(x, y),
        )
        return (
            *floors,
            torch.div(x, y, rounding_mode="trunc"),
            x // 0.3,
            aten.copy(x, y[0]) * 2,
        )


def test_rounded_quotients_are_decomposed_into_integers(batches):
    batches = [(y, 1 + y.roll(1).abs()) for _, y in batches]
    program = delegraph.quantize(Divided(), batches)
    lowered = delegraph.lower(program, options=INT, transforms=[integer_borders])
    assert not lowered.report.refusals
    inputs = program.graph.find_nodes(op="placeholder")
    integers = [
        in_steps(x, next(iter(node.users)))
        for x, node in zip(batches[0], inputs, strict=True)
    ]
    with torch.no_grad():
        found = lowered(*integers)
        expected = program.module(check_guards=False)(*batches[0])
    for ours, real, node in zip(
        found, expected, program.graph.output_node().args[0], strict=True
    ):
        assert_within_steps(ours.numpy(), in_steps(real, node))

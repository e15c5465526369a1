"""Integer weights of torchao are packed, dequantized at run time, and give the results of
eager torch.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import delegraph
import pytest
import torch
from delegraph_tosa.ir.graph import Graph
from delegraph_tosa.ir.types import DType
from delegraph_tosa.lowering import Tosa, lower_program
from delegraph_tosa.spec import TosaSpec
from torch import nn

from ...support.rule_cases import FP, SPEC, Family, randn

pytest.importorskip("torchao.quantization.quant_primitives")  # registers the operator

FAMILY = Family()


class Weight(nn.Module):
    """x times a weight of integers ``q`` in blocks that each have a scale.

    Each block also has a zero point of the dtype ``zeros``, unless that is None.
    """

    def __init__(self, q, block, zeros, limits):
        super().__init__()
        self.block = block
        self.limits = limits
        counts = [size // part for size, part in zip(q.shape, block, strict=True)]
        self.register_buffer("q", q)
        self.register_buffer("scale", randn(*counts).abs() + 0.1)
        self.register_buffer(
            "zero",
            (
                (torch.arange(self.scale.numel()) % 5 - 2).view(counts).to(zeros)
                if zeros
                else None
            ),
        )

    def forward(self, x):
        weight = torch.ops.torchao.dequantize_affine(
            self.q, self.block, self.scale, self.zero, torch.int8, *self.limits
        )
        return x * weight


def integers(*shape, low=-8, high=7):
    """Return a tensor that counts from ``low`` to ``high`` again and again."""
    count = torch.Size(shape).numel()
    return (torch.arange(count) % (high - low + 1) + low).to(torch.int8).view(shape)


class WeightRow(NamedTuple):
    shape: tuple[int, ...]
    block: list[int]
    zero_point_dtype: torch.dtype | None
    limits: tuple[int, int]
    spec: TosaSpec


NIBBLES = (-8, 7)
ROWS = {
    "groups": WeightRow((16, 128), [1, 32], torch.int8, NIBBLES, SPEC),
    "blocks over both axes": WeightRow((16, 64), [4, 16], torch.int8, NIBBLES, SPEC),
    "a scale for all, no zero point": WeightRow(
        (16, 64), [16, 64], None, NIBBLES, SPEC
    ),
    "one weight in a block": WeightRow((32, 32), [1, 1], torch.int32, NIBBLES, SPEC),
    "rank of one": WeightRow((1024,), [64], torch.int8, NIBBLES, SPEC),
    "rank of three": WeightRow((4, 16, 16), [1, 1, 16], torch.int8, NIBBLES, SPEC),
    "an odd number": WeightRow((27, 21), [1, 21], torch.int8, NIBBLES, SPEC),
    "few": WeightRow((2, 16), [1, 16], torch.int8, NIBBLES, SPEC),
    "three bits": WeightRow((16, 64), [1, 64], torch.int8, (-4, 3), SPEC),
    "eight bits": WeightRow((16, 64), [1, 16], torch.int8, (-128, 127), SPEC),
    "without PRO-INT": WeightRow((16, 128), [1, 32], torch.int8, NIBBLES, FP),
}
for name, row in ROWS.items():
    low, high = row.limits
    q = integers(*row.shape, low=low, high=high)
    module = Weight(q, row.block, row.zero_point_dtype, row.limits)
    FAMILY.case(name, module, randn(*row.shape), spec=row.spec)

test_equals_eager = FAMILY.equals_eager()
judged, test_equals_eager_through_the_reference_model = (
    FAMILY.equals_eager_through_the_reference_model()
)


def largest_constant(graph: Graph, dtype: DType) -> int:
    """Return the number of elements of the largest constant of an element type."""
    return max(
        math.prod(constant.shape)
        for constant in graph.constants()
        if constant.dtype is dtype
    )


@pytest.mark.parametrize("name", ["groups", "one weight in a block", "three bits"])
def test_weights_of_at_most_four_bits_are_stored_two_to_a_byte(name):
    graph = lower_program(FAMILY.exported(name), Tosa(ROWS[name].spec))

    weights = math.prod(ROWS[name].shape)
    assert largest_constant(graph, DType.INT8) == weights / 2


@pytest.mark.parametrize(
    "name", ["an odd number", "few", "eight bits", "without PRO-INT"]
)
def test_weights_that_cannot_be_packed_are_stored_one_to_a_byte(name):
    graph = lower_program(FAMILY.exported(name), Tosa(ROWS[name].spec))

    weights = math.prod(ROWS[name].shape)
    assert largest_constant(graph, DType.INT8) == weights


@pytest.mark.parametrize(
    "name",
    [
        "groups",
        "one weight in a block",
        "three bits",
        "an odd number",
        "few",
        "eight bits",
        "without PRO-INT",
    ],
)
def test_no_weight_is_stored_as_float(name):
    row = ROWS[name]
    graph = lower_program(FAMILY.exported(name), Tosa(row.spec))

    scales = math.prod(row.shape) // math.prod(row.block)
    assert largest_constant(graph, DType.FP32) <= scales


class Tokens(nn.Module):
    """An embedding and two linear layers."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(64, 128)
        self.layer = nn.Linear(128, 128, bias=False)
        self.head = nn.Linear(128, 8)

    def forward(self, tokens):
        return self.head(torch.relu(self.layer(self.embedding(tokens))))


def configurations():
    """Name -> list of arguments of ``quantize_`` after the model, one tuple a call."""
    from torchao import quantization as q

    groups = q.PerGroup(32)
    rows = q.PerAxis(0)
    dynamic = q.Int8DynamicActivationIntxWeightConfig

    def is_embedding(module, name):
        return isinstance(module, nn.Embedding)

    return {
        "8da8w": [(q.Int8DynamicActivationInt8WeightConfig(),)],
        "8da8w by rows": [(dynamic(weight_dtype=torch.int8, weight_granularity=rows),)],
        "8da8w in groups": [
            (dynamic(weight_dtype=torch.int8, weight_granularity=groups),)
        ],
        "embedding of int4": [
            (
                q.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=groups),
                is_embedding,
            )
        ],
        "embedding of int8": [
            (
                q.IntxWeightOnlyConfig(weight_dtype=torch.int8, granularity=rows),
                is_embedding,
            )
        ],
        "embedding of int4, 8da4w": [
            (
                q.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=groups),
                is_embedding,
            ),
            (dynamic(weight_dtype=torch.int4, weight_granularity=groups),),
        ],
    }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", configurations())
def test_models_quantized_by_torchao_become_one_delegate(name, monkeypatch):
    from torchao.kernel import intmm
    from torchao.quantization import quantize_

    # Otherwise, torchao computes in uint8 on CPUs with VNNI.
    monkeypatch.setattr(intmm, "_cpu_is_vnni_supported", lambda: False)

    torch.manual_seed(0)
    model = Tokens().eval()
    for arguments in configurations()[name]:
        quantize_(model, *arguments)
    tokens = torch.tensor([[3, 7, 1, 63]])

    lowered = delegraph.lower(model, (tokens,), backends=["tosa"], require_full=True)

    assert len(lowered.delegates) == 1
    # A dynamically quantized activation may round to the next integer.
    expected = model(tokens)
    assert (lowered(tokens) - expected).abs().max() <= 0.01 * expected.abs().max()

"""Weights of torchao: integers that are taken apart and dequantized at run time, each
row against eager torch.
"""

from __future__ import annotations

import delegraph
import pytest
import torch
from delegraph_tosa.ir.types import DType
from delegraph_tosa.lowering import Tosa, lower_program
from torch import nn

from ...support.rule_cases import FP, SPEC, Family, randn

pytest.importorskip("torchao.quantization.quant_primitives")  # registers the operator

FAMILY = Family()


class Weight(nn.Module):
    """x times a weight of ``q``, in blocks that each have a scale, and a zero point if
    there are ``zeros``.
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
    """All integers from ``low`` to ``high``, in turn."""
    count = torch.Size(shape).numel()
    return (torch.arange(count) % (high - low + 1) + low).to(torch.int8).view(shape)


NIBBLES = (-8, 7)
ROWS = {
    "groups": ((16, 128), [1, 32], torch.int8, NIBBLES, SPEC),
    "blocks over both axes": ((16, 64), [4, 16], torch.int8, NIBBLES, SPEC),
    "a scale for all, no zero point": ((16, 64), [16, 64], None, NIBBLES, SPEC),
    "one weight in a block": ((32, 32), [1, 1], torch.int32, NIBBLES, SPEC),
    "rank of one": ((1024,), [64], torch.int8, NIBBLES, SPEC),
    "rank of three": ((4, 16, 16), [1, 1, 16], torch.int8, NIBBLES, SPEC),
    "an odd number": ((27, 21), [1, 21], torch.int8, NIBBLES, SPEC),
    "few": ((2, 16), [1, 16], torch.int8, NIBBLES, SPEC),
    "three bits": ((16, 64), [1, 64], torch.int8, (-4, 3), SPEC),
    "eight bits": ((16, 64), [1, 16], torch.int8, (-128, 127), SPEC),
    "without PRO-INT": ((16, 128), [1, 32], torch.int8, NIBBLES, FP),
}
for name, (shape, block, zeros, limits, spec) in ROWS.items():
    module = Weight(
        integers(*shape, low=limits[0], high=limits[1]), block, zeros, limits
    )
    FAMILY.case(name, module, randn(*shape), spec=spec)

test_equals_eager = FAMILY.equals_eager()
judged, test_equals_eager_through_the_reference_model = (
    FAMILY.equals_eager_through_the_reference_model()
)


BYTES = {
    **dict.fromkeys(("groups", "one weight in a block", "three bits"), 0.5),
    **dict.fromkeys(("an odd number", "few", "eight bits", "without PRO-INT"), 1),
}


@pytest.mark.parametrize(("name", "bytes_each"), BYTES.items())
def test_the_file_has_two_of_four_bits_in_a_byte(name, bytes_each):
    graph = lower_program(FAMILY.exported(name), Tosa(ROWS[name][-1]))
    sizes = [
        torch.Size(constant.shape).numel()
        for constant in graph.constants()
        if constant.dtype is DType.INT8
    ]
    count = torch.Size(ROWS[name][0]).numel()
    assert max(sizes) == bytes_each * count
    floats = [
        torch.Size(constant.shape).numel()
        for constant in graph.constants()
        if constant.dtype is DType.FP32
    ]
    assert max(floats) <= count // torch.Size(ROWS[name][1]).numel(), "scales alone"


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
    """Name -> what ``quantize_`` is called with, beside the model."""
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
def test_models_quantized_by_torchao_are_one_delegate(name, monkeypatch):
    from torchao.kernel import intmm
    from torchao.quantization import quantize_

    # else it computes in uint8 on such CPUs
    monkeypatch.setattr(intmm, "_cpu_is_vnni_supported", lambda: False)

    torch.manual_seed(0)
    model = Tokens().eval()
    for given in configurations()[name]:
        quantize_(model, *given)
    tokens = torch.tensor([[3, 7, 1, 63]])
    lowered = delegraph.lower(model, (tokens,), backends=["tosa"], require_full=True)
    expected = model(tokens)
    # an activation may round to the next integer
    assert len(lowered.delegates) == 1
    assert (lowered(tokens) - expected).abs().max() <= 0.01 * expected.abs().max()

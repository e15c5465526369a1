"""Models in bfloat16 and float16 become one delegate that is as exact as eager torch."""

from __future__ import annotations

from copy import deepcopy

import delegraph
import numpy as np
import pytest
import torch
from delegraph_tosa.backend import compile_program
from delegraph_tosa.ir.types import DType
from delegraph_tosa.serialize import read
from delegraph_tosa.spec import TosaSpec
from torch import nn

from ..support import reference_tools
from ..support.rule_cases import Function, randn

TARGETS = {torch.bfloat16: "TOSA-1.0+FP+bf16", torch.float16: "TOSA-1.0+FP"}
ULP = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
"""Largest relative error of one rounding."""


class Block(nn.Module):
    """A layer of BERT."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.wide = nn.Linear(16, 32)
        self.narrow = nn.Linear(32, 16)
        self.first = nn.LayerNorm(16)
        self.second = nn.LayerNorm(16)

    def forward(self, x):
        x = self.first(x + self.attention(x, x, x, need_weights=False)[0])
        return self.second(x + self.narrow(nn.functional.gelu(self.wide(x))))


def bert():
    return (
        nn.Sequential(nn.Embedding(50, 16), Block(), Block()),
        torch.arange(12).reshape(2, 6) * 4,
    )


def mlp():
    return nn.Sequential(
        nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 4)
    ), randn(5, 8)


def cnn():
    layers = (
        *(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU6()),
        *(
            nn.Conv2d(8, 8, 3, groups=8, padding=1),
            nn.BatchNorm2d(8),
            nn.Hardswish(),
            nn.MaxPool2d(2),
        ),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5), nn.Softmax(-1)),
    )
    return nn.Sequential(*layers), randn(2, 3, 8, 8)


def statistics_of(model, inputs):
    """Batch norms that saw the input once: fresh ones would leave nothing of it."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
    model.train()(inputs)
    return model.eval()


def to(tensor, dtype):
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def relative_distance(found, exact):
    return ((found.double() - exact).abs().max() / exact.abs().max()).item()


@pytest.mark.parametrize(
    "dtype", TARGETS, ids=lambda dtype: str(dtype).removeprefix("torch.")
)
@pytest.mark.parametrize("make", [mlp, cnn, bert], ids=lambda make: make.__name__)
def test_a_model_is_one_delegate_as_exact_as_eager(make, dtype):
    torch.manual_seed(0)
    model, inputs = make()
    model = statistics_of(model, inputs)
    with torch.no_grad():
        exact = deepcopy(model).double()(to(inputs, torch.float64))
        short = model.to(dtype)
        given = to(inputs, dtype)
        eager = short(given)
    options = {"tosa": {"spec": TARGETS[dtype]}}
    lowered = delegraph.lower(short, (given,), backends=["tosa"], options=options)
    assert len(lowered.delegates) == 1, lowered.report
    assert lowered.report.host_operators == 0, lowered.report
    file = lowered.delegates[0].processed_bytes
    allowed = 2 * relative_distance(eager, exact) + ULP[dtype]
    assert lowered(given).dtype is dtype
    assert relative_distance(lowered(given), exact) < allowed
    reference_tools.check_strictly(
        file, "pro_fp", "bf16" if dtype is torch.bfloat16 else ""
    )
    entering = given.to(torch.int32) if given.dtype is torch.int64 else given
    held = (
        entering.view(torch.uint16)
        if dtype is torch.bfloat16 and entering.is_floating_point()
        else entering
    )
    (theirs,) = reference_tools.run_reference_model(file, [held.numpy()])
    found = (
        torch.from_numpy(theirs.view(np.uint16).copy()).view(dtype).reshape(eager.shape)
    )
    assert relative_distance(found, exact) < allowed


def operators_and_types(function, *inputs):
    program = torch.export.export(Function(function), inputs)
    graph = compile_program(program, TosaSpec.parse("TOSA-1.0+FP+INT+bf16"))
    return [f"{op.name} {op.outputs[0].dtype}" for op in graph.operators]


def test_single_operators_compute_in_short_floats():
    x = randn(2, 3).bfloat16()
    assert operators_and_types(lambda x: (x * 2).tanh().reshape(6).clamp(0, 1), x) == [
        *("MUL bf16", "TANH bf16", "RESHAPE bf16", "CLAMP bf16")
    ]


def test_several_operators_round_only_once():
    x = randn(2, 3).bfloat16()
    assert operators_and_types(torch.nn.functional.silu, x) == [
        "CAST fp32",
        "SIGMOID fp32",
        "MUL fp32",
        "CAST bf16",
    ]
    # 0.1 is none of bf16's numbers
    assert operators_and_types(lambda x: x * 0.1, x) == [
        "CAST fp32",
        "MUL fp32",
        "CAST bf16",
    ]
    assert operators_and_types(lambda x: x.sum(1), x)[:2] == [
        "CAST fp32",
        "REDUCE_SUM fp32",
    ]


@pytest.mark.parametrize(
    "dtype", TARGETS, ids=lambda dtype: str(dtype).removeprefix("torch.")
)
def test_divisors_are_rounded_as_torch_does(dtype):
    function = Function(lambda x: (x % 0.3, torch.fmod(x, 0.3))).eval()
    x = (torch.arange(-20, 20) / 4).to(dtype)
    lowered = delegraph.lower(
        function, (x,), backends=["tosa"], options={"tosa": {"spec": TARGETS[dtype]}}
    )
    assert lowered.host_operators == 0
    for found, eager in zip(lowered(x), function(x), strict=True):
        assert relative_distance(found, eager.double()) < 2 * ULP[dtype]


def test_weights_are_stored_in_their_short_type():
    model = nn.Linear(64, 64).bfloat16().eval()
    given = randn(1, 64).bfloat16()
    options = {"tosa": {"spec": TARGETS[torch.bfloat16]}}
    graph = read(
        delegraph.lower(model, (given,), backends=["tosa"], options=options)
        .delegates[0]
        .processed_bytes
    )
    assert {
        constant.dtype
        for constant in graph.constants()
        if constant.dtype is not DType.SHAPE
    } == {DType.BF16}

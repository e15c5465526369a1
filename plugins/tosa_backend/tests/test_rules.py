"""Every rule against eager torch: a row an operator, through ``evaluate`` and as a file through the reference model."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from functools import cache

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from delegraph_tosa.backend import compile_program
from delegraph_tosa.evaluate import evaluate
from delegraph_tosa.lowering import RULES, lower_program
from delegraph_tosa.serialize import TosaFile
from delegraph_tosa.spec import TosaSpec
from delegraph_tosa.validate import violations
from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")
torch.set_num_threads(1)
aten = torch.ops.aten
SPEC = TosaSpec.parse("TOSA-1.0+FP+INT")
FP = TosaSpec.parse("TOSA-1.0+FP")
BOUND = {torch.float32: 1e-5, torch.float16: 2e-3}
"""Largest error relative to the largest output."""

inf, nan = float("inf"), float("nan")
EDGES = torch.tensor([-inf, -7.5, -3.0, -1.0, -0.0, 0.0, 1e-3, 1.0, 3.0, 6.5, inf, nan])


def randn(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + len(shape))).to(dtype)


def positive(*shape):
    return randn(*shape).abs() + 0.1


def whole(*shape, dtype=torch.int32):
    return torch.randint(-9, 9, shape, generator=torch.Generator().manual_seed(1), dtype=dtype)


def truth(*shape):
    return randn(*shape) > 0


def half(*shape):
    return randn(*shape, dtype=torch.float16)


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


class WithConstant(nn.Module):
    """A function of a parameter and the inputs."""

    def __init__(self, function, *parameters):
        super().__init__()
        self.parameters_ = nn.ParameterList([nn.Parameter(p, requires_grad=False) for p in parameters])
        self.function = function

    def forward(self, *args):
        return self.function(*self.parameters_, *args)


def norm(module):
    """Batch norm with live statistics."""
    with torch.no_grad():
        for buffer in (module.running_mean, module.running_var, module.weight, module.bias):
            buffer.copy_(torch.rand(buffer.shape, generator=torch.Generator().manual_seed(3)) + 0.5)
    return module


def conv(*args, seed=0, **kwargs):
    torch.manual_seed(seed)
    return nn.Conv2d(*args, **kwargs)


CASES = {}


def case(name, function, *inputs, spec=SPEC):
    module = function if isinstance(function, nn.Module) else Function(function)
    assert name not in CASES, name
    CASES[name] = (module.eval(), inputs, spec)


def cases(name, function, *several, spec=SPEC):
    """The same function on several tuples of inputs (a tensor stands for a tuple of one)."""
    for k, inputs in enumerate(several):
        case(f"{name}-{k}", function, *(inputs if isinstance(inputs, tuple) else (inputs,)), spec=spec)


def one_operand():
    for name in ("abs", "neg", "exp", "floor", "ceil", "erf", "square", "sigmoid", "tanh"):
        cases(name, getattr(torch, name), randn(2, 3, 4), half(5), torch.tensor(0.7), EDGES, spec=FP)
    for name in ("log", "sqrt", "rsqrt", "reciprocal"):
        cases(name, getattr(torch, name), positive(2, 3), torch.tensor([0.0, 1e-3, inf, nan]), spec=FP)
    for name in ("sin", "cos"):
        cases(name, getattr(torch, name), randn(2, 3), half(7))
    cases("exp-of-int", torch.exp, whole(2, 3), truth(2, 3))
    cases("floor-of-int", torch.floor, whole(2, 3))
    cases("abs-of-int", torch.abs, whole(2, 3))


def two_operands():
    pairs = [
        (randn(2, 3, 4), randn(2, 3, 4, seed=5)),
        (randn(2, 3, 4), randn(3, 1)),
        (randn(4), randn(2, 1, 4)),
        (torch.tensor(2.5), randn(2, 3)),
        (half(2, 3), half(3)),
    ]
    for name in ("add", "sub", "mul", "div", "maximum", "minimum", "rsub"):
        cases(name, getattr(torch, name), *pairs)
    for name in ("add", "sub", "mul", "rsub"):
        cases(f"{name}-ints", getattr(torch, name), (whole(2, 3), whole(3)))
    cases("alpha", lambda x, y: torch.add(x, y, alpha=0.5) - torch.sub(y, x, alpha=-2), *pairs)
    cases("rsub-alpha", lambda x, y: torch.rsub(x, y, alpha=3), *pairs)
    scalars = [randn(2, 3), whole(2, 3), half(3), torch.tensor(1.5)]
    cases("number", lambda x: 1.5 - (x + 2) * 0.25 / 3 + 2 / (x.abs() + 1), *scalars)
    cases("whole-number", lambda x: (x * 3 - 7).add(2, alpha=2), *scalars)
    cases("promoted", lambda x, y: x * y + y / x.abs().add(1), (whole(2, 3), randn(3)), (half(3), whole(2, 3)))
    cases("promoted-bool", lambda x, y: (x + y) * y - 1, (randn(2, 3), truth(3)), (whole(3), truth(2, 3)))
    cases("rank-0-does-not-promote", lambda x, y: x * y, (half(2, 3), torch.tensor(0.3)))
    cases("and", lambda x, y: x * y, (truth(2, 3), truth(3)))
    cases("half-of-ints", lambda x: x / 2, whole(2, 3))
    cases("divided-by-zero", lambda x: x / 0.0 + x / -0.0, EDGES)
    cases("divided-by-a-parameter", WithConstant(lambda w, x: x / w, positive(3)), randn(2, 3))
    cases("divided-by-infinity", lambda x: x / inf, randn(3))
    for exponent in (1, 2, 3, 4, 7, 0.5, -0.5, -1, 1.7, -2, 0):
        cases(f"pow{exponent}", lambda x, e=exponent: torch.pow(x, e), positive(2, 3))
    cases("pow-of-negative", lambda x: x**2 + x**3, randn(2, 3))
    cases("pow-of-int", lambda x: x**2, whole(2, 3))
    cases("pow-pairs", torch.pow, (positive(2, 3), randn(3)))
    cases("pow-base", lambda x: torch.pow(2.5, x), randn(2, 3))
    cases(
        "scalar-overloads",
        lambda x: aten.add.Scalar(aten.div.Scalar(aten.mul.Scalar(aten.sub.Scalar(x, 2), 3), 7), 1, 2),
        randn(2, 3),
    )
    cases(
        "second-names",
        lambda x, y: torch.negative(torch.multiply(x, y)) + torch.absolute(torch.subtract(x, y, alpha=2)),
        (randn(2, 3), randn(3)),
    )
    cases("division-names", lambda x, y: torch.true_divide(x, y) + torch.divide(y, x), (positive(2, 3), positive(3)))
    cases("max-min", lambda x, y: torch.max(x, y) - torch.min(x, y), (randn(2, 3), randn(3)))


def comparisons():
    ints = whole(2, 3), whole(3)
    for name in ("eq", "ne", "gt", "ge", "lt", "le"):
        compare = getattr(torch, name)
        cases(name, compare, (randn(2, 3).round(), randn(3).round()), ints, (ints[0], randn(3)), (EDGES, EDGES.flip(0)))
        cases(f"{name}-number", lambda x, f=compare: f(x, 1), randn(2, 3).round(), ints[0])
    cases("eq-bools", torch.eq, (truth(2, 3), truth(3)))
    for name in ("logical_and", "logical_or", "logical_xor"):
        cases(name, getattr(torch, name), (truth(2, 3), truth(3)), (randn(2, 3).round(), ints[1]))
    cases("logical_not", torch.logical_not, truth(2, 3), ints[0])
    cases("where", torch.where, (truth(2, 3), randn(2, 3), randn(3)), (truth(3), whole(2, 3), whole(1)))
    cases("where-promoted", torch.where, (truth(2, 3), randn(2, 3), whole(3)))
    cases("masked-fill", lambda x, m: x.masked_fill(m, -inf).softmax(-1), (randn(2, 3), torch.eye(2, 3) > 0))
    cases("masked-fill-tensor", lambda x, m, v: x.masked_fill(m, v), (randn(2, 3), truth(3), torch.tensor(2.0)))


def activations():
    for name in ("relu", "relu6", "hardtanh", "hardswish", "hardsigmoid", "silu", "leaky_relu", "elu", "selu", "gelu"):
        cases(name, getattr(F, name), randn(2, 3, 4), half(2, 5), randn(3) * 1e-4, spec=FP)
    for name in ("relu", "relu6", "hardtanh", "hardsigmoid", "leaky_relu", "elu"):
        cases(f"{name}-edges", getattr(F, name), EDGES, spec=FP)
    cases("celu", lambda x: F.celu(x, 0.4), randn(2, 3), EDGES)
    cases("softplus", lambda x: F.softplus(x, 2, 5), randn(2, 3) * 3, randn(9).abs() - 5, torch.tensor([-13.0]))
    cases("gelu-tanh", lambda x: F.gelu(x, approximate="tanh"), randn(2, 3))
    for slope in (0.0, 0.3, 1.0, 2.0, -0.5):
        cases(f"slope{slope}", lambda x, s=slope: F.leaky_relu(x, s), randn(2, 3), torch.tensor([1.0, -inf, nan]))
    cases("clamp", lambda x: x.clamp(-0.5, 0.25) + x.clamp(min=0.1) * x.clamp(max=0.2), randn(2, 3), half(5))
    cases("clamp-min-max", lambda x: torch.clamp_min(x, 0.1) + torch.clamp_max(x, 0.3), randn(2, 3))
    cases("clip", lambda x: torch.clip(x, -0.5, 0.25), randn(2, 3))
    cases("clamp-crossed", lambda x: x.clamp(2, 1), randn(2, 3))
    cases("clamp-ints", lambda x: x.clamp(-2, 3), whole(2, 3))
    cases("clamp-tensors", torch.clamp, (randn(2, 3), randn(3), randn(2, 3, seed=7)))


def convolutions():
    image = randn(2, 4, 11, 9)
    for stride in (1, 2, 3):
        for padding in (0, 1, 2):
            case(f"conv-s{stride}-p{padding}", conv(4, 6, 3, stride, padding), image, spec=FP)
    cases("conv-cut", conv(4, 6, (1, 2), (2, 3)), image, spec=FP)
    cases("conv-dilated", conv(4, 6, 3, 2, (2, 1), dilation=(2, 1)), image, spec=FP)
    cases("conv-mixed", conv(4, 6, (5, 1), (2, 3), (1, 0), bias=False), image, spec=FP)
    cases("conv-unbatched", conv(4, 6, 3, padding=1), image[0])
    cases("conv-half", conv(4, 6, 3, padding=1).half(), image.half())
    cases("conv-same", conv(4, 6, (4, 3), padding="same", dilation=(1, 2)), image)
    cases("conv-valid", conv(4, 6, 3, padding="valid", stride=2), image, image[1])
    cases("depthwise", conv(4, 4, 3, 2, 1, groups=4), image)
    cases("depthwise-multiplier", conv(4, 12, 3, padding=1, groups=4, bias=False), image)
    cases("grouped", conv(4, 6, 3, padding=1, groups=2), image)
    cases("grouped-no-bias", conv(4, 6, 3, 2, groups=2, bias=False), image)
    cases("conv1d", nn.Conv1d(4, 6, 3, 2, 1), randn(2, 4, 11), randn(4, 11))
    cases("conv1d-same", nn.Conv1d(4, 8, 4, padding="same", groups=2), randn(2, 4, 11))
    cases("conv-of-run-time-weights", F.conv2d, (image, randn(6, 4, 3, 3), randn(6)))
    cases(
        "convolution",
        lambda x, w: aten.convolution(x, w, None, [2], [1], [1], False, [0], 1),
        (randn(1, 4, 9), randn(6, 4, 3)),
    )
    cases(
        "convolution2",
        lambda x, w: aten.convolution(x, w, None, [2, 1], [1, 1], [1, 1], False, [0, 0], 2),
        (image, randn(6, 2, 3, 3)),
    )


def pools():
    image = randn(2, 3, 11, 9)
    settings = [
        (2,),
        (3, 2),
        (3, 2, 1),
        ((3, 2), (1, 2), (1, 0)),
        (3, 3, 0, True),
        (3, 2, 1, True),
        ((2, 3), 3, 1, True),
    ]
    for kernel, *rest in settings:
        stride, padding, ceil = (*rest, None, 0, False)[0], (*rest, 0, 0)[1] if len(rest) > 1 else 0, len(rest) > 2
        arguments = {"kernel_size": kernel, "stride": stride, "padding": padding, "ceil_mode": ceil}
        name = f"k{kernel}-s{stride}-p{padding}{'-ceil' if ceil else ''}"
        case(f"max-pool-{name}", nn.MaxPool2d(**arguments), image, spec=FP)
        case(f"avg-pool-{name}", nn.AvgPool2d(**arguments), image, spec=FP)
        case(f"avg-pool-uncounted-{name}", nn.AvgPool2d(**arguments, count_include_pad=False), image, spec=FP)
        case(f"avg-pool-divisor-{name}", nn.AvgPool2d(**arguments, divisor_override=5), image, spec=FP)
    cases("max-pool-unbatched", nn.MaxPool2d(2), image[0], half(1, 2, 4, 4))
    cases("max-pool-indices", lambda x: aten.max_pool2d_with_indices(x, [2, 2])[0], image)
    for size in (1, (2, 3), (5, 4), (11, 9), (4, 1), (13, 10)):
        cases(f"adaptive{size}", nn.AdaptiveAvgPool2d(size), image, randn(1, 2, 10, 12), half(3, 10, 9))
    cases("adaptive-inner", lambda x: aten._adaptive_avg_pool2d(x, [1, 1]), image)


def norms():
    cases("batch-norm", norm(nn.BatchNorm2d(3)), randn(2, 3, 4, 5), spec=FP)
    cases("batch-norm-1d", norm(nn.BatchNorm1d(3)), randn(2, 3, 4), randn(5, 3))
    cases("batch-norm-plain", lambda x, m, v: F.batch_norm(x, m, v), (randn(2, 3, 4), randn(3), positive(3)))
    cases(
        "batch-norm-inner",
        lambda x, w, b, m, v: aten._native_batch_norm_legit_no_training(x, w, b, m, v, 0.1, 1e-3)[0],
        (randn(2, 3, 4), randn(3), randn(3, seed=2), randn(3, seed=4), positive(3)),
    )


def reductions():
    x = randn(2, 3, 4, 5)
    for name in ("mean", "sum", "amax", "amin"):
        function = getattr(torch, name)
        cases(name, lambda x, f=function: f(x, dim=(1, -1)), x, half(2, 3, 4))
        cases(f"{name}-kept", lambda x, f=function: f(x, dim=(-2,), keepdim=True), x)
        cases(f"{name}-all", lambda x, f=function: f(x), x) if name in ("mean", "sum") else None
        cases(f"{name}-of-rank-0", lambda x, f=function: f(x, dim=0), torch.tensor(2.0))
    cases("amax-all", lambda x: torch.amax(x, ()) - torch.amin(x, ()), x, whole(2, 3))
    cases("sum-int32", lambda x: x.sum(1, dtype=torch.int32), whole(2, 3))
    cases("sum-of-ints-as-float", lambda x: x.sum(dtype=torch.float32), whole(2, 3))
    cases("mean-as-float", lambda x: x.mean(dtype=torch.float32), half(2, 3), whole(2, 3))
    for name in ("softmax", "log_softmax"):
        function = getattr(F, name)
        cases(name, lambda x, f=function: f(x, -1), x * 20, half(2, 9), torch.tensor(3.0))
        cases(f"{name}-channels", lambda x, f=function: f(x, 1), x)
        cases(f"{name}-as-float", lambda x, f=function: f(x, 0, dtype=torch.float32), half(3, 4))
    cases("softmax-inner", lambda x: aten._softmax(x, 1, False) + aten._log_softmax(x, 1, False), x)


def products():
    cases("linear", nn.Linear(5, 7), randn(2, 3, 5), randn(4, 5), randn(5), spec=FP)
    cases("linear-no-bias", nn.Linear(5, 7, bias=False), randn(3, 5), spec=FP)
    cases("linear-half", nn.Linear(5, 7).half(), half(3, 5))
    cases("linear-run-time", F.linear, (randn(2, 3, 5), randn(7, 5), randn(7)), (half(3, 5), half(7, 5)))
    cases("linear-vector", F.linear, (randn(2, 3, 5), randn(5)))
    cases(
        "matmul",
        torch.matmul,
        (randn(3, 4), randn(4, 5)),
        (randn(4), randn(4)),
        (randn(2, 3, 4), randn(4)),
        (randn(4), randn(2, 4, 3)),
        (randn(2, 1, 3, 4), randn(5, 4, 2)),
        (randn(3, 4), randn(2, 4, 2)),
        (randn(2, 3, 4), randn(4, 2)),
    )
    cases("matmul-parameter", WithConstant(lambda w, x: x @ w, randn(4, 6)), randn(2, 3, 4), randn(4), randn(3, 4))
    cases("matmul-parameter-left", WithConstant(lambda w, x: w @ x, randn(6, 4)), randn(2, 4, 3), randn(4))
    cases("mm-transposed-parameter", WithConstant(lambda w, x: torch.mm(x, w.t()), randn(6, 4)), randn(3, 4))
    cases("bmm", torch.bmm, (randn(2, 3, 4), randn(2, 4, 5)), (half(2, 3, 4), half(2, 4, 5)))
    cases("addmm", torch.addmm, (randn(5), randn(3, 4), randn(4, 5)), (randn(3, 5), randn(3, 4), randn(4, 5)))
    cases("addmm-parameter", WithConstant(lambda w, b, x: torch.addmm(b, x, w), randn(4, 5), randn(5)), randn(3, 4))
    cases("addmm-scaled", lambda b, x, y: torch.addmm(b, x, y, beta=0.5, alpha=2), (randn(5), randn(3, 4), randn(4, 5)))
    cases(
        "addmm-unused", lambda b, x, y: torch.addmm(b, x, y, beta=0), (torch.full((5,), nan), randn(3, 4), randn(4, 5))
    )
    cases(
        "baddbmm", lambda b, x, y: torch.baddbmm(b, x, y, alpha=0.3), (randn(2, 3, 5), randn(2, 3, 4), randn(2, 4, 5))
    )


UNEQUAL = ("stack", "unbind")
"""Computed with, as truth values cannot be."""


def shapes():
    x = randn(2, 3, 4, 5)
    moves = {
        "view": lambda x: x.view(2, -1, 10),
        "reshape": lambda x: x.reshape(6, 20),
        "unsafe-view": lambda x: aten._unsafe_view(x, [2, 60]),
        "flatten": lambda x: x.flatten(1, -2),
        "flatten-all": lambda x: x.flatten(),
        "unflatten": lambda x: x.unflatten(2, (2, -1)),
        "unsqueeze": lambda x: x.unsqueeze(-1).unsqueeze(0),
        "squeeze": lambda x: (
            x[:1, :, :1].squeeze() + x[:1, :, :1].squeeze(0).squeeze(-2) + x[:1, :, :1].squeeze((0, 2))
        ),
        "squeeze-nothing": lambda x: x.squeeze(1),
        "permute": lambda x: x.permute(0, -2, 3, 1),
        "transpose": lambda x: x.transpose(1, -1).swapaxes(0, 2),
        "mT": lambda x: torch.cat([x.mT, x.mH, x.adjoint()]),
        "movedim": lambda x: x.movedim(0, 2).movedim((0, 1), (-1, 0)),
        "moveaxis": lambda x: x.moveaxis(0, 2).moveaxis((0, 1), (-1, 0)).swapdims(1, -1),
        "stack": lambda x: torch.stack([x, x + 1], -1),
        "slice": lambda x: x[:, 1:, -3:-1],
        "slice-steps": lambda x: x[:, ::2, ::3, 1::2],
        "select": lambda x: x[:, 1, -1] + x.select(2, -2)[:, 1],
        "narrow": lambda x: x.narrow(-1, 1, 3),
        "split": lambda x: x.split(2, -1)[1] + x.split(2, -1)[0],
        "split-sizes": lambda x: aten.split_with_sizes(x, [1, 4], 3)[1] + aten.split.sizes(x, [4, 1], 3)[0],
        "chunk": lambda x: x.chunk(3, 3)[2],
        "unbind": lambda x: x.unbind(1)[2] - x.unbind(1)[0],
        "expand": lambda x: x[:, :1].expand(-1, 6, -1, -1).expand(3, 2, 6, 4, 5),
        "broadcast-to": lambda x: x[:, :1].broadcast_to(2, 6, 4, 5),
        "repeat": lambda x: x.repeat(2, 1, 1, 3, 1),
        "tile": lambda x: x.tile((2, 1)),
        "pad": lambda x: F.pad(x, (1, 2, 0, 3), value=1),
        "pad-cut": lambda x: F.pad(x, (-1, 2, 1, -2)),
        "constant-pad": lambda x: aten.constant_pad_nd(x, [1, 1, 2, 0, 0, 1]),
    }
    for name, move in moves.items():
        cases(name, move, x, half(2, 3, 4, 5), whole(2, 3, 4, 5), truth(2, 3, 4, 5) if name not in UNEQUAL else x)
    cases("cat", lambda x, y: torch.cat([x, y, x], 1), (x, x[:, :1]), (whole(2, 3), whole(2, 1)))
    cases("cat-promoted", lambda x, y: torch.cat([x, y]), (randn(2, 3), whole(1, 3)), (half(1, 3), randn(1, 3)))
    cases("cat-of-70", lambda x: torch.cat([x + k for k in range(70)], -1), randn(1, 2))
    cases("view-as", lambda x, y: x.view_as(y) + y.expand_as(y), (x, randn(6, 20)))
    cases("t", lambda x: x.t(), randn(2, 3), randn(4))
    cases("matrix-H", lambda x: x.H, randn(2, 3))
    cases("contiguous", lambda x: x.t().contiguous(), randn(2, 3))
    cases("concat", lambda x: torch.concatenate([torch.concat([x, x]), x]), randn(2, 3))
    cases("numpy-T", lambda x: aten.numpy_T(x), randn(2, 3))


def images():
    image = randn(2, 3, 6, 5)
    for size in ((12, 10), (3, 5), (6, 5), (9, 7), (1, 20), (13, 15)):
        cases(f"nearest{size}", lambda x, s=size: F.interpolate(x, s), image, half(1, 2, 3, 1), spec=FP)
        for corners in (False, True):
            cases(
                f"bilinear{size}{corners}",
                lambda x, s=size, c=corners: F.interpolate(x, s, mode="bilinear", align_corners=c),
                image,
                half(1, 2, 3, 1),
                spec=FP,
            )
    for factor in (2, 3, 0.5, 1.5, (2, 3.5)):
        cases(f"nearest-x{factor}", lambda x, f=factor: F.interpolate(x, scale_factor=f), image)
        for corners in (False, True):
            cases(
                f"bilinear-x{factor}{corners}",
                lambda x, f=factor, c=corners: F.interpolate(x, scale_factor=f, mode="bilinear", align_corners=c),
                image,
            )
    cases("nearest-inner", lambda x: aten.upsample_nearest2d(x, [12, 10]), image)
    cases("bilinear-inner", lambda x: aten.upsample_bilinear2d(x, [12, 10], False), image)


def unchanged():
    cases("dropout", nn.Dropout(0.5), randn(2, 3))
    cases("feature-dropout", nn.Dropout2d(0.5), randn(1, 2, 3, 3))
    cases("copies", lambda x: (x.detach().clone().contiguous() + aten.alias(x)) * aten.lift_fresh_copy(x), randn(2, 3))
    cases("channels-last", lambda x: x.to(memory_format=torch.channels_last) * 2, randn(1, 2, 3, 3))
    cases("positive", lambda x: +x, randn(2))
    cases("returned-as-it-is", lambda x, y: (y, x * 1, x, y), (randn(2), randn(3)))


def conversions():
    floats = torch.tensor([-2.7, -0.5, 0.0, 0.5, 2.5, 3.7])
    cases("to-int", lambda x: x.to(torch.int32), floats, floats.half(), floats > 0)
    cases("to-float", lambda x: x.float(), floats.half(), whole(3), truth(4))
    cases("to-half", lambda x: x.half(), floats, whole(3), truth(4))
    cases("to-bool", lambda x: x.bool(), floats, whole(30))
    cases("to-small", lambda x: x.to(torch.int8).to(torch.int16), whole(3), floats)
    cases("to-other", lambda x, y: x.to(y) + x.type_as(y), (whole(3), floats[:3]))
    cases("to-other-inner", lambda x, y: aten.to.other(x, y), (floats, whole(1)))
    cases("to-copy", lambda x: aten._to_copy(x, dtype=torch.float16), floats)
    cases("to-device", lambda x: x.to("cpu", torch.float16), floats)
    cases("to-same", lambda x: x.to(torch.float32) + 1, floats)


def creations():
    cases("full", lambda x: torch.full((2, 3), 1.5) + torch.full((3,), 2) * torch.full_like(x, 2.5), randn(2, 3))
    cases("ones", lambda x: torch.ones(2, 3) + torch.ones_like(x) - torch.zeros(3) + torch.zeros_like(x), randn(2, 3))
    cases("arange", lambda x: x + torch.arange(3) - torch.arange(1, 4) * torch.arange(0, 6, 2.0), randn(2, 3))
    cases("scalar-tensor", lambda x: x * aten.scalar_tensor(2), randn(2, 3))
    cases("large", lambda x: x + torch.ones(200, 300), randn(200, 1))


for family in (
    one_operand,
    two_operands,
    comparisons,
    activations,
    convolutions,
    pools,
    norms,
    reductions,
    products,
    shapes,
    images,
    unchanged,
    conversions,
    creations,
):
    family()


@cache
def exported(name):
    module, inputs, spec = CASES[name]
    return torch.export.export(module, inputs), inputs, spec


def eager(name):
    module, inputs, _ = CASES[name]
    results = module(*inputs)
    return results if isinstance(results, tuple) else (results,)


def arrays(tensors):
    return [t.detach().numpy() for t in tensors]


def check(found, wanted):
    assert len(found) == len(wanted)
    for mine, theirs in zip(found, wanted, strict=True):
        theirs = theirs.detach()
        assert (mine.shape, str(mine.dtype)) == (tuple(theirs.shape), str(theirs.dtype).removeprefix("torch."))
        if not theirs.is_floating_point():
            np.testing.assert_array_equal(mine, theirs.numpy())
            continue
        finite = theirs.isfinite()
        scale = theirs[finite].abs().max().item() if finite.any() else 1.0
        np.testing.assert_allclose(mine, theirs.numpy(), rtol=0, atol=BOUND[theirs.dtype] * scale)


@pytest.mark.parametrize("name", CASES)
def test_equals_eager(name):
    program, inputs, spec = exported(name)
    graph = lower_program(program, spec)
    assert violations(graph, spec) == []
    check(evaluate(graph, arrays(inputs)), eager(name))


CHILD = """
import pickle, sys
import tosa_reference_model as model
with open(sys.argv[1], "rb") as work, open(sys.argv[2], "wb") as done:
    for name, blob, inputs in pickle.load(work):
        print(name, file=sys.stderr, flush=True)  # the last one printed is the one that aborted
        results, status = model.run(blob, inputs, tosa_level="EIGHTK")
        pickle.dump((name, [r.copy() for r in results], status == model.GraphStatus.TOSA_VALID), done)
"""


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """What the official model computes from the legalized files: name -> (results, whether it accepts the file)."""
    pytest.importorskip("tosa_reference_model")
    work = []
    for name in CASES:
        program, inputs, spec = exported(name)
        blob = TosaFile(compile_program(program, spec), spec).join()
        work.append((name, blob, [np.ascontiguousarray(a) for a in arrays(inputs)]))
    folder = tmp_path_factory.mktemp("reference")
    (folder / "work").write_bytes(pickle.dumps(work))
    environment = {**os.environ, "PATH": ""}  # without gdb, which the model would attach to itself
    command = [sys.executable, "-c", CHILD, str(folder / "work"), str(folder / "done")]
    child = subprocess.run(command, capture_output=True, env=environment, check=False)
    assert child.returncode == 0, child.stderr.decode()[-2000:]
    with open(folder / "done", "rb") as done:
        rows = [pickle.load(done) for _ in work]
    return {name: (results, valid) for name, results, valid in rows}


@pytest.mark.parametrize("name", CASES)
def test_equals_eager_through_the_reference_model(name, judged):
    results, valid = judged[name]
    assert valid
    check(results, eager(name))


def test_every_rule_is_in_the_table():
    """A rule without a row here is a claim that nobody checks."""
    used = set()
    for name in CASES:
        program, _, _ = exported(name)
        used.update(n.target for n in program.graph.nodes if n.op == "call_function")
    assert {str(op) for op in RULES if op not in used} == set()

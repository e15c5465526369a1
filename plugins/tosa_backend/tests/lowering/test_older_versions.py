"""Programs for TOSA 0.80 compute or refuse what that version lacks."""

from __future__ import annotations

import delegraph
import pytest
import torch
from delegraph_tosa import read
from delegraph_tosa.ir.operators import (
    AVG_POOL2D,
    COND_IF,
    CONV2D,
    DEPTHWISE_CONV2D,
    RESCALE,
)
from torch import nn

MI = "TOSA-0.80+MI"
NEW = "TOSA-1.0+FP+INT"


class Call(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def lower(module, *inputs, spec=MI):
    return delegraph.lower(
        module.eval(), inputs, backends=["tosa"], options={"tosa": {"spec": spec}}
    )


def graph_of(lowered):
    (delegate,) = lowered.delegates
    return read(bytes(delegate.processed_bytes))


@pytest.mark.parametrize(
    ("largest", "error"), [(1, 1e-7), (12_000, 2e-7), (100_000, 1e-6)]
)
@pytest.mark.parametrize("function", [torch.sin, torch.cos])
def test_sine_and_cosine_are_accurate_within_a_bound(function, largest, error):
    x = (torch.rand(4096, generator=torch.Generator().manual_seed(0)) * 2 - 1) * largest
    lowered = lower(Call(function), x)
    assert lowered.host_operators == 0
    assert (lowered(x).double() - function(x.double())).abs().max() < error


def test_sine_and_cosine_of_special_values_equal_torch():
    x = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-40, -1e-40])
    found = lower(Call(lambda x: (torch.sin(x), torch.cos(x))), x)(x)
    torch.testing.assert_close(
        found, (torch.sin(x), torch.cos(x)), rtol=0, atol=1e-45, equal_nan=True
    )
    assert torch.equal(found[0].signbit()[:2], x.signbit()[:2])


def test_sines_of_constants_fold():
    """TOSA 0.80 lacks SIN, but a constant sine is computed while lowering."""
    angles = torch.arange(8.0)
    lowered = lower(Call(lambda x: x * torch.sin(angles)), torch.ones(8))
    assert [op.name for op in graph_of(lowered).operators] == ["MUL"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_convolutions_of_short_floats_round_only_their_results(dtype):
    torch.manual_seed(0)
    x = torch.randn(1, 3, 8, 8).to(dtype)
    layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ConvTranspose2d(8, 4, 3))
    lowered = lower(layers.to(dtype), x)
    assert lowered.host_operators == 0
    convolution = next(
        op for op in graph_of(lowered).operators if isinstance(op, CONV2D)
    )
    assert str(convolution.weight.dtype) == (
        "bf16" if dtype is torch.bfloat16 else "fp16"
    )
    assert str(convolution.outputs[0].dtype) == "fp32"
    expected = x
    # Eager kernels of short floats round more often on some processors.
    for layer in layers.double():
        expected = layer(expected.double()).to(dtype)
    torch.testing.assert_close(
        lowered(x),
        expected,
        rtol=2**-8 if dtype is torch.bfloat16 else 2**-11,
        atol=1e-3,
    )


@pytest.mark.parametrize("function", [torch.fmax, torch.fmin])
def test_fmax_and_fmin_ignore_nan(function):
    left = torch.tensor([1.0, torch.nan, 3.0, torch.nan])
    right = torch.tensor([torch.nan, 2.0, 4.0, torch.nan])
    lowered = lower(Call(function), left, right)
    assert lowered.host_operators == 0
    torch.testing.assert_close(
        lowered(left, right), function(left, right), equal_nan=True
    )


def test_branches_need_no_extension_in_0_80():
    def chosen(p, x):
        return torch.cond(p, lambda x: x + 1, lambda x: x * 2, (x,))

    p = torch.tensor(True)
    x = torch.ones(3)
    lowered = lower(Call(chosen), p, x)
    assert lowered.host_operators == 0, lowered.report
    assert any(isinstance(op, COND_IF) for op in graph_of(lowered).operators)
    assert torch.equal(lowered(torch.tensor(False), x), x * 2)


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        self.count.add_(1)
        return x + self.count


X = torch.ones(2, 3)


def test_dynamic_sizes_are_refused_for_0_80():
    rows = torch.export.Dim("rows")
    program = torch.export.export(
        Call(torch.relu), (X,), dynamic_shapes=(({0: rows},),)
    )

    lowered = delegraph.lower(
        program, backends=["tosa"], options={"tosa": {"spec": MI}}
    )

    assert "dynamic shape" in lowered.report.refusals[0].reason


def test_floats_are_refused_for_the_base_inference_profile():
    report = lower(Call(torch.relu), X, spec="TOSA-0.80+BI").report

    assert "needs MI; the target is TOSA-0.80+BI" in report.refusals[0].reason
    assert "quantize the model (delegraph.quantize" in str(report)


def test_programs_that_write_a_buffer_run_for_0_80():
    """TOSA 0.80 lacks variables, so the buffer is an input and output of the delegate."""
    assert lower(Counter(), X)(X).tolist() == (X + 1).tolist()


def test_quantized_mean_over_an_image_has_stride_1_in_0_80():
    """Vela 4.2 refuses the convolution that computes the mean if its stride is larger."""
    x = torch.randn(1, 4, 9, 7)
    module = nn.Sequential(nn.Conv2d(4, 4, 1), nn.AdaptiveAvgPool2d(1)).eval()
    program = delegraph.quantize(module, [(x,)], backend="tosa")

    def lowered_and_stride(spec):
        lowered = delegraph.lower(
            program, backends=["tosa"], options={"tosa": {"spec": spec}}
        )
        (pool,) = (
            op
            for op in graph_of(lowered).operators
            if isinstance(op, DEPTHWISE_CONV2D | AVG_POOL2D)
        )
        return lowered, pool.stride

    older, older_stride = lowered_and_stride("TOSA-0.80+BI")
    newer, newer_stride = lowered_and_stride("TOSA-1.0+INT")

    assert older_stride == (1, 1)
    assert newer_stride == (9, 7)
    assert torch.equal(older(x), newer(x))


def test_uint8_inputs_are_declared_by_rescale():
    class Pixels(nn.Module):
        def forward(self, image):
            return image.flip(-1).float() * 2

    image = torch.arange(0, 256, 51, dtype=torch.uint8)
    lowered = lower(Pixels(), image)
    assert lowered.host_operators == 0, lowered.report
    assert any(
        isinstance(op, RESCALE) and op.input_unsigned
        for op in graph_of(lowered).operators
    )
    assert torch.equal(lowered(image), Pixels()(image))

"""Layers of quantized values whose scales ONNX Runtime's kernels do not look at."""

import sys

import delegraph
import pytest
import torch
import torch.ao.quantization.fx._decomposed  # the operators quantized_decomposed
from delegraph_onnx.plugin import package_of
from delegraph_programs import constant_tensor, placeholders
from torch import nn

pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")
needs_qnn = pytest.mark.skipif(
    not package_of("qnn") or sys.platform != "linux",
    reason="pip install onnxruntime-qnn",
)
QUANTIZED = torch.ops.quantized_decomposed
INT8 = (-128, 127, torch.int8)
INT16 = (-32767, 32767, torch.int16)
INT32 = (-(2**31), 2**31 - 1, torch.int32)
STEP_OF_INPUT = 0.5
STEP_OF_WEIGHT = 0.01
STEP_OF_RESULT = 0.2313  # no sum is in the middle between two steps


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def check_equal(function, x):
    """Check that ONNX Runtime computes all of a function, and what eager computes."""
    lowered = delegraph.lower(Function(function).eval(), (x,), backends=["onnx"])
    assert lowered.host_operators == 0, lowered.report
    torch.testing.assert_close(lowered(x), function(x), rtol=1e-5, atol=1e-5)


def quantized(x, step, zero_point=0):
    x = QUANTIZED.quantize_per_tensor(x, step, zero_point, *INT8)
    return QUANTIZED.dequantize_per_tensor(x, step, zero_point, *INT8)


SCALES = STEP_OF_WEIGHT * torch.arange(1.0, 5)
ZEROS = torch.zeros(4, dtype=torch.int64)


def by_axis(integers, axis):
    """Return a weight with another scale for each index of an axis."""
    return QUANTIZED.dequantize_per_channel(integers, SCALES, ZEROS, axis, *INT8)


def integers_of(*sizes):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(-100, 100, sizes, generator=generator, dtype=torch.int8)


@pytest.mark.parametrize("axis", [0, 1])
def test_scales_of_a_convolution_belong_to_either_dimension(axis):
    weight = integers_of(4, 4, 1, 1)

    def function(x):
        y = nn.functional.conv2d(quantized(x, STEP_OF_INPUT), by_axis(weight, axis))
        return quantized(y, STEP_OF_RESULT)

    check_equal(function, torch.arange(-8.0, 8).reshape(1, 4, 2, 2))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("with_bias", [False, True])
def test_scales_of_a_linear_layer_belong_to_either_dimension(axis, rank, with_bias):
    weight = integers_of(4, 4)
    bias = torch.tensor([400, -300, 20, 7], dtype=torch.int32)
    step = STEP_OF_INPUT * STEP_OF_WEIGHT

    def function(x):
        b = QUANTIZED.dequantize_per_tensor(bias, step, 0, *INT32)
        w = by_axis(weight, axis)
        y = nn.functional.linear(
            quantized(x, STEP_OF_INPUT), w, b if with_bias else None
        )
        return quantized(y, STEP_OF_RESULT)

    sizes = (2, 4) if rank == 2 else (1, 2, 4)
    check_equal(function, torch.arange(-4.0, 4).reshape(sizes))


def test_computed_scales_of_the_wrong_dimension_are_the_hosts():
    weight = integers_of(4, 4)

    def function(x, scales):
        w = QUANTIZED.dequantize_per_channel(weight, scales, ZEROS, 1, *INT8)
        return quantized(
            nn.functional.linear(quantized(x, STEP_OF_INPUT), w), STEP_OF_RESULT
        )

    x = torch.arange(-4.0, 4).reshape(2, 4)
    lowered = delegraph.lower(Function(function).eval(), (x, SCALES), backends=["onnx"])
    assert "scales of the weight belong to" in str(lowered.report)
    torch.testing.assert_close(lowered(x, SCALES), function(x, SCALES))


@pytest.mark.parametrize("axis", [0, 1])
def test_scales_of_a_matrix_belong_to_either_dimension(axis):
    weight = integers_of(4, 4)

    def function(x):
        product = quantized(x, STEP_OF_INPUT) @ by_axis(weight, axis)
        return quantized(product, STEP_OF_RESULT)

    check_equal(function, torch.arange(-4.0, 4).reshape(2, 4))


@pytest.mark.parametrize("axis", [0, 1])
def test_scales_of_a_first_matrix_belong_to_either_dimension(axis):
    weight = integers_of(4, 4)

    def function(x):
        product = by_axis(weight, axis) @ quantized(x, STEP_OF_INPUT)
        return quantized(product, STEP_OF_RESULT)

    check_equal(function, torch.arange(-4.0, 4).reshape(4, 2))


@pytest.mark.parametrize("axis", [0, 1])
def test_values_with_scales_by_channel_are_multiplied(axis):
    weight = integers_of(4, 4)
    steps = torch.tensor([0.5, 0.25, 1.0, 0.125])
    zeros = torch.tensor([0, 3, -5, 1])

    def function(x):
        x = QUANTIZED.quantize_per_channel(x, steps, zeros, axis, *INT8)
        x = QUANTIZED.dequantize_per_channel(x, steps, zeros, axis, *INT8)
        w = QUANTIZED.dequantize_per_tensor(weight, STEP_OF_WEIGHT, 0, *INT8)
        return quantized(x @ w, STEP_OF_RESULT)

    check_equal(function, torch.arange(-8.0, 8).reshape(4, 4))


@pytest.mark.parametrize("layer", ["linear", "conv"])
def test_a_bias_of_int32_keeps_its_zero_point(layer):
    weight = integers_of(2, 3)
    bias = torch.tensor([4000, -3000], dtype=torch.int32)
    step = STEP_OF_INPUT * STEP_OF_WEIGHT

    def function(x):
        x = quantized(x, STEP_OF_INPUT)
        w = QUANTIZED.dequantize_per_tensor(weight, STEP_OF_WEIGHT, 0, *INT8)
        b = QUANTIZED.dequantize_per_tensor(bias, step, 2500, *INT32)
        if layer == "linear":
            y = nn.functional.linear(x, w, b)
        else:
            y = nn.functional.conv1d(x[..., None], w[..., None], b)
        return quantized(y, STEP_OF_RESULT)

    check_equal(function, torch.tensor([[3.0, -4.5, 1.0]]))


@pytest.mark.parametrize(("alpha", "beta"), [(2, 1), (1, 3), (0.5, 2)])
def test_factors_of_a_product_and_its_bias_are_kept(alpha, beta):
    weight = integers_of(3, 2)
    bias = torch.tensor([4000, -3000], dtype=torch.int32)
    step = STEP_OF_INPUT * STEP_OF_WEIGHT

    def function(x):
        w = QUANTIZED.dequantize_per_tensor(weight, STEP_OF_WEIGHT, 0, *INT8)
        b = QUANTIZED.dequantize_per_tensor(bias, step, 0, *INT32)
        y = torch.addmm(b, quantized(x, STEP_OF_INPUT), w, alpha=alpha, beta=beta)
        return quantized(y, STEP_OF_RESULT)

    check_equal(function, torch.tensor([[3.0, -4.5, 1.0]]))


def test_a_bias_with_rows_is_added():
    weight = integers_of(3, 2)
    bias = torch.tensor([[4000, -3000]], dtype=torch.int32)

    def function(x):
        w = QUANTIZED.dequantize_per_tensor(weight, STEP_OF_WEIGHT, 0, *INT8)
        b = QUANTIZED.dequantize_per_tensor(bias, 0.001, 0, *INT32)
        return quantized(quantized(x, STEP_OF_INPUT) @ w + b, STEP_OF_RESULT)

    check_equal(function, torch.tensor([[3.0, -4.5, 1.0], [0.5, 7.0, -2.0]]))


FLOAT_LAYERS = {
    "conv": lambda x, w: nn.functional.conv1d(x, w[..., None]),
    "transposed": lambda x, w: nn.functional.conv_transpose1d(x, w[..., None]),
    "linear": lambda x, w: nn.functional.linear(x, w),
    "linear with bias": lambda x, w: nn.functional.linear(x, w, w[0]),
    "tokens": lambda x, w: nn.functional.linear(x, w, w[0]),
    "product": lambda x, w: x @ w + w[0],
    "activation": lambda x, w: torch.relu(nn.functional.linear(x, w)),
}


@pytest.mark.parametrize("layer", FLOAT_LAYERS)
def test_float_weights_that_multiply_quantized_values_stay_floats(layer):
    """A large element would make the steps of a quantized weight wide."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(4, 4, generator=generator)
    weight[0, 0] = 50.0
    x = torch.randn(4, 4, generator=generator)
    x[:, 0] = 0  # products with the large element would leave the result's range
    if layer in ("conv", "transposed"):
        x = x[..., None]
    elif layer == "tokens":
        x = x[None]

    def function(x):
        return quantized(FLOAT_LAYERS[layer](quantized(x, 0.05), weight), 0.03)

    check_equal(function, x)


def test_a_large_transposed_weight_is_not_quantized():
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(160, 160, generator=generator)
    weight[:, 0] = 50.0
    x = torch.randn(1, 2, 160, generator=generator)
    x[..., 0] = 0

    def function(x):
        y = nn.functional.linear(quantized(x, 0.05), weight, weight[1])
        return quantized(y, 2.0)

    check_equal(function, x)


class Following(torch.fx.Interpreter):
    """Runs a program whose dequantized values are replaced by those of a delegate."""

    def __init__(self, program, observed):
        super().__init__(program.graph_module)
        calls = [n for n in program.graph.nodes if n.op == "call_function"]
        self.observed = {calls[number]: v for number, [v] in observed.items()}
        self.steps = {}

    def run_node(self, node):
        value = super().run_node(node)
        if node.target is not QUANTIZED.dequantize_per_tensor.default:
            return value
        if node not in self.observed:
            return value
        found = self.observed[node]
        self.steps[node] = ((value - found).abs().max() / node.args[1]).item()
        return found


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 4 * channels, 1),
            nn.ReLU6(),
            nn.Conv2d(4 * channels, 4 * channels, 3, padding=1, groups=4 * channels),
            nn.ReLU6(),
            nn.Conv2d(4 * channels, channels, 1),
        )

    def forward(self, x):
        return x + self.layers(x)


def test_each_quantized_value_is_within_a_step_of_that_of_its_operands():
    """Over many layers, roundings of values between two steps add up."""
    from delegraph_onnx.runtime import OnnxRuntime

    torch.manual_seed(0)
    model = nn.Sequential(*(Residual(4) for _ in range(6)))
    batches = [(torch.randn(1, 4, 12, 12),) for _ in range(4)]
    program = delegraph.quantize(model.eval(), batches, backend="onnx")
    [delegate] = delegraph.lower(program, backends=["onnx"]).delegates
    part = delegate.module.original_module
    call = OnnxRuntime.observe(bytes(delegate.blob), [], {})
    _, observed = call(*batches[0])
    run = Following(part, observed)
    constants = [constant_tensor(part, spec) for _, spec in placeholders(part)[:-1]]
    run.run(*constants, *batches[0])
    assert len(run.steps) >= 24 and max(run.steps.values()) < 1.01


class Repeated(nn.Module):
    """A layer that is called three times, each time with another scale."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        for factor in (0.1, 10.0):
            x = torch.tanh(self.layer(x)) * factor
        return self.layer(x)


def repeated(kind):
    torch.manual_seed(0)
    if kind == "linear":
        return Repeated(nn.Linear(8, 8)), (2, 3, 8)
    layers = {
        "conv": nn.Conv2d(4, 4, 3, padding=1),
        "transposed": nn.ConvTranspose2d(4, 4, 3, padding=1),
    }
    return Repeated(layers[kind]), (1, 4, 6, 6)


@needs_qnn
@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("kind", ["linear", "conv", "transposed"])
def test_calls_of_a_shared_layer_are_right_on_an_npu(kind, bits):
    from delegraph_tosa.quantizer import Precision, TOSAQuantizer

    model, sizes = repeated(kind)
    with torch.no_grad():
        model.layer.bias.mul_(20)
    batches = [(torch.randn(sizes),) for _ in range(4)]
    quantizer = TOSAQuantizer(Precision({8: torch.int8, 16: torch.int16}[bits]))
    program = delegraph.quantize(model.eval(), batches, quantizer=quantizer)
    options = {"onnx": {"ep": "qnn", "soc": "SM8750"}}
    lowered = delegraph.lower(program, backends=["onnx"], options=options)
    assert lowered.delegates[0].facts["on ONNX Runtime's CPU"] == "nothing"
    error = lowered.verify(*batches[0]).relative_error
    assert error < {8: 0.02, 16: 0.002}[bits]


def check_on_npu(function, x, step):
    """Check that an NPU computes all of a function, within a step of eager."""
    options = {"onnx": {"ep": "qnn", "soc": "SM8750"}}
    lowered = delegraph.lower(
        Function(function).eval(), (x,), backends=["onnx"], options=options
    )
    assert lowered.host_operators == 0, lowered.report
    assert (lowered(x) - function(x)).abs().max() < 1.01 * step
    return lowered.delegates


@needs_qnn
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("with_bias", [False, True])
def test_channels_of_a_transposed_convolution_have_scales_on_an_npu(groups, with_bias):
    """With groups, a weight has scales for the channels of one group only."""
    weight = integers_of(4, 4 // groups, 3, 3)
    scales = SCALES[: 4 // groups]
    zeros = ZEROS[: 4 // groups]
    bias = torch.tensor([300, -200, 100, 50], dtype=torch.int32)

    def function(x):
        w = QUANTIZED.dequantize_per_channel(weight, scales, zeros, 1, *INT8)
        b = QUANTIZED.dequantize_per_tensor(bias, 0.01, 0, *INT32)
        b = b if with_bias else None
        y = nn.functional.conv_transpose2d(quantized(x, 0.05), w, b, groups=groups)
        return quantized(y, STEP_OF_RESULT)

    x = torch.randn(1, 4, 5, 5, generator=torch.Generator().manual_seed(0))
    [delegate] = check_on_npu(function, x, STEP_OF_RESULT)
    assert delegate.facts["on ONNX Runtime's CPU"] == "nothing"


class Heads(nn.Module):
    """A token that is expanded to the batch, and a transpose of five dimensions."""

    def __init__(self, count):
        super().__init__()
        self.count = count
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.qkv = nn.Linear(8, 24)
        self.out = nn.Linear(8, 8)

    def forward(self, x):
        tokens = torch.cat([self.token.expand(len(x), self.count, 8), x], 1)
        parts = self.qkv(tokens).reshape(len(x), -1, 3, 2, 4).permute(2, 0, 3, 1, 4)
        mixed = parts[0] * parts[1] + parts[2]
        return self.out(mixed.transpose(1, 2).reshape(len(x), -1, 8))


def for_snapdragon(model, batches):
    """Return a model with activations of 16 bits, lowered for a Snapdragon."""
    from delegraph_tosa.quantizer import Precision, TOSAQuantizer

    quantizer = TOSAQuantizer(Precision(torch.int16))
    program = delegraph.quantize(model.eval(), batches, quantizer=quantizer)
    options = {"onnx": {"ep": "qnn", "soc": "SM8750"}}
    return delegraph.lower(program, backends=["onnx"], options=options)


@needs_qnn
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("batch", [1, 2])
def test_attention_of_16_bits_is_whole_on_an_npu(count, batch):
    torch.manual_seed(0)
    batches = [(torch.randn(batch, 5, 8),) for _ in range(3)]
    lowered = for_snapdragon(Heads(count), batches)
    assert lowered.delegates[0].facts["on ONNX Runtime's CPU"] == "nothing"
    assert lowered.verify(*batches[0]).relative_error < 0.002


@needs_qnn
@pytest.mark.parametrize("activation", [nn.ReLU, nn.ReLU6])
def test_activations_of_16_bits_are_whole_on_an_npu(activation):
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 4, 3), activation(), nn.Flatten(), nn.Linear(144, 5)]
    batches = [(3 * torch.randn(1, 3, 8, 8),) for _ in range(3)]
    lowered = for_snapdragon(nn.Sequential(*layers, activation()), batches)
    assert lowered.delegates[0].facts["on ONNX Runtime's CPU"] == "nothing"
    assert lowered.verify(*batches[0]).relative_error < 0.002


LAYERS_OF_16_BITS = {
    "depthwise": lambda: [nn.Conv2d(8, 8, 3, groups=8)],
    "depthwise with activation": lambda: [nn.Conv2d(8, 8, 3, groups=8), nn.ReLU6()],
    "groups": lambda: [nn.Conv2d(8, 8, 3, groups=2), nn.ReLU()],
    "upsampling": lambda: [nn.Upsample(scale_factor=2)],
    "three dimensions": lambda: [nn.Unflatten(1, (2, 4)), nn.Conv3d(2, 4, 3)],
    "transposed": lambda: [nn.ConvTranspose2d(8, 8, 3, groups=2), nn.ReLU()],
}


@needs_qnn
@pytest.mark.parametrize("name", LAYERS_OF_16_BITS)
def test_layers_of_16_bits_are_whole_on_an_npu(name):
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3), *LAYERS_OF_16_BITS[name]()]
    batches = [(torch.randn(1, 3, 9, 9),) for _ in range(3)]
    lowered = for_snapdragon(nn.Sequential(*layers), batches)
    assert lowered.host_operators == 0, lowered.report
    assert lowered.delegates[0].facts["on ONNX Runtime's CPU"] == "nothing"
    assert lowered.verify(*batches[0]).relative_error < 0.002


def quantized_to_16_bits(x, step):
    x = QUANTIZED.quantize_per_tensor(x, step, 0, *INT16)
    return QUANTIZED.dequantize_per_tensor(x, step, 0, *INT16)


@needs_qnn
def test_a_clip_of_16_bits_keeps_its_upper_bound_on_an_npu():
    """The integers reach further than the bound."""
    weight = integers_of(4, 3, 1, 1)

    def function(x):
        w = QUANTIZED.dequantize_per_tensor(weight, STEP_OF_WEIGHT, 0, *INT8)
        y = nn.functional.conv2d(quantized_to_16_bits(x, 0.001), w)
        return quantized_to_16_bits(nn.functional.hardtanh(y, 0.0, 1.0), 0.001)

    x = torch.randn(1, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    check_on_npu(function, x, 0.001)

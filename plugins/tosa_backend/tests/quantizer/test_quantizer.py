"""TOSAQuantizer quantizes operators such that the integer rules lower all of them."""

from __future__ import annotations

import math

import delegraph
import pytest
import torch
import torch.nn.functional as F
from delegraph.errors import OptionError
from delegraph_tosa.ir.types import DType
from delegraph_tosa.serialize import read
from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore")
aten = torch.ops.aten
INT = {"tosa": {"spec": "TOSA-1.0+INT"}}
BORDERS = {
    f"quantized_decomposed.{name}_per_tensor.default"
    for name in ("quantize", "dequantize")
}


def quantizer(*args, **kwargs):
    from delegraph_tosa.quantizer import TOSAQuantizer

    return TOSAQuantizer(*args, **kwargs)


def precision(**settings):
    from delegraph_tosa.quantizer import Precision

    return Precision(**settings)


class Net(nn.Module):
    """A network with layers, activations, concatenation, pooling and softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.other = nn.Conv2d(3, 4, 1)
        self.line = nn.Linear(8, 5)

    def forward(self, x):
        a = F.relu(self.norm(self.conv(x)), inplace=True)
        b = F.hardtanh(a + self.other(x), -1.0, 1.0)
        c = torch.cat([F.max_pool2d(a, 2), F.max_pool2d(b, 2)], 1)
        first, second = c.mean((2, 3)).chunk(2, 1)
        return self.line(torch.cat([F.silu(first) * 2, second], 1)).softmax(-1)


def make_net():
    torch.manual_seed(0)
    return Net().eval()


def batches(count=3):
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(2, 3, 8, 8, generator=generator),) for _ in range(count)]


@pytest.fixture(scope="module")
def program():
    return delegraph.quantize(make_net(), batches())


def calls_of(program, name):
    return [
        node
        for node in program.graph.nodes
        if node.op == "call_function" and name in str(node.target)
    ]


def scale_and_zero_point_of(node):
    """(scale, zero point) that a result is quantized to, or None."""
    (user,) = node.users
    return user.args[1:3] if "quantize_per_tensor" in str(user.target) else None


def test_activations_and_batch_norms_fuse_with_the_preceding_layer(program):
    assert not calls_of(program, "batch_norm")
    (relu,) = calls_of(program, "relu")
    (hardtanh,) = calls_of(program, "hardtanh")
    assert "conv2d" in str(relu.args[0].target)
    assert "add" in str(hardtanh.args[0].target)


def test_operators_that_move_values_keep_their_quantization(program):
    for pool in calls_of(program, "max_pool2d"):
        assert scale_and_zero_point_of(pool) == pool.args[0].args[1:3]


def test_consecutive_functions_of_one_value_are_not_quantized_between(program):
    """They become one table."""
    (silu,) = calls_of(program, "silu")
    assert "mul" in str(next(iter(silu.users)).target)


def test_softmax_is_quantized_from_0_to_1(program):
    (softmax,) = calls_of(program, "softmax")
    assert scale_and_zero_point_of(softmax) == (1 / 256, -128)


class Tables(nn.Module):
    """A copied function of x, and a function that is NaN below 1."""

    def forward(self, x):
        return (x * x).clone(), torch.acosh(x)


def test_copies_and_nan_in_tables_equal_the_quantized_graph():
    x = torch.linspace(1, 4, 64)[None]
    program = delegraph.quantize(Tables(), [(x,)])
    lowered = delegraph.lower(program, options=INT)
    with torch.no_grad():
        found = lowered(x - 2)
        expected = program.module(check_guards=False)(x - 2)
    for ours, theirs, node in zip(
        found, expected, program.graph.output_node().args[0], strict=True
    ):
        assert ((ours - theirs) / node.args[1]).abs().max() <= 1.01


def test_averages_of_one_sided_values_keep_their_quantization():
    class Averages(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Conv2d(3, 3, 1)
            self.line = nn.Linear(3, 2)

        def forward(self, x):
            x = F.silu(x)
            x = x * self.gate(F.adaptive_avg_pool2d(x, 1))
            return self.line(F.silu(x).mean((2, 3))) + self.line(x.relu().mean((2, 3)))

    program = delegraph.quantize(Averages(), batches())
    (gate,) = calls_of(program, "adaptive_avg_pool2d")
    lopsided, positive = calls_of(program, "mean.dim")
    assert scale_and_zero_point_of(gate) == gate.args[0].args[1:3]
    assert scale_and_zero_point_of(positive) == positive.args[0].args[1:3]
    assert scale_and_zero_point_of(lopsided) != lopsided.args[0].args[1:3]
    made = read(
        bytes(delegraph.lower(program, options=INT).delegates[0].processed_bytes)
    ).operators
    assert [op.name for op in made].count("AVG_POOL2D") == 2


def test_file_of_a_quantized_program_has_no_floats(program):
    lowered = delegraph.lower(program, options=INT)
    (delegate,) = lowered.delegates
    left = {refusal.operator for refusal in lowered.report.refusals}
    assert all("quantize_per_tensor" in name for name in left), (
        "only the border stays on the host"
    )
    made = read(bytes(delegate.processed_bytes)).operators
    assert all(
        value.dtype not in (DType.FP32, DType.FP16)
        for op in made
        for value in op.outputs
    )
    (x,) = batches(1)[0]
    with torch.no_grad():
        step = (lowered(x) - program.module(check_guards=False)(x)).abs() * 256
    assert step.max() <= 1.01


def test_biases_are_quantized_to_int32(program):
    bias = calls_of(program, "linear")[0].args[2]
    assert bias.args[6] is torch.int32


@pytest.mark.parametrize(
    ("settings", "low", "high", "per_channel"),
    [({"weight_bits": 4}, -7, 7, True), ({"per_channel": False}, -127, 127, False)],
)
def test_weights_are_quantized_by_the_chosen_settings(settings, low, high, per_channel):
    module = nn.Linear(6, 4).eval()
    quantized = delegraph.quantize(
        module, [torch.randn(2, 6)], quantizer=quantizer(precision(**settings))
    )
    weight = calls_of(quantized, "linear")[0].args[1]
    assert ("per_channel" in str(weight.target)) is per_channel
    assert (
        low,
        high,
    ) == weight.args[-3:-1]
    lowered = delegraph.lower(quantized, options=INT)
    assert len(lowered.delegates) == 1


def test_int16_activations_have_no_zero_point():
    module = nn.Sequential(nn.Linear(6, 4), nn.ReLU()).eval()
    x = torch.randn(3, 6)
    quantized = delegraph.quantize(
        module, [x], quantizer=quantizer(precision(activations=torch.int16))
    )
    lowered = delegraph.lower(
        quantized, options={"tosa": {"spec": "TOSA-1.0+INT+INT16"}}
    )
    assert len(lowered.delegates) == 1
    with torch.no_grad():
        # weights have 8 bits
        torch.testing.assert_close(lowered(x), module(x), rtol=0, atol=0.02)
    assert {n.args[2] for n in calls_of(quantized, ".quantize_per_tensor")} == {0}


class Computed(nn.Module):
    """Weights and biases that other layers compute."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Linear(5, 6 * 4 * 9)
        self.shift = nn.Linear(5, 6)
        self.own = nn.Parameter(torch.linspace(-1, 1, 24).reshape(6, 4))

    def forward(self, x, z):
        shift = self.shift(z)[0]
        y = F.conv2d(x, self.kernel(z).reshape(6, 4, 3, 3), shift).mean((2, 3))
        return F.linear(y, y, self.own[0, :2]), F.linear(
            x.mean((2, 3)), self.own, shift
        )


@pytest.mark.parametrize("activations", [torch.int8, torch.int16], ids=str)
def test_computed_weights_are_quantized_per_tensor(activations):
    torch.manual_seed(0)
    inputs = torch.randn(2, 4, 7, 7), torch.randn(1, 5)
    quantized = delegraph.quantize(
        Computed().eval(),
        [inputs],
        quantizer=quantizer(precision(activations=activations)),
    )
    assert not any(
        "quantize_per_channel" in str(n.args[0].target)
        for n in calls_of(quantized, "dequantize_per_channel")
    )
    lowered = delegraph.lower(
        quantized, options={"tosa": {"spec": "TOSA-1.0+INT+int16"}}
    )
    assert {refusal.operator for refusal in lowered.report.refusals} <= BORDERS
    scales = [n.args[1] for n in calls_of(quantized, "dequantize")[-2:]]
    for mine, theirs, scale in zip(
        lowered(*inputs),
        quantized.module(check_guards=False)(*inputs),
        scales,
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1.01 * scale)


class Added(nn.Module):
    """Adds 200 numbers near 1 to one element."""

    def forward(self, x, y):
        return x.index_put((torch.zeros(200, dtype=torch.int64),), y, accumulate=True)


def test_accumulating_index_put_gets_its_own_scale():
    program = delegraph.quantize(
        Added().eval(), [(torch.linspace(0, 1, 8), torch.linspace(0.9, 1, 200))]
    )
    (put,) = calls_of(program, "index_put")
    scale, _ = scale_and_zero_point_of(put)
    assert scale > 100 * put.args[2].args[1]


def test_functions_of_scaled_values_become_one_table():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.line = nn.Linear(8, 8)

        def forward(self, x):
            return F.gelu(self.line(x) * 2), torch.tanh(x * 2 + 1)

    quantized = delegraph.quantize(Scaled().eval(), [torch.randn(3, 8)])
    (gelu,) = calls_of(quantized, "gelu")
    (tanh,) = calls_of(quantized, "tanh")
    assert "dequantize" in str(gelu.args[0].target)  # quantized after the product
    assert "add" in str(tanh.args[0].target)  # not quantized in between


class Attention(nn.Module):
    """Attention with a ``mask``, or, if ``hide`` is given, spelled out: ``hide`` masks the
    scores by the booleans ``seen``.
    """

    def __init__(self, hide=None, mask=None):
        super().__init__()
        self.hide = hide
        self.register_buffer("mask", mask)

    def forward(self, x, seen):
        if self.hide is None:
            return F.scaled_dot_product_attention(
                x, x, x, seen if self.mask is None else self.mask
            )
        return self.hide(x @ x.transpose(-2, -1) / 4, seen).softmax(-1) @ x


LOWEST = torch.finfo(torch.float32).min
FUTURE = torch.ones(4, 4).tril().log()


@pytest.mark.parametrize(
    "module",
    [
        Attention(),
        Attention(mask=FUTURE),
        Attention(mask=FUTURE.clamp_min(LOWEST)),
        Attention(lambda scores, seen: scores.masked_fill(~seen, -math.inf)),
        Attention(lambda scores, seen: scores + torch.where(seen, 0.0, LOWEST)),
        Attention(lambda scores, seen: scores + FUTURE),
        Attention(
            lambda scores, seen: (
                scores + torch.zeros(4, 4).masked_fill_(~seen, -math.inf)
            )
        ),
    ],
    ids=["truth", "infinity", "lowest", "filled", "chosen", "added", "written"],
)
@pytest.mark.parametrize("activations", [torch.int8, torch.int16], ids=str)
def test_masks_do_not_widen_the_scale_of_attention(module, activations):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(2, 4, 8, generator=generator), torch.ones(4, 4).tril().bool()
    quantized = delegraph.quantize(
        module.eval(), [inputs], quantizer=quantizer(precision(activations=activations))
    )
    scales = [n.args[1] for n in calls_of(quantized, "quantize_per_tensor")]
    assert 0 < max(scales) < 0.1
    lowered = delegraph.lower(
        quantized, options={"tosa": {"spec": "TOSA-1.0+INT+int16"}}
    )
    assert {refusal.operator for refusal in lowered.report.refusals} <= BORDERS
    expected = quantized.module(check_guards=False)(*inputs)
    torch.testing.assert_close(
        lowered(*inputs),
        expected,
        rtol=0,
        atol=1.01 * calls_of(quantized, "dequantize")[-1].args[1],
    )


@pytest.mark.parametrize(
    ("change", "floats"),
    [
        (lambda q: q.set_module_name("line", None), "linear"),
        (lambda q: q.set_module_type(nn.Conv2d, None), "conv2d"),
        (lambda q: q.set_operator_type(aten.linear.default, None), "linear"),
        (lambda q: q.set_global(None).set_module_name("conv", precision()), "linear"),
    ],
    ids=["name", "type", "operator", "all but one"],
)
def test_settings_keep_chosen_operators_in_floats(change, floats):
    quantized = delegraph.quantize(
        make_net(), batches(1), quantizer=change(quantizer())
    )
    for call in calls_of(quantized, floats)[-1:]:
        assert "dequantize" not in str(call.args[1].target), "its weight is in floats"
    assert calls_of(quantized, "dequantize_per_channel")


def test_setting_of_a_module_name_overrides_that_of_its_type():
    chosen = (
        quantizer()
        .set_module_type(nn.Conv2d, None)
        .set_module_name("other", precision(weight_bits=4))
    )
    quantized = delegraph.quantize(make_net(), batches(1), quantizer=chosen)
    first, second = calls_of(quantized, "conv2d")
    assert "dequantize" not in str(first.args[1].target)
    assert second.args[1].args[-2] == 7


def test_inputs_and_outputs_may_stay_floats():
    module = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4), nn.Linear(4, 3)).eval()
    quantized = delegraph.quantize(
        module,
        [torch.randn(2, 6)],
        quantizer=quantizer().set_io(inputs=False, outputs=False),
    )
    is_quantized = [
        "dequantize" in str(linear.args[1].target)
        for linear in calls_of(quantized, "linear")
    ]
    assert is_quantized == [False, True, False]


@pytest.mark.slow  # torchao exports a dozen patterns of convolutions first: 20 s
def test_training_with_quantization_takes_a_step_and_is_lowered():
    from torchao.quantization.pt2e import (
        move_exported_model_to_eval,
        move_exported_model_to_train,
    )
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_qat_pt2e

    module, (x,) = make_net().train(), batches(1)[0]
    prepared = prepare_qat_pt2e(
        torch.export.export(module, (x,)).module(check_guards=False),
        quantizer(qat=True),
    )
    move_exported_model_to_train(prepared)
    before = [p.detach().clone() for p in prepared.parameters()]
    optimizer = torch.optim.SGD(prepared.parameters(), 0.1)
    prepared(x).square().sum().backward()
    optimizer.step()
    assert any(
        (a != b).any() for a, b in zip(before, prepared.parameters(), strict=True)
    )
    move_exported_model_to_eval(prepared)
    trained = torch.export.export(convert_pt2e(prepared), (x,))
    (relu,) = calls_of(trained, "relu")
    assert "conv2d" in str(relu.args[0].target), (
        "the batch norm became part of the convolution"
    )
    lowered = delegraph.lower(trained, options=INT)
    assert len(lowered.delegates) == 1
    with torch.no_grad():
        step = (lowered(x) - trained.module(check_guards=False)(x)).abs() * 256
    assert step.max() <= 1.01


def test_missing_module_is_refused():
    with pytest.raises(
        OptionError,
        match=(
            "no call of the program belongs to a module 'lime'; modules like it: line"
        ),
    ):
        delegraph.quantize(
            make_net(), batches(1), quantizer=quantizer().set_module_name("lime", None)
        )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: precision(weight_bits=3), "weight_bits is 4 or 8, not 3"),
        (
            lambda: precision(activations=torch.uint8),
            "activations are torch.int8 or torch.int16",
        ),
        (lambda: precision(observer="best"), "observer is one of minmax, histogram"),
        (lambda: quantizer("int8"), "a setting is a Precision"),
        (
            lambda: quantizer().set_module_type("Linear", None),
            "a class of modules, not 'Linear'",
        ),
        (
            lambda: quantizer().set_operator_type(aten.cumprod.default, None),
            "it stays in floats",
        ),
    ],
)
def test_wrong_settings_are_refused(wrong, message):
    with pytest.raises(OptionError, match=message):
        wrong()


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.sigmoid(x) * x,
        lambda x: F.linear(torch.tanh(x), x),
        lambda x: torch.softmax(x, 1).reshape(6, 4).transpose(0, 1) @ x,
    ],
)
def test_operators_with_fixed_limits_are_quantized_once(function):
    """Quantizing again to other limits would cost time and round a second time."""

    class Function(nn.Module):
        def forward(self, x):
            return function(x)

    program = delegraph.quantize(Function(), [(torch.randn(6, 4),)])
    for quantize in calls_of(program, ".quantize_per_tensor"):
        operand = quantize.args[0]
        if "dequantize" in str(operand.target):
            assert quantize.args[1:3] == operand.args[1:3]  # scale and zero point


def test_values_joined_with_fixed_limits_share_the_union():
    class Joined(nn.Module):
        def forward(self, x):
            return torch.cat((torch.sigmoid(x), x))

    program = delegraph.quantize(Joined(), [(4 * torch.randn(6, 4),)])
    (joined,) = calls_of(program, "cat")
    assert scale_and_zero_point_of(joined)[0] > 1 / 128


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_a_padded_tensor_keeps_its_quantization(mode):
    """Other limits would cost a pass over the tensor."""

    class Padded(nn.Module):
        def forward(self, x):
            return F.relu(F.pad(x.sigmoid() * x, (3, 0, 0, 2), mode))

    quantized = delegraph.quantize(
        Padded().eval(), [torch.randn(1, 2, 6, 6)], quantizer=quantizer()
    )
    pads = [node for node in quantized.graph.nodes if "pad" in str(node.target)]
    assert pads
    assert all(next(iter(n.users)).args[1:3] == n.args[0].args[1:3] for n in pads)

"""The backend beside eager PyTorch and OpenVINO's own API: numbers, types, sizes,
refusals, weights, threads.
"""

import subprocess
import sys
import zlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import delegraph
import numpy as np
import openvino as ov
import pytest
import torch
import torch.ao.quantization.fx._decomposed  # the operators quantized_decomposed
from delegraph.backend import CompileSpec
from delegraph.errors import FormatError, InputError, NoRuntime, OptionError
from delegraph.runtime import BlobHeader, Border, fused
from delegraph_engines import saturates, seal, unseal
from delegraph_openvino import support
from delegraph_openvino.frontend import Draft
from delegraph_openvino.runtime import CACHE, MARK, OpenVINORuntime
from torch import nn
from torch.export import Dim
from torch.nn import functional as F


class Function(nn.Module):
    def __init__(self, function, *weights):
        super().__init__()
        self.function = function
        for k, weight in enumerate(weights):
            self.register_buffer(f"w{k}", weight)

    def forward(self, *inputs):
        return self.function(self, *inputs)


def lower(function, *inputs, weights=(), sizes=None, **options):
    module = (
        function if isinstance(function, nn.Module) else Function(function, *weights)
    )
    return delegraph.lower(
        module.eval(),
        inputs,
        backends=["openvino"],
        options={"openvino": options},
        dynamic_shapes=sizes,
    )


def refusal_reasons(lowered):
    return {refusal.operator: refusal.reason for refusal in lowered.report.refusals}


class Small(nn.Module):
    """A convolution, batch norm and a layer: [N,3,8,8] -> [N,5]"""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.out = nn.Linear(8, 5)

    def forward(self, x):
        return self.out(F.relu6(self.norm(self.conv(x))).mean((2, 3)))


IMAGES = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def test_networks_compute_the_results_of_openvinos_api():
    torch.manual_seed(0)
    model = Small().eval()
    lowered = lower(model, IMAGES)
    assert lowered.report.host_operators == 0
    assert len(lowered.delegates) == 1
    own = ov.convert_model(torch.export.export(model, (IMAGES,)))
    expected = ov.Core().compile_model(own, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(
        [IMAGES.numpy()]
    )[0]
    assert (
        np.abs(lowered(IMAGES).detach().numpy() - expected).max()
        <= 1e-6 * np.abs(expected).max()
    )
    assert lowered.verify(IMAGES, per_operator=True).relative_error < 1e-5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_short_floats_keep_their_type(dtype):
    layer = nn.Sequential(nn.Linear(6, 4), nn.ReLU()).to(dtype)
    lowered = lower(layer, torch.randn(3, 6).to(dtype))
    assert lowered(torch.ones(3, 6, dtype=dtype)).dtype is dtype
    assert lowered.verify(torch.randn(3, 6).to(dtype)).agrees()


def test_sizes_vary_and_are_computed():
    def function(module, ids, x):
        table = F.embedding(ids, module.w0)
        return table.mean(1), x.reshape(x.shape[0], -1), ids.shape[0] * 2

    batch = Dim("batch", min=1, max=16)
    sizes = {"inputs": ({0: batch, 1: Dim("length", min=1, max=9)}, {0: batch})}
    ids = torch.randint(0, 10, (4, 5))
    x = torch.randn(4, 2, 3)
    lowered = lower(function, ids, x, weights=[torch.randn(10, 6)], sizes=sizes)
    assert lowered.report.host_operators == 0
    for rows, columns in ((4, 5), (1, 1), (7, 9)):
        given = torch.randint(0, 10, (rows, columns)), torch.randn(rows, 2, 3)
        assert lowered.verify(*given).agrees()
        assert lowered(*given)[2] == 2 * rows


def test_strided_and_unused_inputs_are_accepted():
    def function(module, x, only_shape):
        # the program uses the sizes of the second input, and none of its elements
        return torch.cat([x.transpose(0, 1) * 2, torch.zeros_like(only_shape)])

    lowered = lower(function, torch.randn(3, 3), torch.randn(3, 3))
    transposed = torch.randn(3, 3).t()
    stride_zero = transposed[:, 0].expand(3, 3)
    assert transposed.stride() == (1, 3)
    assert stride_zero.stride()[0] == 0
    assert lowered.verify(transposed, stride_zero).agrees()
    assert lowered.verify(transposed, transposed).agrees()
    assert lowered.verify(stride_zero, transposed).agrees()


def test_inputs_that_are_views_of_one_tensor_are_accepted():
    x, y = torch.randn(2, 3, 3).unbind()
    lowered = lower(lambda m, x, y: x * 2 - y, x, y)
    assert lowered.verify(x, y).agrees()


def test_empty_inputs_are_accepted():
    no_rows = torch.ones(0, 3)
    lowered = lower(lambda m, x: torch.cat([x, x], 1).sum(0), no_rows)
    assert lowered.verify(no_rows).agrees()


@pytest.mark.parametrize(
    "function",
    [lambda m, x: x.clone(), lambda m, x: (x.clone(), x.sin(), x.t().clone(), x[:1])],
)
def test_a_result_may_be_an_input_as_it_is(function):
    """With memory of ours for its results, OpenVINO returned what lay there, and wrote
    to the input.
    """
    x = torch.randn(2, 3)
    lowered = lower(function, x)
    assert lowered.report.host_operators == 0
    for given in (x, x + 1, x[:, :1].expand(2, 3)):
        assert lowered.verify(given).relative_error < 1e-6


def test_results_have_new_memory_and_calls_are_thread_safe():
    lowered = lower(Small(), IMAGES)
    first = lowered(IMAGES)
    again = lowered(IMAGES + 1)
    assert first.data_ptr() != again.data_ptr()
    assert not torch.equal(first, again)
    inputs = [IMAGES * k for k in range(8)]
    expected = [lowered(x) for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        for actual, want in zip(
            pool.map(lowered, inputs * 4), expected * 4, strict=True
        ):
            torch.testing.assert_close(actual, want)


def test_state_stays_with_the_host():
    def count(module, x):
        module.w0 += x
        return module.w0 * 2

    lowered = lower(count, torch.ones(3), weights=[torch.zeros(3)])
    assert [lowered(torch.ones(3))[0].item() for _ in range(2)] == [2, 4]


# --- int8 -----------------------------------------------------------------------------


@pytest.mark.parametrize("has_zero_point", [False, True])
def test_quantized_networks_run_in_integers_and_equal_eager(
    has_zero_point,
):
    torch.manual_seed(0)
    batches = [(torch.randn(2, 3, 8, 8),) for _ in range(4)]
    if not has_zero_point:
        batches = [(x.clamp(-1, 127 / 128),) for (x,) in batches]
    program = delegraph.quantize(Small().eval(), batches, backend="tosa")
    [quantize, *_] = (
        node
        for node in program.graph.nodes
        if "quantize_per_tensor" in str(node.target)
    )
    assert bool(quantize.args[2]) is has_zero_point
    lowered = delegraph.lower(program, backends=["openvino"])
    assert lowered.report.host_operators == 0
    assert len(lowered.delegates) == 1
    assert lowered.verify(*batches[0]).relative_error < 1e-5
    processor = torch.cpu.get_capabilities()
    integers = Counter({True: 2})
    if has_zero_point and processor.get("amx_int8"):
        # On these processors, OpenVINO computes a convolution of an input with a zero
        # point in floats.
        integers = Counter({True: 1, False: 1})
    assert _layers_in_integers(lowered) == (
        Counter({False: 2}) if saturates(processor) else integers
    )
    asked = {"openvino": {"properties": "LP_TRANSFORMS_MODE=YES"}}
    assert (
        _layers_in_integers(
            delegraph.lower(program, backends=["openvino"], options=asked)
        )
        == integers
    )


def _layers_in_integers(lowered):
    """How many of the layers with weights OpenVINO computes in integers, and how many
    not.
    """
    delegate = lowered.delegates[0]
    loaded = OpenVINORuntime.load(
        delegate.processed_bytes, delegate.compile_specs, delegate.module.named_data()
    )
    told = (
        node.get_rt_info()
        for node in loaded.compiled.get_runtime_model().get_ordered_ops()
    )
    layers = [
        t
        for t in told
        if t["layerType"].astype(str) in ("Convolution", "FullyConnected")
    ]
    return Counter(
        t["primitiveType"].astype(str).lower().endswith("_i8") for t in layers
    )


def test_processors_without_vnni_saturate():
    processor = torch.cpu.get_capabilities() | {
        "architecture": "x86_64",
        "avx512_vnni": False,
        "avx_vnni": False,
    }
    assert saturates(processor)
    assert not saturates({**processor, "avx_vnni": True})
    assert not saturates({**processor, "avx512_vnni": True})
    assert not saturates({"architecture": "aarch64"})


@pytest.mark.parametrize("axis", [0, 1])
def test_scales_by_channel_are_along_their_axis(axis):
    quantized = torch.ops.quantized_decomposed
    scales = torch.tensor([0.5, 0.25, 2.0])
    zeros = torch.tensor([0, 3, -2])

    def function(module, x):
        small = quantized.quantize_per_channel(
            x, module.w0, module.w1, axis, -8, 7, torch.int8
        )
        return small, quantized.dequantize_per_channel(
            small, module.w0, module.w1, axis, -8, 7, torch.int8
        )

    x = torch.linspace(-9.1, 9.3, 9).reshape(3, 3)
    lowered = lower(function, x, weights=[scales, zeros])
    assert lowered.report.host_operators == 0
    small, near = lowered(x)
    expected = Function(function, scales, zeros)(x)
    assert torch.equal(small, expected[0])
    assert torch.equal(near, expected[1])


def test_sums_with_dequantized_constants_repeat_equally():
    """OpenVINO wrote it over the constant, as in an LSTM whose first state is
    quantized; the next call added to it.
    """
    quantized = torch.ops.quantized_decomposed
    given = (0.05, 3, -128, 127, torch.int8)

    def added(module, x):
        weight = quantized.dequantize_per_tensor(
            module.w0, 0.01, 0, -127, 127, torch.int8
        )
        state = quantized.dequantize_per_tensor(module.w1, *given)
        first = torch.nn.functional.linear(state, weight)
        second = torch.nn.functional.linear(x, weight)
        small = [
            quantized.quantize_per_tensor(gate, *given) for gate in (first, second)
        ]
        gates = [quantized.dequantize_per_tensor(gate, *given) for gate in small]
        return torch.tanh(gates[0] + gates[1]) * state

    weights = [
        torch.randint(-127, 128, size, dtype=torch.int8) for size in ((16, 16), (1, 16))
    ]
    x = torch.randn(1, 16)
    lowered = lower(added, x, weights=weights)
    expected = Function(added, *weights)(x)
    assert len(lowered.delegates) == 1
    for _ in range(3):
        torch.testing.assert_close(lowered(x), expected, rtol=1e-5, atol=1e-5)


def test_a_dequantized_zero_is_compared_on_the_host():
    """OpenVINO makes one operator of quantize and dequantize, whose 0 is not quite 0:
    it took a mask off Swin.
    """
    quantized = torch.ops.quantized_decomposed

    def function(module, x):
        given = (8 / 255, 0, -128, 127, torch.int8)
        near = quantized.dequantize_per_tensor(
            quantized.quantize_per_tensor(x.sin(), *given), *given
        )
        return torch.where(near != 0, -100.0, x)

    lowered = lower(function, torch.linspace(-0.05, 0.05, 21))
    assert list(refusal_reasons(lowered)) == ["aten.ne.Scalar"]
    assert lowered.verify(torch.linspace(-0.05, 0.05, 21)).relative_error < 1e-6


@pytest.mark.parametrize("other", [0.011, 0.02], ids=["one scale", "two scales"])
def test_quantized_tensors_are_concatenated_as_integers(other):
    """OpenVINO's int8 transformation of a concatenation gave results that were wrong by
    up to 255 steps.
    """
    quantized = torch.ops.quantized_decomposed

    def step(x, scale, zero):
        given = (scale, zero, -128, 127, torch.int8)
        return quantized.dequantize_per_tensor(
            quantized.quantize_per_tensor(x, *given), *given
        )

    def function(module, x):
        weights = [
            quantized.dequantize_per_tensor(w, 0.01, 0, -127, 127, torch.int8)
            for w in (module.w0, module.w1)
        ]
        deeper = step(
            F.relu(F.conv2d(step(x, 0.03, 6), weights[0], padding=1)) * 0.05,
            other,
            -105,
        )
        return step(
            F.relu(F.conv2d(torch.cat([step(x, 0.011, -105), deeper], 1), weights[1])),
            0.03,
            -128,
        )

    torch.manual_seed(0)
    weights = [
        torch.randint(-127, 128, size, dtype=torch.int8)
        for size in ((4, 4, 3, 3), (4, 8, 3, 3))
    ]
    x = torch.randn(1, 4, 8, 8)
    lowered = lower(function, x, weights=weights)
    assert list(refusal_reasons(lowered)) == (
        [] if other == 0.011 else ["aten.cat.default"]
    )
    off = (lowered(x) - Function(function, *weights)(x)).abs() / 0.03
    assert off.max() < 1.5
    assert (off > 0.5).float().mean() < 0.02


@pytest.mark.parametrize("shape", [(1, 3, 4, 4), (2, 3), (5,)], ids=str)
def test_prelu_of_a_dequantized_tensor_stays_in_the_delegate(shape):
    """As a comparison and a product, it would leave a quantized program in pieces."""
    quantized = torch.ops.quantized_decomposed
    slopes = torch.tensor([0.25, -1.0, 0.0] if len(shape) > 1 else [0.25])

    def function(module, x):
        given = (8 / 255, 0, -128, 127, torch.int8)
        near = quantized.dequantize_per_tensor(
            quantized.quantize_per_tensor(x, *given), *given
        )
        return torch.prelu(near, module.w0)

    x = torch.linspace(-3, 3, torch.Size(shape).numel()).reshape(shape)
    lowered = lower(function, x, weights=[slopes])
    assert not refusal_reasons(lowered)
    assert lowered.verify(x).relative_error < 1e-6


def test_prelu_of_nan_and_infinities_equals_eager():
    inf = float("inf")
    x = torch.tensor([[float("nan"), inf, -inf], [-inf, -0.0, 2.0]])
    lowered = lower(
        lambda module, x: torch.prelu(x, module.w0),
        x,
        weights=[torch.tensor([0.25, -1.0, 0.0])],
    )
    assert not refusal_reasons(lowered)
    expected = torch.prelu(x, torch.tensor([0.25, -1.0, 0.0]))
    torch.testing.assert_close(lowered(x), expected, equal_nan=True)


# --- what is refused ------------------------------------------------------------------


def test_refusals_name_the_frontends_error_or_the_loss():
    def function(module, x, wide, ids, few):
        return (
            torch.linalg.cholesky_ex(x)[0],
            wide.sin(),
            ids * 2,
            few > 2**40,
            few.to(torch.int8),
        )

    inputs = (
        torch.eye(2),
        torch.ones(2, dtype=torch.float64),
        torch.tensor([2**40, 2]),
        torch.tensor([1, 200]).int(),
    )
    lowered = lower(function, *inputs)
    said = refusal_reasons(lowered)
    assert (
        said["aten.linalg_cholesky_ex.default"]
        == "OpenVINO's frontend has no rule for this operator"
    )
    assert "torch.float64" in said["aten.sin.default"]
    assert "32 bits" in said["aten.mul.Tensor"]
    assert str(2**40) in said["aten.gt.Scalar"]
    assert "in torch they wrap" in said["aten.to.dtype"]
    assert lowered.verify(*inputs).agrees()


def test_random_operators_are_refused_and_group_norms_decomposed():
    """OpenVINO's compiler ended the process on the whole one."""
    lowered = lower(
        lambda m, x, c: F.group_norm(x, 4) * (1 + c) + 0 * torch.rand_like(x),
        torch.randn(1, 8, 4, 4),
        torch.randn(1, 8, 1, 1),
    )
    assert list(refusal_reasons(lowered)) == ["aten.rand_like.default"]
    assert lowered.verify(torch.randn(1, 8, 4, 4), torch.randn(1, 8, 1, 1)).agrees()


@pytest.mark.parametrize("mask", [None, "bool", "float", "bfloat16"])
def test_attention_returns_zeros_for_hidden_rows(mask):
    """OpenVINO's is NaN there, which a padded text gives on to all that attends to it."""
    dtype = torch.bfloat16 if mask == "bfloat16" else torch.float32
    q = torch.randn(1, 2, 5, 8, dtype=dtype)
    k = torch.randn(1, 2, 7, 8, dtype=dtype)
    seen = torch.rand(5, 7) > 0.3
    seen[3] = False
    hiding = torch.randn(5, 7, dtype=dtype).masked_fill(~seen, -torch.inf)
    given = [] if mask is None else [seen if mask == "bool" else hiding]

    def function(m, q, k, *masks):
        return F.scaled_dot_product_attention(q, k, k, *masks, scale=0.3)

    lowered = lower(function, q, k, *given)
    taken = {
        node.target.__name__
        for delegate in lowered.delegates
        for node in delegate.nodes
    }
    assert taken == {"scaled_dot_product_attention.default"}
    assert not refusal_reasons(lowered)
    near = {"rtol": 0.02, "atol": 0.02} if mask == "bfloat16" else {}
    torch.testing.assert_close(
        lowered(q, k, *given), function(None, q, k, *given), **near
    )


def test_attention_may_be_causal_and_to_nothing():
    """OpenVINO returned what was in memory for attention to nothing."""
    x = torch.rand(1, 2, 8, 8)
    causal = lower(
        lambda m, q: F.scaled_dot_product_attention(q, q, q, is_causal=True, scale=0.2),
        x,
    )
    assert [node.target.__name__ for node in causal.delegates[0].nodes] == [
        "scaled_dot_product_attention.default"
    ]
    assert causal.verify(x).relative_error < 1e-5
    nothing = lower(
        lambda m, q, k: F.scaled_dot_product_attention(q, k, k), x, x[:, :, :0]
    )
    assert not any(
        "scaled_dot" in str(node.target)
        for delegate in nothing.delegates
        for node in delegate.nodes
    )
    assert not nothing(x, x[:, :, :0]).any()


@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, torch.inf])
def test_distances_of_any_norm_are_those_of_eager(p):
    lowered = lower(
        lambda m, x, y: torch.cdist(x, y, p), torch.randn(2, 4, 3), torch.randn(2, 5, 3)
    )
    assert (lowered.report.host_operators == 0) == (p == 2)
    assert (
        lowered.verify(torch.randn(2, 4, 3), torch.randn(2, 5, 3)).relative_error < 1e-5
    )


def test_operators_that_openvino_computes_inaccurately_are_refused():
    """For a logarithm it adds 1, and makes a softplus of what is an exponential before."""
    x = torch.tensor([1e-9, 15.0, 17.0, 20.0])

    def function(m, x):
        return (
            torch.erfinv(0.999 - x[:1]),
            torch.log1p(x[:1]),
            torch.log1p((-x[1:]).exp()),
            F.soft_margin_loss(x[1:], torch.ones(3)),
        )

    for actual, expected in zip(lower(function, x)(x), function(None, x), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=0)


def test_variances_and_repeats_of_scalars_equal_eager():
    lowered = lower(
        lambda m, x: (x.std(), *torch.var_mean(x, 1), x.sum().repeat(())), IMAGES
    )
    assert lowered.verify(IMAGES).relative_error < 1e-5
    # what is in memory may happen to be right
    assert not any(
        "repeat" in str(node.target)
        for delegate in lowered.delegates
        for node in delegate.nodes
    )


def test_the_usual_end_of_a_cnn_is_supported():
    lowered = lower(
        lambda m, x: F.layer_norm(F.adaptive_avg_pool2d(x, 1).flatten(1), (3,)).reshape(
            3, 2
        ),
        IMAGES,
    )
    assert len(lowered.delegates[0].nodes) == 4
    assert lowered.verify(IMAGES).relative_error < 1e-5


def test_int64_indices_beyond_32_bits_are_an_error():
    lowered = lower(
        lambda m, ids: m.w0[ids].sum(1),
        torch.tensor([1, 2]),
        weights=[torch.randn(3, 4)],
    )
    assert lowered.report.host_operators == 0
    assert lowered.verify(torch.tensor([0, -1])).agrees()
    with pytest.raises(
        InputError, match="an index is out of range: .* an element 4294967296"
    ):
        lowered(torch.tensor([2**32, 0]))


class Waves(nn.Module):
    def forward(self, x):
        low = torch.sin(x)
        return low + torch.cos(x)


def test_operators_that_the_compiler_refuses_run_on_the_host(monkeypatch):
    def fail(model, options):
        name = next(
            n.get_friendly_name()
            for n in model.get_ordered_ops()
            if n.get_friendly_name().startswith("n1/")
        )
        raise RuntimeError(f"Exception from src/core.cpp:1:\nno kernel for {name}\n")

    monkeypatch.setattr("delegraph_openvino.backend.compile_model", fail)
    lowered = lower(Waves(), torch.ones(2))
    [given_back] = lowered.report.given_back
    assert given_back.reason.startswith("OpenVINO: no kernel for n1/")
    assert given_back.source.code == "return low + torch.cos(x)"
    assert lowered.verify(torch.ones(2)).agrees()


def test_equal_calls_are_converted_only_once(monkeypatch):
    asked = []
    convert = Draft.convert
    monkeypatch.setattr(
        Draft, "convert", lambda draft: asked.append(len(draft.calls)) or convert(draft)
    )
    monkeypatch.setattr(support.TRIALS, "_answers", type(support.TRIALS._answers)())
    lower(lambda m, x: x.sin().sin().sin().cos(), torch.ones(2, 7))
    assert asked == [1, 1, 4]  # sin, cos, and the partition


@pytest.mark.parametrize("rank", [1, 3])
def test_unusual_convolutions_and_norms_are_decomposed(
    rank,
):
    conv = getattr(F, f"conv{rank}d")

    def function(m, x, one):
        alone = conv(one, m.w0)  # first, so that it is asked about first
        y = conv(x, m.w0, m.w1, stride=2, padding=1)
        plain = F.batch_norm(y, m.w1, m.w2, eps=1e-3) + F.batch_norm(
            y, m.w1, m.w2, m.w2, m.w1
        )
        return (
            alone,
            plain,
            conv(x, m.w0[:, :1], groups=2),
            F.batch_norm(y, None, None, training=True),
        )

    x = torch.randn(2, 2, *[5] * rank)
    one = torch.randn(2, *[5] * rank)
    lowered = lower(
        function,
        x,
        one,
        weights=[torch.randn(4, 2, *[3] * rank), torch.randn(4), torch.rand(4) + 0.5],
    )
    assert lowered.verify(x, one).relative_error < 1e-5
    taken = Counter(node.target.__name__ for node in lowered.delegates[0].nodes)
    assert taken[f"conv{rank}d.default"] == taken["batch_norm.default"] == 2
    assert taken["convolution.default"] == 1  # the image without a batch


def test_times_are_reported_by_call_and_source_line():
    lowered = lower(Small(), IMAGES)
    [delegate] = lowered.delegates
    parts = (
        delegate.processed_bytes,
        delegate.compile_specs,
        delegate.module.named_data(),
    )
    profiled = OpenVINORuntime.profile(*parts)
    torch.testing.assert_close(profiled(IMAGES)[0][0], lowered(IMAGES))
    first, second = (profiled(IMAGES)[1]() for _ in range(2))
    assert first.keys() == second.keys()
    borders = {Border("input", 0), Border("output", 0)}
    assert {call for key in {*first} - borders for call in fused(key)} == set(
        delegate.debug_handle_map
    )  # fused or not, each call
    lines = {
        source.code
        for part in lowered.profile(IMAGES, repeats=2).parts
        for source in part.lines
    }
    assert lines == {"return self.out(F.relu6(self.norm(self.conv(x))).mean((2, 3)))"}


def test_layout_changes_count_as_time_of_their_call():
    images = torch.randn(2, 3, 64, 64)
    # a norm takes from the convolution's kernel the call's name
    weights = [torch.randn(64, 3, 3, 3), torch.rand(64)]
    lowered = lower(
        lambda m, x: F.batch_norm(F.conv2d(x, m.w0), m.w1, m.w1).relu(),
        images,
        weights=weights,
    )
    [delegate] = lowered.delegates
    profiled = OpenVINORuntime.profile(
        delegate.processed_bytes, delegate.compile_specs, delegate.module.named_data()
    )
    spent = profiled(images)[1]()
    kernels = profiled._delegate.requests.idle[-1].get_profiling_info()
    layouts = [
        kernel
        for kernel in kernels
        if kernel.node_type == "Reorder" and "x0" in kernel.node_name
    ]
    assert layouts  # of the images, as the convolution reads them
    assert spent[None]["seconds"] == 0.0  # inputs and results take no time
    borders = {Border("input", 0), Border("output", 0)}
    # all in one kernel
    assert spent.keys() == {None, (0, 1, 2), *borders}
    assert spent[0, 1, 2]["seconds"] > 0


def test_a_stored_blob_is_compared_by_release_and_device():
    blob = bytes(lower(Small(), IMAGES).delegates[0].processed_bytes)
    release = f"openvino {ov.get_version()}"

    def verdict(beginning=blob[:4096], fingerprint=release, specs=(), device=None):
        answer = OpenVINORuntime.compatible(
            BlobHeader("OpenVINOBackend", 9, beginning, "", fingerprint), specs, device
        )
        return answer and answer.verdict

    assert verdict() == verdict(fingerprint="openvino 2024.1.0-1") == "runs"
    assert verdict(fingerprint="openvino 2999.1.0") == "rebuild"
    assert verdict(fingerprint="") is None
    assert verdict(b"PK") == verdict(device="NPU") == "cannot"
    for key in ("speed", "openvino_device"):
        with pytest.raises(OptionError):  # which means "cannot"
            verdict(specs=[CompileSpec(key, b"\xff")])


# --- options, blobs, weights ----------------------------------------------------------


def test_options_reach_openvino_and_wrong_ones_are_errors(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE, str(tmp_path))
    lowered = lower(
        Small(),
        IMAGES,
        precision="bf16",
        properties="INFERENCE_NUM_THREADS=1, NUM_STREAMS=1",
    )
    assert lowered.verify(IMAGES).relative_error < 0.05
    assert list(tmp_path.glob("*.blob"))
    for wrong in (
        {"precision": "f64"},
        {"properties": "INFERENCE_NUM_THREADS"},
        {"device": "CPU\0"},
    ):
        with pytest.raises(OptionError):
            lower(Small(), IMAGES, **wrong)
    with pytest.raises(OptionError, match="speed"):
        delegate = lowered.delegates[0]
        OpenVINORuntime.load(
            delegate.processed_bytes,
            [CompileSpec("speed", b"1")],
            delegate.module.named_data(),
        )


def test_compile_specs_cannot_name_files_to_openvino(tmp_path):
    delegate = lower(Small(), IMAGES).delegates[0]

    def load(key, value, blob=delegate.processed_bytes):
        given = [CompileSpec(f"openvino_{key}", value.encode())]
        return OpenVINORuntime.load(blob, given, delegate.module.named_data())

    for wrong in (
        "CACHE_DIR=x",
        "WEIGHTS_PATH=x",
        "NUM_STREAMS=../x",
        "INFERENCE_NUM_THREADS=1,LOG_LEVEL=5",
    ):
        with pytest.raises(OptionError, match="cannot set"):
            load("properties", wrong)
    with pytest.raises(OptionError, match="openvino_cache_dir"):
        load("cache_dir", str(tmp_path))
    (tmp_path / "m").write_bytes(b"\x08\x07onnx")
    with pytest.raises(FormatError, match="XML"):
        load(
            "device",
            "CPU",
            seal(tmp_path / "m", MARK, [{"xml": 6, "packed": 6}, [], []]),
        )


def test_missing_devices_compile_and_fail_when_called():
    lowered = lower(Small(), IMAGES, device="NPU")
    assert lowered.report.host_operators == 0
    with pytest.raises(NoRuntime, match="no NPU on this machine"):
        lowered(IMAGES)


def test_weights_of_equal_bytes_may_differ_in_type():
    weights = (
        torch.zeros(64, 64),
        torch.zeros(4096),
        torch.zeros(64, 64, dtype=torch.int32),
    )
    x = torch.randn(64, 64)
    lowered = lower(
        lambda m, x: (x @ m.w0 + m.w1.reshape(64, 64) + m.w2 * 2).relu() + m.w1[:64],
        x,
        weights=weights,
    )
    assert lowered.verify(x).agrees()


def test_tied_weights_are_one_memory_in_several_shapes():
    """One parameter stood for both, and lowering failed; with sizes that broadcast,
    results would have been wrong.
    """
    weight = torch.randn(64, 64)

    def function(m, x):
        y = x @ m.w0 + x.reshape(1, -1) @ m.w1.reshape(-1, 1)
        return torch.linalg.cholesky_ex(y @ y.t() + 64 * torch.eye(64))[0] @ m.w0

    lowered = lower(function, torch.eye(64), weights=[weight, weight.view(-1)])
    assert len(lowered.delegates) == 2
    assert lowered.verify(torch.eye(64)).agrees()
    keys = [set(delegate.module.named_data()) for delegate in lowered.delegates]
    assert sorted(map(len, keys)) == [1, 2]
    assert len(set.union(*keys)) == 2


def test_weights_are_stored_as_named_data():
    weight = torch.randn(64, 64)
    weights = [weight, weight.clone()]
    lowered = lower(
        lambda m, x: torch.linalg.cholesky_ex(x @ m.w0)[0] @ m.w1,
        torch.eye(64),
        weights=weights,
    )
    assert len(lowered.delegates) == 2
    assert (
        len(
            {
                key
                for delegate in lowered.delegates
                for key in delegate.module.named_data()
            }
        )
        == 1
    )
    for delegate in lowered.delegates:
        files, (facts, *_) = unseal(delegate.processed_bytes, MARK)
        assert zlib.decompress(files[: facts["packed"]])[:5] == b"<?xml"
        assert len(files) - facts["packed"] < 64


def test_equal_programs_give_equal_bytes_in_any_process():
    code = (
        "import torch, delegraph, hashlib\ntorch.manual_seed(0)\nm ="
        " torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(),"
        " torch.nn.Linear(8, 4)).eval()\nfor _ in range(2):\n    l = delegraph.lower(m,"
        " (torch.ones(2, 8),), backends=['openvino'])\n   "
        " print(hashlib.sha256(bytes(l.delegates[0].processed_bytes)).hexdigest())\n"
    )
    printed = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(set(printed.stdout.split())) == 1


def test_a_damaged_blob_is_an_error():
    delegate = lower(nn.Linear(64, 64), torch.ones(64)).delegates[0]
    blob = delegate.processed_bytes
    for damaged in (
        blob[:-1],
        blob[:40],
        b"",
        blob[:-9] + bytes([blob[-9] ^ 1]) + blob[-8:],
    ):
        with pytest.raises(FormatError):
            OpenVINORuntime.load(damaged, delegate.compile_specs, {})
    with pytest.raises(FormatError, match="openvino/.* is missing"):
        OpenVINORuntime.load(blob, delegate.compile_specs, {})


def test_damaged_blobs_and_forged_signatures_are_refused(tmp_path):
    """OpenVINO reads as many bytes of an argument as the model says, so a forged
    signature would read beyond it.
    """
    delegate = lower(
        lambda m, x, y: x.sin() + y, torch.ones(4), torch.ones(4)
    ).delegates[0]
    files, (facts, inputs, outputs) = unseal(delegate.processed_bytes, MARK)
    constants = bytes(files[facts["packed"] :])
    files = zlib.decompress(files[: facts["packed"]])
    size = len(files)

    def load(content, *signature):
        packed = zlib.compress(content)
        (tmp_path / "m").write_bytes(packed + constants)
        blob = seal(
            tmp_path / "m",
            MARK,
            [{"xml": len(content), "packed": len(packed)}, *signature],
        )
        return OpenVINORuntime.load(blob, delegate.compile_specs, {})

    x = torch.ones(4)
    assert torch.equal(load(files, inputs, outputs)(x, x)[0], x.sin() + x)
    few = [inputs[0]]
    other = [inputs[0], ["int8", [4]]]
    small = [inputs[0], ["float32", [1]]]
    with pytest.raises(FormatError, match="takes more inputs than calls pass"):
        load(files, few, outputs)
    for wrong in (other, small):
        with pytest.raises(FormatError, match="signature has"):
            load(files, wrong, outputs)
    with pytest.raises(
        FormatError, match="returns 1 values; the delegate's signature has 2"
    ):
        load(files, inputs, outputs * 2)
    # two inputs of the IR are one of a call
    twice = bytes(files[:size]).replace(b'name="x1"', b'name="x0"')
    with pytest.raises(FormatError, match="takes more inputs than calls pass"):
        load(twice, inputs, outputs)
    for content in (
        b"<?xml",
        bytes(files[:size]).replace(b'type="Sin"', b'type="Sun"'),
        bytes(files[: size // 2]),
    ):
        with pytest.raises(FormatError, match="OpenVINO"):
            load(content, inputs, outputs)

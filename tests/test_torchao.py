"""Models with weights quantized by torchao's ``quantize_`` are lowered as they are."""

from __future__ import annotations

import delegraph
import pytest
import torch
from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore")  # of torchao, about kernels for GPUs

WEIGHTS = 2 * 256 * 512
"""The number of weights of ``Net``.

``largest_ratio`` of a test: the most bytes that a file may have for each weight.
"""


class Net(nn.Module):
    def __init__(self, width=256, inner=512):
        super().__init__()
        self.first = nn.Linear(width, inner)
        self.second = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        return self.second(nn.functional.silu(self.first(x)))


def quantize_net(kind, net=None):
    """Return a network whose weights torchao quantized: ``kind`` is a name of torchao."""
    from torchao.quantization import (
        Int8DynamicActivationIntxWeightConfig,
        Int8WeightOnlyConfig,
        IntxWeightOnlyConfig,
        PerGroup,
        quantize_,
    )

    grouped = PerGroup(32)
    configuration = {
        "int8": lambda: Int8WeightOnlyConfig(),
        "int4": lambda: IntxWeightOnlyConfig(
            weight_dtype=torch.int4, granularity=grouped
        ),
        "8da4w": lambda: Int8DynamicActivationIntxWeightConfig(
            weight_dtype=torch.int4, weight_granularity=grouped
        ),
    }[kind]
    torch.manual_seed(0)
    net = (net or Net()).eval()
    quantize_(net, configuration())
    return net


@pytest.mark.parametrize(
    ("kind", "largest_ratio", "tolerance"),
    [("int8", 1.05, 1e-5), ("int4", 0.69, 1e-5), ("8da4w", 0.74, 0.02)],
)
def test_weights_stay_integers_in_tosa(kind, largest_ratio, tolerance, tmp_path):
    """With int4, a weight has half a byte. A group of 32 has a 4-byte scale and a
    1-byte zero point.
    """
    net = quantize_net(kind)
    x = torch.randn(3, 256)
    lowered = delegraph.lower(net, (x,), backends=["tosa"], require_full=True)
    assert torch.allclose(lowered(x), net(x), atol=tolerance)
    lowered.save(tmp_path / "m.tosa")
    assert (tmp_path / "m.tosa").stat().st_size < largest_ratio * WEIGHTS
    assert torch.equal(delegraph.load(tmp_path / "m.tosa")(x)[0], lowered(x))


@pytest.mark.parametrize(("kind", "largest_ratio"), [("int8", 1.1), ("int4", 0.7)])
def test_small_weights_are_not_folded_to_floats(kind, largest_ratio, tmp_path):
    net = quantize_net(kind, Net(64, 32))
    x = torch.randn(3, 64)
    lowered = delegraph.lower(net, (x,), backends=["tosa"], require_full=True)
    assert torch.allclose(lowered(x), net(x), atol=1e-5)

    lowered.save(tmp_path / "m.tosa")
    summary = delegraph.load(tmp_path / "m.tosa").summary
    weights = 2 * 64 * 32
    bias_and_numbers = 1000
    assert summary.constant_bytes < largest_ratio * weights + bias_and_numbers


@pytest.mark.parametrize(
    ("kind", "largest_ratio", "tolerance"),
    [("int8", 1.05, 1e-5), ("int4", 1.3, 1e-5), ("8da4w", 0.7, 0.02)],
)
def test_xnnpack_files_keep_integer_weights(kind, largest_ratio, tolerance, tmp_path):
    pytest.importorskip("executorch")
    net = quantize_net(kind)
    x = torch.randn(3, 256)
    lowered = delegraph.lower(net, (x,), backends=["xnnpack"])
    assert torch.allclose(lowered(x), net(x), atol=tolerance)

    lowered.save(tmp_path / "m.pte")
    assert (tmp_path / "m.pte").stat().st_size < largest_ratio * WEIGHTS

    stock = delegraph.load(tmp_path / "m.pte", runtime="executorch")
    assert torch.allclose(stock(x), net(x), atol=tolerance)


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_xnnpack_refuses_to_convert_integer_weights_to_floats(kind):
    """8da4w is left out, because XNNPACK has a layer for its integers."""
    pytest.importorskip("executorch")
    lowered = delegraph.lower(
        quantize_net(kind), (torch.randn(3, 256),), backends=["xnnpack"]
    )

    assert any(
        "XNNPACK does not convert torch.int8 to torch.float32" in refusal.reason
        for refusal in lowered.report.refusals
    )


class Cached(nn.Module):
    """Attention over a cache that is written in place, followed by a layer."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(64, 64, bias=False)
        self.outer = nn.Linear(64, 64, bias=False)

    def forward(self, x, cache, position):
        cache = cache.clone()
        cache.index_copy_(2, position, self.inner(x).view(1, 1, 2, 32).transpose(1, 2))
        query = x.view(1, 1, 2, 32).transpose(1, 2)
        keys = cache.expand(1, 2, 5, 32)
        seen = (query @ keys.mT).softmax(-1) @ keys
        return self.outer(seen.transpose(1, 2).reshape(1, 1, 64) * 1.0), cache


def test_xnnpack_takes_quantized_layers_after_an_update_in_place():
    pytest.importorskip("executorch")
    from torchao.quantization import (
        Int8DynamicActivationIntxWeightConfig,
        PerGroup,
        quantize_,
    )

    torch.manual_seed(0)
    net = Cached().eval()
    quantize_(
        net,
        Int8DynamicActivationIntxWeightConfig(
            weight_dtype=torch.int4, weight_granularity=PerGroup(32)
        ),
    )
    inputs = (torch.randn(1, 1, 64), torch.randn(1, 2, 5, 32), torch.tensor([3]))
    lowered = delegraph.lower(net, inputs, backends=["xnnpack"])
    for ours, eager in zip(lowered(*inputs), net(*inputs), strict=True):
        assert torch.allclose(ours, eager, atol=0.02)
    blobs = sum(len(delegate.blob) for delegate in lowered.delegates)
    one_weight_in_floats = 64 * 64 * 4

    assert blobs < 10_000 < one_weight_in_floats


def test_an_embedding_table_stays_integers(tmp_path):
    from torchao.quantization import IntxWeightOnlyConfig, PerAxis, quantize_

    table = nn.Sequential(nn.Embedding(1000, 64)).eval()
    settings = IntxWeightOnlyConfig(weight_dtype=torch.int8, granularity=PerAxis(0))
    quantize_(table, settings, lambda module, name: isinstance(module, nn.Embedding))
    ids = torch.tensor([[1, 999, 0]])
    lowered = delegraph.lower(table, (ids,), backends=["tosa"], require_full=True)
    assert torch.equal(lowered(ids), table(ids))

    lowered.save(tmp_path / "m.tosa")
    weights = 1000 * 64
    scales_and_zero_points = 1000 * (4 + 1)
    table = weights + scales_and_zero_points
    assert (tmp_path / "m.tosa").stat().st_size < 1.2 * table


def test_lowering_keeps_the_users_quantized_parameters():
    net = quantize_net("int8")
    x = torch.randn(2, 256)
    net.second = nn.Sequential(nn.Linear(512, 256), net.first, nn.Linear(512, 256))
    net.eval()
    program = torch.export.export(net, (x,))
    names = list(program.state_dict)
    lowered = delegraph.lower(program, backends=[])

    assert torch.allclose(lowered(x), net(x), atol=1e-5)
    assert list(program.state_dict) == names
    assert type(net.first.weight).__name__ == "Int8Tensor"
    assert not any(
        "access_subclass" in str(node.target)
        for node in lowered.exported_program("forward").graph.nodes
    )


def test_unknown_tensor_subclasses_are_refused_with_a_hint():
    from torch._functorch._aot_autograd.subclass_parametrization import (
        unwrap_tensor_subclass_parameters,
    )
    from torch.testing._internal.two_tensor import TwoTensor

    net = nn.Sequential(nn.Linear(4, 4)).eval()
    x = torch.randn(1, 4)
    net[0].weight = nn.Parameter(TwoTensor(torch.randn(4, 4), torch.randn(4, 4)))

    with pytest.raises(delegraph.errors.InputError) as refused:
        delegraph.lower(net, (x,), backends=[])
    assert "p_0_weight is a TwoTensor" in str(refused.value)
    assert unwrap_tensor_subclass_parameters.__module__ in refused.value.hint
    delegraph.lower(unwrap_tensor_subclass_parameters(net), (x,), backends=[])

"""Programs that torchao quantized for XNNPACK, through the bridge and through
ExecuTorch itself.
"""

from __future__ import annotations

import warnings
from typing import Any

import delegraph
import pytest
import torch
import torch.ao.quantization.fx._decomposed  # the operators quantized_decomposed
from delegraph_executorch.bridging.quantized import ARM, mark_quantized
from torch import nn

from ..support.judge import stock_runtime

pytestmark = pytest.mark.filterwarnings("ignore")


def _net() -> nn.Module:
    first = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*first, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


@pytest.mark.parametrize(
    ("make", "shape", "settings"),
    [
        (_net, (1, 3, 8, 8), {"is_per_channel": True}),
        pytest.param(
            _net, (1, 3, 8, 8), {"is_per_channel": False}, marks=pytest.mark.slow
        ),
        pytest.param(
            _mlp,
            (2, 16),
            {"is_per_channel": True, "is_dynamic": True},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["per channel", "per tensor", "dynamic"],
)
def test_delegated_as_by_executorch(
    make: Any, shape: tuple[int, ...], settings: dict[str, bool], tmp_path: Any
) -> None:
    stock_runtime()
    torch.manual_seed(0)
    x = torch.randn(shape)
    quantized = _quantize(make().eval(), x, settings)
    lowered = delegraph.lower(
        torch.export.export(quantized, (x,)), backends=["xnnpack"]
    )
    assert len(lowered.delegates) == 1
    assert lowered.host_operators == 0
    lowered.save(tmp_path / "m.pte")
    ours = _run((tmp_path / "m.pte").read_bytes(), x)
    theirs, weights = _theirs(torch.export.export(quantized, (x,)), x)
    assert torch.equal(ours, theirs)
    assert torch.equal(lowered(x), theirs)
    stored = sum(map(len, lowered.named_data.buffers))
    assert stored < weights, "weights are kept as int8"


def test_groups_that_xnnpack_has_not_are_refused() -> None:
    # ExecuTorch's compiler stops at such a weight with an AssertionError
    stock_runtime()
    from torchao.quantization import (
        Int8DynamicActivationIntxWeightConfig,
        PerAxis,
        PerGroup,
        quantize_,
    )

    x = torch.randn(2, 64, generator=torch.Generator().manual_seed(0))
    eight = (torch.int8, PerAxis(0), True), (torch.int8, PerGroup(32), False)
    four = (
        (torch.int4, PerGroup(16), False),
        (torch.int4, PerGroup(32), True),
        (torch.int4, PerGroup(64), True),
    )
    for dtype, granularity, is_taken in (*eight, *four):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(64, 8)).eval()
        quantize_(module, Int8DynamicActivationIntxWeightConfig(dtype, granularity))
        lowered = delegraph.lower(module, (x,), backends=["xnnpack"])
        assert (lowered.host_operators == 0) is is_taken
        assert (lowered(x) - module(x)).abs().max() < 0.01


class Rescaled(nn.Module):
    """A quantized layer whose result has a scale far from that of its operands."""

    def __init__(self, scale: float, by_channel: bool) -> None:
        super().__init__()
        self.scale = scale
        self.by_channel = by_channel
        weight = torch.randint(
            -127, 128, (8, 3, 3, 3) if by_channel else (8, 16), dtype=torch.int8
        )
        self.register_buffer("weight", weight)
        self.register_buffer("scales", torch.linspace(0.001, 0.01, 8))
        self.register_buffer("zeros", torch.zeros(8, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ops = torch.ops.quantized_decomposed
        given = (0.05, 0, -128, 127, torch.int8)
        made = (self.scale, 3, -128, 127, torch.int8)
        x = ops.dequantize_per_tensor(ops.quantize_per_tensor(x, *given), *given)
        if self.by_channel:
            weight = ops.dequantize_per_channel(
                self.weight, self.scales, self.zeros, 0, -127, 127, torch.int8
            )
            y = nn.functional.conv2d(x, weight).relu()
        else:
            weight = ops.dequantize_per_tensor(
                self.weight, 0.01, 0, -127, 127, torch.int8
            )
            y = nn.functional.linear(x, weight)
        result: torch.Tensor = ops.dequantize_per_tensor(
            ops.quantize_per_tensor(y, *made), *made
        )
        return result


@pytest.mark.parametrize("by_channel", [True, False], ids=["convolution", "linear"])
def test_a_rescaling_that_xnnpack_does_not_load_is_refused(by_channel: bool) -> None:
    stock_runtime()
    x = torch.randn(
        (1, 3, 8, 8) if by_channel else (2, 16),
        generator=torch.Generator().manual_seed(0),
    )
    limit = 0.05 * 0.01 / 256
    for scale, is_taken in ((2 * limit, True), (limit / 2, False)):
        module = Rescaled(scale, by_channel)
        lowered = delegraph.lower(
            torch.export.export(module, (x,)), backends=["xnnpack"]
        )
        refused = {row.operator for row in lowered.report.refusals}
        assert bool(refused & {"aten.conv2d.default", "aten.mm.default"}) != is_taken
        off = (lowered(x) - module(x)).abs() / scale
        assert off.max() < 1.5


class Chain(nn.Module):
    """relu and tanh between a quantized input and a quantized result; ``read``: a
    result is the relu as well.
    """

    def __init__(self, read: bool) -> None:
        super().__init__()
        self.read = read

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = _requantized(x, 0.1).relu()
        z = _requantized(y.tanh(), 0.01)
        return (z, y) if self.read else (z,)


@pytest.mark.parametrize(("read", "marked"), [(False, {"relu", "tanh"}), (True, set())])
def test_calls_between_quantized_values_are_marked(
    read: bool, marked: set[str]
) -> None:
    program = torch.export.export(Chain(read), (torch.ones(4),))
    mark_quantized(program)
    found = {
        node.name
        for node in program.graph.nodes
        if ARM in (node.meta.get("custom") or {})
    }
    assert found & {"relu", "tanh"} == marked


def _quantize(module: nn.Module, x: torch.Tensor, settings: dict[str, bool]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from executorch.backends.xnnpack.quantizer import xnnpack_quantizer as theirs
        from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    quantizer = theirs.XNNPACKQuantizer().set_global(
        theirs.get_symmetric_quantization_config(**settings)
    )
    prepared = prepare_pt2e(torch.export.export(module, (x,)).module(), quantizer)
    prepared(x)
    return convert_pt2e(prepared)


def _theirs(program: Any, x: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Result of ExecuTorch's own file, and the bytes that its floats would take."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
        XnnpackPartitioner,
    )
    from executorch.exir import to_edge_transform_and_lower

    floats = 4 * sum(t.numel() for t in program.state_dict.values())
    edge = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
    return _run(edge.to_executorch().buffer, x), floats


def _run(content: bytes, x: torch.Tensor) -> torch.Tensor:
    program = stock_runtime().load_program(content)
    result: torch.Tensor = program.load_method("forward").execute([x])[0]
    return result


def _requantized(x: torch.Tensor, scale: float, zero_point: int = -5) -> torch.Tensor:
    quantized = torch.ops.quantized_decomposed
    arguments = (scale, zero_point, -128, 127, torch.int8)
    integers = quantized.quantize_per_tensor.default(x, *arguments)
    return torch.Tensor(quantized.dequantize_per_tensor.default(integers, *arguments))


class _BetweenScales(nn.Module):
    """Operators that move integers, between tensors of several scales, and a
    convolution that XNNPACK does not take.
    """

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4, 3, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # no integer of one of these scales lies in the middle between two of the next,
        # where rounding may differ
        pooled = _requantized(nn.functional.max_pool2d(_requantized(x, 0.1), 2), 0.0917)
        joined = _requantized(
            torch.cat([pooled, _requantized(x[:, :, 1::2, 1::2], 0.0531)], 1), 0.0829
        )
        turned = _requantized(joined.permute(0, 2, 3, 1), 0.0713).reshape(1, 8, 8, 8)
        # its weight is quantized, and its bias is computed: what is behind it is no
        # part of it, though marked as such
        weight = _requantized(self.weight, 0.02, 0)
        bias = _requantized(x[0, :, 0, 0], 0.01, 0)
        rectified = _requantized(
            nn.functional.conv2d(
                _requantized(turned, 0.0611)[:, :4], weight, bias
            ).relu(),
            0.1,
        )
        return _requantized(nn.functional.max_pool2d(rectified, 2), 0.1)


class _DroppedPair(nn.Module):
    """A dequantize and a quantize of one scale, which ExecuTorch leaves out, between
    two calls of one partition.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        once = _requantized(x.abs(), 0.1)
        return _requantized(_requantized(once, 0.1) + once, 0.2)


@pytest.mark.parametrize(
    "module", [_BetweenScales(), _DroppedPair()], ids=["scales", "dropped"]
)
def test_graphs_that_xnnpack_cannot_load_are_rewritten(module: nn.Module) -> None:
    stock_runtime()
    x = torch.randn(1, 4, 16, 16, generator=torch.Generator().manual_seed(0))
    program = torch.export.export(module, (x,))
    lowered = delegraph.lower(program, backends=["xnnpack"])
    error = (lowered(x) - program.module()(x)).abs().max()
    assert error < 0.11, (
        "at most one step of the last scale, where a convolution lies between two"
        " integers"
    )
    assert any(len(delegate.nodes) >= 8 for delegate in lowered.delegates)


class Branches(nn.Module):
    """What Arm takes whole, and a mean, which it takes of its own quantizers only."""

    def __init__(self, mean: bool) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.last = nn.Linear(8, 4)
        self.mean = mean

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x).relu()
        left, right = y.chunk(2, 1)
        y = torch.cat([torch.cat([right, left], 1), y + self.second(y).sigmoid()], 2)
        return self.last(y.mean((2, 3)) if self.mean else y[:, :, 1, 1])


def _lower_for_arm(mean: bool, example: torch.Tensor) -> tuple[Any, Any]:
    """Return ``Branches``, quantized by the plugin tosa, and lowered by Arm's backend."""
    pytest.importorskip(
        "tosa_serializer",
        reason="ExecuTorch's TOSA backend needs it; the extra verify has it",
    )
    from delegraph_executorch.bridging import bridge
    from executorch.backends.arm.tosa.backend import TOSABackend
    from executorch.backends.arm.tosa.compile_spec import TosaCompileSpec
    from executorch.backends.arm.tosa.partitioner import TOSAPartitioner

    batches = [(example,), (torch.randn_like(example),)]
    program = delegraph.quantize(Branches(mean).eval(), batches, backend="tosa")
    made = bridge(TOSABackend, lambda: TOSAPartitioner(TosaCompileSpec("TOSA-1.0+INT")))
    registry = delegraph.Registry(discover=False)
    with registry.register(made.backend):
        lowered = delegraph.lower(
            program, backends=[made.partitioner()], registry=registry
        )
    return program, lowered


@pytest.mark.parametrize("mean", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_arms_partitioner_accepts_programs_of_other_quantizers(mean: bool) -> None:
    """It refuses a mean, which divides the program in two."""
    torch.manual_seed(0)
    _, lowered = _lower_for_arm(mean, torch.randn(1, 3, 8, 8))
    refused = [
        row.operator
        for row in lowered.report.refusals
        if "quantize" not in row.operator
    ]
    assert refused == (["aten.mean.dim"] if mean else [])
    assert len(lowered.delegates) == (2 if mean else 1)


def test_arms_integers_are_within_one_step_of_the_program() -> None:
    from delegraph_tosa.runtime import TOSARuntime

    torch.manual_seed(0)
    x = torch.randn(1, 3, 8, 8)
    program, lowered = _lower_for_arm(False, x)
    quantizes = _steps(program, "quantize_per_tensor")
    dequantizes = _steps(program, "dequantize_per_tensor")
    # the delegate takes and returns integers: the host quantizes the program's input
    # by the first step, and dequantizes its output by the last one
    scale, zero_point, low, high, dtype = quantizes[0]
    assert dtype is torch.int8
    integers = torch.ops.quantized_decomposed.quantize_per_tensor(
        x, scale, zero_point, low, high, dtype
    )
    [delegate] = lowered.delegates
    runtime = TOSARuntime.load(bytes(delegate.processed_bytes), [], {})
    (found,) = runtime(integers)
    scale, zero_point, *_ = dequantizes[-1]
    result = (found.int() - zero_point) * scale
    expected = program.module(check_guards=False)(x)
    assert (result - expected).abs().max() <= 1.01 * scale


@pytest.mark.parametrize(
    ("kind", "refused"),
    [
        ("of parameters", "quantized_decomposed.quantize_per_channel.default"),
        pytest.param("of an input", "aten.addmm.default", marks=pytest.mark.slow),
    ],
)
def test_layers_with_computed_weights_are_not_offered_to_arm(
    kind: str, refused: str
) -> None:
    """Its compiler fails on a weight that is quantized by channels at run time, though
    its partitioner takes it.
    """
    pytest.importorskip(
        "tosa_serializer",
        reason="ExecuTorch's TOSA backend needs it; the extra verify has it",
    )
    from delegraph_executorch.bridging import bridge
    from executorch.backends.arm.tosa.backend import TOSABackend
    from executorch.backends.arm.tosa.compile_spec import TosaCompileSpec
    from executorch.backends.arm.tosa.partitioner import TOSAPartitioner

    torch.manual_seed(0)
    batches = [(torch.randn(3, 8), torch.rand(6, 1)) for _ in range(2)]
    program = delegraph.quantize(Weighted(kind).eval(), batches, backend="tosa")
    made = bridge(TOSABackend, lambda: TOSAPartitioner(TosaCompileSpec("TOSA-1.0+INT")))
    registry = delegraph.Registry(discover=False)
    with registry.register(made.backend):
        lowered = delegraph.lower(
            program, backends=[made.partitioner()], registry=registry
        )
    assert len(lowered.delegates) == 1
    assert refused in {row.operator for row in lowered.report.refusals}


class Weighted(nn.Module):
    """A linear layer whose weight has a norm for each row, of an input or of parameters"""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.layer = nn.Linear(8, 6)
        self.kind = kind

    def forward(self, x: torch.Tensor, norms: torch.Tensor) -> torch.Tensor:
        weight = self.layer.weight
        if self.kind == "of parameters":
            return nn.functional.linear(
                self.first(x).relu(),
                weight / weight.norm(dim=1, keepdim=True),
                self.layer.bias,
            )
        return nn.functional.linear(
            self.first(x).relu(), weight * norms, self.layer.bias
        )


def _steps(program: Any, name: str) -> list[Any]:
    """The arguments of the calls of ``quantized_decomposed`` with that name, in order."""
    calls = program.graph.find_nodes(
        op="call_function", target=getattr(torch.ops.quantized_decomposed, name).default
    )
    return [call.args[1:] for call in calls]

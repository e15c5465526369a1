"""Execution providers: Qualcomm's, whose wheel has a compiler and a simulator."""

import subprocess
import sys

import delegraph
import pytest
import torch
from delegraph.errors import DelegraphError, FormatError, InputError, OptionError
from delegraph_onnx.plugin import package_of
from torch import nn

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
ort = pytest.importorskip("onnxruntime")
needs_qnn = pytest.mark.skipif(
    not package_of("qnn") or sys.platform != "linux",
    reason="pip install onnxruntime-qnn",
)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.head = nn.Linear(8, 5)

    def forward(self, image):
        features = torch.relu(self.conv(image)).mean((2, 3))
        return torch.softmax(self.head(features), -1)


def lower(model, *args, **options):
    return delegraph.lower(
        model.eval(),
        args,
        backends=["onnx"],
        options={"onnx": {"ep": "qnn", **options}},
    )


@needs_qnn
def test_a_network_is_compiled_ahead_for_a_snapdragon(tmp_path):
    torch.manual_seed(0)
    image = torch.randn(1, 3, 16, 16)
    lowered = lower(Net(), image, soc="SM8750")
    facts = lowered.delegates[0].facts
    assert facts["compiled"] == "ahead" and facts["on ONNX Runtime's CPU"] == "nothing"
    assert lowered.verify(image).relative_error < 1e-2
    lowered.save(tmp_path / "net.onnx")
    [node] = onnx.load(tmp_path / "net.onnx").graph.node
    assert node.op_type == "EPContext"
    onnx.checker.check_model(str(tmp_path / "net.onnx"))
    loaded = delegraph.load(tmp_path / "net.onnx")
    assert torch.equal(loaded(image)[0], lowered(image))


@needs_qnn
def test_an_int8_network_is_one_node_for_a_snapdragon():
    torch.manual_seed(0)
    batches = [(torch.randn(1, 3, 16, 16),) for _ in range(3)]
    program = delegraph.quantize(Net().eval(), batches, backend="onnx")
    options = {"onnx": {"ep": "qnn", "soc": "SM8750"}}
    lowered = delegraph.lower(program, backends=["onnx"], options=options)
    assert lowered.delegates[0].facts["on ONNX Runtime's CPU"] == "nothing"
    assert lowered.verify(*batches[0]).relative_error < 0.05


class Tokens(nn.Module):
    """Linear layers of three dimensions, around a nonlinear operator."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(12, 24)
        self.second = nn.Linear(24, 12)

    def forward(self, tokens):
        return self.second(torch.relu(self.first(tokens)))


@needs_qnn
def test_no_quantized_linear_layer_of_tokens_leaves_the_npu():
    torch.manual_seed(0)
    batches = [(torch.randn(2, 5, 12),) for _ in range(3)]
    program = delegraph.quantize(Tokens().eval(), batches, backend="onnx")
    options = {"onnx": {"ep": "qnn", "soc": "SM8750"}}
    lowered = delegraph.lower(program, backends=["onnx"], options=options)
    assert lowered.delegates[0].facts["on ONNX Runtime's CPU"] == "nothing"
    assert lowered.verify(*batches[0]).relative_error < 0.03


def test_activations_of_16_bits_equal_the_quantized_program():
    from delegraph_tosa.quantizer import Precision, TOSAQuantizer

    torch.manual_seed(0)
    batches = [(torch.randn(1, 3, 16, 16),) for _ in range(3)]
    quantizer = TOSAQuantizer(Precision(torch.int16))
    program = delegraph.quantize(Net().eval(), batches, quantizer=quantizer)
    lowered = delegraph.lower(program, backends=["onnx"])
    assert lowered.host_operators == 0
    assert lowered.verify(*batches[0]).relative_error < 1e-3


@needs_qnn
def test_operators_that_a_provider_leaves_are_in_the_report():
    class WithErf(nn.Module):
        def forward(self, x):
            return torch.erf(x) + torch.relu(x) @ x

    lowered = lower(WithErf(), torch.randn(4, 4))
    assert "on ONNX Runtime's CPU 1 Erf" in str(lowered.report)


@needs_qnn
def test_a_partition_of_which_a_provider_takes_nothing_is_refused():
    class Erf(nn.Module):
        def forward(self, x):
            return torch.erf(x)

    lowered = lower(Erf(), torch.randn(4, 4))
    assert not lowered.delegates
    assert "takes no operator" in str(lowered.report)


@needs_qnn
def test_only_the_operator_that_a_provider_names_is_left_to_the_host(monkeypatch):
    compiler = ort.ModelCompiler

    def compile_without_sine(options, content, **others):
        for node in onnx.ModelProto.FromString(content).graph.node:
            if node.op_type == "Sin":
                raise RuntimeError(f"Node '{node.name}' has no kernel")
        return compiler(options, content, **others)

    class Sine(nn.Module):
        def forward(self, x):
            return torch.sin(x @ x) @ x + x

    monkeypatch.setattr(ort, "ModelCompiler", compile_without_sine)
    x = torch.randn(4, 4)
    lowered = lower(Sine(), x)
    assert lowered.host_operators == 1 and len(lowered.delegates) == 2
    assert "1 x aten.sin.default  onnx: its compiler" in str(lowered.report)
    assert "has no kernel" in str(lowered.report)
    assert lowered.verify(x).relative_error < 1e-2


@needs_qnn
def test_a_model_that_a_provider_compiles_and_does_not_load_is_divided(monkeypatch):
    from delegraph_onnx.session import make_session

    def load_without_erf(content, *others):
        kinds = {
            node.op_type for node in onnx.ModelProto.FromString(content).graph.node
        }
        if kinds >= {"EPContext", "Erf"}:
            raise FormatError("format-invalid", "this context cannot be loaded")
        return make_session(content, *others)

    name = "delegraph_onnx.compile_ahead.make_session"
    monkeypatch.setattr(name, load_without_erf)
    x = torch.randn(4, 4)
    lowered = lower(Function(lambda x: torch.relu(x @ x) + torch.erf(x)), x)
    assert lowered.host_operators == 1 and len(lowered.delegates) >= 1
    assert "cannot be loaded" in str(lowered.report)
    assert lowered.verify(x).relative_error < 1e-2


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def check_equal(function, *args, **options):
    """Check that a program for a provider computes what eager computes."""
    lowered = lower(Function(function), *args, **options)
    torch.testing.assert_close(lowered(*args), function(*args), rtol=1e-2, atol=1e-2)
    return lowered


TENTHS = torch.tensor([-2.7, -1.6, -0.5, 0.2, 1.1, 1.7, 2.9, 3.6])


@needs_qnn
def test_an_index_that_is_computed_from_floats_is_rounded_down():
    table = torch.arange(24.0).reshape(3, 8)

    def function(table, steps):
        return torch.relu(table)[:, (steps * 0.5).to(torch.int64)]

    lowered = check_equal(function, table, torch.arange(6.0))
    assert lowered.host_operators == 0


@needs_qnn
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_floats_that_become_integers_and_floats_lose_their_fractions(dtype):
    lowered = check_equal(lambda x: (x * 2.0).to(dtype).float() * 3, TENTHS)
    assert lowered.host_operators == 0


@needs_qnn
def test_integers_that_become_bool_and_numbers_are_zero_or_one():
    integers = torch.arange(-3, 4)
    check_equal(lambda x: (x * 3).bool().float() * 2, integers)
    check_equal(lambda x: (x * 3).bool().long() * 2, integers)


BYTES = torch.tensor([0, 1, 7, 100, 200, 255], dtype=torch.uint8)


@needs_qnn
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.float() * 2,
        lambda x: x / 255,
        lambda x: (x.float() * 0.5).to(torch.uint8).float() * 2,
    ],
)
def test_bytes_that_become_floats_keep_their_values(function):
    lowered = check_equal(function, BYTES, soc="SM8750")
    assert lowered.host_operators == 0


@needs_qnn
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_integers_that_become_bytes_wrap(dtype):
    integers = torch.arange(-3, 4, dtype=torch.int32) * 100
    for function in (
        lambda x: (x * 1).to(dtype).to(torch.int32) * 2,
        lambda x: (x * 1).sum(0, dtype=dtype) * 1,
    ):
        check_equal(function, integers, soc="SM8750")


@needs_qnn
def test_a_dequantized_value_becomes_an_index_on_the_host():
    """The NPU's float16 may be on the other side of an integer."""
    quantized = torch.ops.quantized_decomposed

    def step(x, scale, zero_point):
        limits = (scale, zero_point, -128, 127, torch.int8)
        return quantized.dequantize_per_tensor(
            quantized.quantize_per_tensor(x, *limits), *limits
        )

    def function(x):
        parts = step(torch.sigmoid(step(x, 0.1, 0)) * 10, 10 / 255, -128)
        return parts.to(torch.int64) * 2

    x = torch.arange(-128, 128) * 0.1
    lowered = lower(Function(function), x, soc="SM8750")
    assert "onnx: its operand is dequantized" in str(lowered.report)
    # a rounding between two steps remains
    assert (lowered(x) != function(x)).sum() <= 2


@needs_qnn
@pytest.mark.parametrize("divisor", [4, 3, -3])
def test_floor_division_of_negative_integers_rounds_down(divisor):
    check_equal(lambda x: (x * 1) // divisor, torch.arange(-9, 9))


@needs_qnn
def test_several_index_tensors_are_taken_if_they_have_one_shape():
    cube = torch.arange(24.0).reshape(2, 3, 4)
    rows = torch.tensor([0, -1, 1])
    columns = torch.tensor([2, 0, -1])
    for function in (
        lambda x, i, j: torch.relu(x)[i, j],
        lambda x, i, j: torch.relu(x)[i, :, j],
        lambda x, i, j: torch.relu(x)[:, j * 1, i + 0],
    ):
        check_equal(function, cube, rows, columns)
    function = lambda x, i, j: torch.relu(x)[:, i[:, None], j]
    lowered = check_equal(function, cube, rows, columns)
    assert "aten.index.Tensor  onnx: Qualcomm's compiler" in str(lowered.report)


@needs_qnn
def test_a_program_that_a_provider_refuses_is_not_written(tmp_path):
    class Erf(nn.Module):
        def forward(self, x):
            return torch.erf(x)

    lowered = lower(Erf(), torch.randn(4, 4))
    with pytest.raises(InputError, match="host operators: 1"):
        lowered.save(tmp_path / "erf.onnx")
    assert not list(tmp_path.iterdir())


@needs_qnn
def test_bodies_of_branches_are_compiled_for_a_provider():
    class Branch(nn.Module):
        def forward(self, x):
            positive = lambda x: torch.relu(x) @ x
            return torch.cond(x.sum() > 0, positive, lambda x: x * 2, (x,))

    x = torch.rand(4, 4)
    lowered = lower(Branch(), x)
    assert lowered.delegates and "cond runs subgraphs" in str(lowered.report)
    assert lowered.verify(x).relative_error < 1e-2


def test_a_provider_that_is_not_installed_is_an_error():
    with pytest.raises(OptionError, match="onnxruntime_ep_nonesuch"):
        lower(Net(), torch.randn(1, 3, 16, 16), ep="nonesuch")


@needs_qnn
def test_an_unknown_chip_is_an_error():
    with pytest.raises(DelegraphError, match="no chip 'SM1'"):
        lower(Net(), torch.randn(1, 3, 16, 16), soc="SM1")


@needs_qnn
def test_backends_lists_the_providers():
    command = [sys.executable, "-m", "delegraph", "backends"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "execution providers here: cpu, qnn" in listed


def test_a_profile_has_the_calls_that_a_kernel_computes():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 2, 1)
    )
    image = torch.randn(1, 3, 32, 32)
    lowered = delegraph.lower(model.eval(), (image,), backends=["onnx"])
    profile = lowered.profile(image, repeats=3)
    text = str(profile)
    assert "module 0 (Conv2d) and module 1 (BatchNorm2d) and module 2 (ReLU)" in text
    assert "module 3 (Conv2d)" in text
    # ONNX Runtime's clock is converted to Python's
    assert any(part.intervals for part in profile.parts if part.is_kernel)

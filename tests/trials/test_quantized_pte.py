"""Quantized programs in ``.pte`` files equal eager in both runtimes."""

import delegraph
import pytest
import torch
from torch import nn

# whatever ExecuTorch and torchao warn of
pytestmark = pytest.mark.filterwarnings("ignore")
pytest.importorskip("delegraph_executorch")
pt2e = pytest.importorskip("torchao.quantization.pt2e.quantize_pt2e")
torchao = pytest.importorskip("torchao.quantization")
of_xnnpack = pytest.importorskip(
    "executorch.backends.xnnpack.quantizer.xnnpack_quantizer"
)

from plugins.executorch_backend.tests.support.both_runtimes import (  # noqa: E402
    expect_right_in_both,
    save_and_expect_right,
)

torch.manual_seed(0)
QD = torch.ops.quantized_decomposed
FLOATS = torch.randn(3, 8)
COLUMNS = FLOATS.T.contiguous()
INTEGERS = torch.randint(-128, 128, (3, 8), dtype=torch.int8)
SCALES = torch.rand(3) + 0.01
ZEROS = torch.tensor([1, -2, 3])
GROUP_SCALES = torch.rand(3, 2) + 0.01
GROUP_ZEROS = torch.randint(-3, 3, (3, 2), dtype=torch.int32)
TOKEN_SCALES = torch.rand(3, 1, dtype=torch.float64) + 0.01
TOKEN_ZEROS = torch.randint(-3, 3, (3, 1))
SCALE = torch.tensor([0.1])
ZERO = torch.tensor([3])
LEAST = torch.tensor(-100)
GREATEST = torch.tensor(100)
RANGE = (-128, 127, torch.int8)


def chosen_for_tensor(x):
    parameters = QD.choose_qparams.tensor(x, -128, 127, 1e-5, torch.int8)
    return QD.dequantize_per_tensor.tensor(
        QD.quantize_per_tensor.tensor(x, *parameters, *RANGE), *parameters, *RANGE
    )


def chosen_for_tokens(x):
    parameters = QD.choose_qparams_per_token_asymmetric(x, torch.int8)
    integers = QD.quantize_per_token(x, *parameters, *RANGE)
    return QD.dequantize_per_token(integers, *parameters, *RANGE, torch.float32)


OPERATORS = {
    "quantize per tensor": (
        lambda x: QD.quantize_per_tensor(x, 0.1, 3, *RANGE),
        FLOATS,
    ),
    "quantize per tensor to uint8": (
        lambda x: QD.quantize_per_tensor(x, 0.1, 3, 0, 255, torch.uint8),
        FLOATS,
    ),
    "quantize per tensor to int16": (
        lambda x: QD.quantize_per_tensor(x, 0.1, 0, -32768, 32767, torch.int16),
        FLOATS,
    ),
    "quantize per tensor of float16": (
        lambda x: QD.quantize_per_tensor(x, 0.1, 3, *RANGE),
        FLOATS.half(),
    ),
    "quantize per tensor of bfloat16": (
        lambda x: QD.quantize_per_tensor(x, 0.1, 3, *RANGE),
        FLOATS.bfloat16(),
    ),
    "quantize by tensors": (
        lambda x: QD.quantize_per_tensor.tensor(x, SCALE, ZERO, *RANGE),
        FLOATS,
    ),
    "quantize by tensors between tensors": (
        lambda x: QD.quantize_per_tensor.tensor2(
            x, SCALE, ZERO, LEAST, GREATEST, torch.int8
        ),
        FLOATS * 20,
    ),
    "dequantize per tensor": (
        lambda x: QD.dequantize_per_tensor(x, 0.1, 3, *RANGE),
        INTEGERS,
    ),
    "dequantize per tensor to float16": (
        lambda x: QD.dequantize_per_tensor(x, 0.1, 3, *RANGE, out_dtype=torch.float16),
        INTEGERS,
    ),
    "dequantize per tensor to bfloat16": (
        lambda x: QD.dequantize_per_tensor(x, 0.1, 3, *RANGE, out_dtype=torch.bfloat16),
        INTEGERS,
    ),
    "dequantize by tensors": (
        lambda x: QD.dequantize_per_tensor.tensor(x, SCALE, ZERO, *RANGE),
        INTEGERS,
    ),
    "quantize per channel": (
        lambda x: QD.quantize_per_channel(x, SCALES, ZEROS, 0, *RANGE),
        FLOATS,
    ),
    "quantize per last channel": (
        lambda x: QD.quantize_per_channel(x, SCALES, ZEROS, 1, *RANGE),
        COLUMNS,
    ),
    "quantize per channel by float64": (
        lambda x: QD.quantize_per_channel(x, SCALES.double(), ZEROS, 1, *RANGE),
        COLUMNS,
    ),
    "quantize per channel of bfloat16": (
        lambda x: QD.quantize_per_channel(x, SCALES.double(), ZEROS, 0, *RANGE),
        FLOATS.bfloat16(),
    ),
    "dequantize per channel": (
        lambda x: QD.dequantize_per_channel(x, SCALES, ZEROS, 0, *RANGE),
        INTEGERS,
    ),
    "dequantize per channel counted from the end": (
        lambda x: QD.dequantize_per_channel(x, SCALES, ZEROS, -2, *RANGE),
        INTEGERS,
    ),
    "dequantize per channel without zero points": (
        lambda x: QD.dequantize_per_channel(x, SCALES, None, 0, *RANGE),
        INTEGERS,
    ),
    "dequantize per channel to bfloat16": (
        lambda x: QD.dequantize_per_channel(
            x, SCALES, ZEROS, 0, *RANGE, out_dtype=torch.bfloat16
        ),
        INTEGERS,
    ),
    "quantize per group": (
        lambda x: QD.quantize_per_channel_group(
            x, GROUP_SCALES, GROUP_ZEROS, -8, 7, torch.int8, 4
        ),
        FLOATS,
    ),
    "dequantize per group": (
        lambda x: QD.dequantize_per_channel_group(
            x, GROUP_SCALES, GROUP_ZEROS, *RANGE, 4, torch.float32
        ),
        INTEGERS,
    ),
    "quantize per token": (
        lambda x: QD.quantize_per_token(x, TOKEN_SCALES, TOKEN_ZEROS, *RANGE),
        FLOATS,
    ),
    "dequantize per token": (
        lambda x: QD.dequantize_per_token(
            x, TOKEN_SCALES, TOKEN_ZEROS, *RANGE, torch.float32
        ),
        INTEGERS,
    ),
    "choose a scale": (
        lambda x: QD.choose_qparams.tensor(x, -128, 127, 1e-5, torch.int8),
        FLOATS,
    ),
    "choose a scale of zeros": (
        lambda x: QD.choose_qparams.tensor(x, -128, 127, 1e-5, torch.int8),
        FLOATS * 0,
    ),
    "choose a symmetric scale": (
        lambda x: QD.choose_qparams_symmetric.tensor(x, -127, 127, 1e-5, torch.int8),
        FLOATS,
    ),
    "choose scales of tokens": (
        lambda x: QD.choose_qparams_per_token_asymmetric(x, torch.int8),
        FLOATS,
    ),
    "quantize with a chosen scale": (chosen_for_tensor, FLOATS),
    "quantize with chosen scales of tokens": (chosen_for_tokens, FLOATS),
    "fake quantize per channel": (
        lambda x: QD.fake_quant_per_channel(x, SCALES, ZEROS, 0, -128, 127),
        FLOATS,
    ),
}


class Model(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_of_quantization_equals_eager(name, tmp_path):
    function, x = OPERATORS[name]
    program = delegraph.lower(Model(function), (x,), backends=[])
    save_and_expect_right(
        program, function, (x,), folder=tmp_path, rtol=1e-6, atol=1e-7
    )


def test_scales_chosen_at_run_time_take_any_length(tmp_path):
    sizes = ({0: torch.export.Dim("rows", min=2, max=9)},)
    program = delegraph.lower(
        Model(chosen_for_tokens), (FLOATS,), backends=[], dynamic_shapes=sizes
    )
    calls = [(torch.randn(rows, 8),) for rows in (2, 3, 9)]
    save_and_expect_right(program, chosen_for_tokens, *calls, folder=tmp_path)


def test_choose_qparams_per_token_is_refused(tmp_path):
    function = lambda x: QD.choose_qparams_per_token(x, torch.int8)
    program = delegraph.lower(Model(function), (FLOATS,), backends=[])
    with pytest.raises(
        delegraph.errors.Unsupported,
        match="but the operator returns",
    ):
        program.save(tmp_path / "program.pte")


def with_quantizer(quantizer):
    """Return a function that quantizes a model with torchao's PT2E flow."""

    def quantized(module, inputs):
        prepared = pt2e.prepare_pt2e(
            torch.export.export(module, inputs).module(), quantizer()
        )
        prepared(*inputs)
        return torch.export.export(pt2e.convert_pt2e(prepared), inputs)

    return quantized


def quantize_by_xnnpack(**config):
    settings = of_xnnpack.get_symmetric_quantization_config(**config)
    return with_quantizer(lambda: of_xnnpack.XNNPACKQuantizer().set_global(settings))


def quantize_by_tosa(module, inputs):
    quantizer = pytest.importorskip("delegraph_tosa.quantizer").TOSAQuantizer
    return delegraph.quantize(module, [inputs], quantizer=quantizer())


def quantize_by_torchao(config):
    """Return a function that quantizes the weights of a model in place."""

    def quantized(module, inputs):
        torchao.quantize_(module, config)
        return torch.export.export(module, inputs)

    return quantized


def linear():
    return nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4))


def convolution():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 4, batch_first=True)

    def forward(self, x):
        return self.lstm(x)[0]


EIGHT_BY_FOUR = torchao.Int8DynamicActivationIntxWeightConfig(
    weight_dtype=torch.int4, weight_granularity=torchao.PerGroup(16)
)
EIGHT_BY_EIGHT = torchao.Int8DynamicActivationIntxWeightConfig(
    weight_dtype=torch.int8, weight_granularity=torchao.PerAxis(0)
)
WEIGHTS_OF_FOUR = torchao.IntxWeightOnlyConfig(
    weight_dtype=torch.int4, granularity=torchao.PerGroup(16)
)
MODELS = {
    "linear per tensor": (linear, (2, 32), quantize_by_xnnpack(is_per_channel=False)),
    "linear per channel": (linear, (2, 32), quantize_by_xnnpack(is_per_channel=True)),
    "convolution per tensor": (
        convolution,
        (1, 3, 8, 8),
        quantize_by_xnnpack(is_per_channel=False),
    ),
    "convolution per channel": (
        convolution,
        (1, 3, 8, 8),
        quantize_by_xnnpack(is_per_channel=True),
    ),
    "dynamic linear per tensor": (
        linear,
        (2, 32),
        quantize_by_xnnpack(is_per_channel=False, is_dynamic=True),
    ),
    "dynamic linear per channel": (
        linear,
        (2, 32),
        quantize_by_xnnpack(is_per_channel=True, is_dynamic=True),
    ),
    "linear of TOSA's quantizer": (linear, (2, 32), quantize_by_tosa),
    "convolution of TOSA's quantizer": (convolution, (1, 3, 8, 8), quantize_by_tosa),
    "lstm of TOSA's quantizer": (Recurrent, (1, 3, 4), quantize_by_tosa),
    "activations of 8 and weights of 4 bits": (
        linear,
        (2, 32),
        quantize_by_torchao(EIGHT_BY_FOUR),
    ),
    "activations of 8 and weights of 8 bits": (
        linear,
        (2, 32),
        quantize_by_torchao(EIGHT_BY_EIGHT),
    ),
    "weights of 8 bits": (
        linear,
        (2, 32),
        quantize_by_torchao(torchao.Int8WeightOnlyConfig()),
    ),
    "weights of 4 bits": (linear, (2, 32), quantize_by_torchao(WEIGHTS_OF_FOUR)),
}


@pytest.mark.parametrize(
    "backends",
    [[], pytest.param(["xnnpack"], marks=pytest.mark.slow)],
    ids=["host", "xnnpack"],
)
@pytest.mark.parametrize("name", MODELS)
def test_a_quantized_model_runs_in_both_runtimes(name, backends, tmp_path):
    make, shape, quantize = MODELS[name]
    torch.manual_seed(0)
    x = torch.randn(shape)
    exported = quantize(make().eval(), (x,))
    program = delegraph.lower(exported, backends=backends)
    tolerance = 0.05 if backends else 1e-5
    save_and_expect_right(
        program,
        exported.module(),
        (x,),
        folder=tmp_path,
        rtol=tolerance,
        atol=tolerance,
    )


@pytest.mark.slow
def test_two_methods_of_quantized_weights_run_in_both_runtimes(tmp_path):
    torch.manual_seed(0)
    x = torch.randn(2, 32)
    first = quantize_by_xnnpack(is_per_channel=True)(linear().eval(), (x,))
    second = quantize_by_xnnpack(is_per_channel=False)(linear().eval(), (x,))
    program = delegraph.lower({"first": first, "second": second}, backends=[])
    program.save(tmp_path / "program.pte")
    for name, exported in (("first", first), ("second", second)):
        expect_right_in_both(
            tmp_path / "program.pte", exported.module(), (x,), method=name
        )

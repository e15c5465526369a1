"""XNNPACK through ExecuTorch: results, delegates, and files for both runtimes."""

import delegraph
import pytest
import torch
import torch.nn.functional as F
from torch import nn

pytest.importorskip("executorch")
pytest.importorskip("torchao")

from delegraph.engine import find_failing_part
from delegraph_engines import quietly

from plugins.executorch_backend.tests.support.both_runtimes import save_and_expect_right

with quietly():
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e


class Program(nn.Module):
    """Calls a function with the module, which has the given layers, and its inputs."""

    def __init__(self, function, **layers):
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, *inputs):
        return self.function(self, *inputs)


def with_statistics(norm):
    """Return a batch norm with random statistics."""
    if norm.affine:
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    return norm


def as_list(result):
    return list(result) if isinstance(result, (tuple, list)) else [result]


def assert_program_and_file_give(program, expected, inputs, path, tolerance):
    """Compare the lowered program, and its file in both runtimes, with ``expected``."""
    torch.manual_seed(1)
    wanted = as_list(expected(*inputs))
    torch.testing.assert_close(
        as_list(program(*inputs)), wanted, rtol=tolerance, atol=tolerance
    )
    save_and_expect_right(
        program, lambda *_: wanted, inputs, folder=path, rtol=tolerance, atol=tolerance
    )


def x(*shape):
    return torch.randn(shape)


def norm1(channels, **more):
    return with_statistics(nn.BatchNorm1d(channels, **more))


def norm2(channels, **more):
    return with_statistics(nn.BatchNorm2d(channels, **more))


def on_two_inputs(self, a, b):
    return self.first(self.layer(a)) + self.second(self.layer(b))


def on_one_input(self, a):
    return self.first(self.layer(a)) * self.second(self.layer(a * 2))


def norms_alone(self, a):
    return self.first(a) * self.second(a)


def norms_with_one_weight():
    first = norm2(3)
    second = norm2(3)
    second.weight = first.weight
    return Program(norms_alone, first=first, second=second)


def convolutions_with_one_weight():
    first = nn.Conv2d(3, 4, 3)
    second = nn.Conv2d(3, 4, 3)
    second.weight = first.weight

    def function(self, a):
        return self.one(self.first(a)) + self.two(self.second(a))

    return Program(function, first=first, second=second, one=norm2(4), two=norm2(4))


def names_that_differ_in_a_dot():
    inner = nn.Module()
    inner.conv = nn.Conv2d(3, 4, 3)

    def function(self, a):
        return self.one(self.a.conv(a)) + self.two(self.a_conv(a))

    return Program(
        function, a=inner, a_conv=nn.Conv2d(3, 4, 3), one=norm2(4), two=norm2(4)
    )


def with_two_norms(layer, first, second, function=on_two_inputs):
    return Program(function, layer=layer, first=first, second=second)


IMAGE = (1, 3, 8, 8)
NORM_ROWS = {
    "convolution": (
        lambda: with_two_norms(nn.Conv2d(3, 4, 3), norm2(4), norm2(4)),
        [IMAGE, IMAGE],
    ),
    "convolution without bias": (
        lambda: with_two_norms(nn.Conv2d(3, 4, 3, bias=False), norm2(4), norm2(4)),
        [IMAGE, IMAGE],
    ),
    "transposed convolution": (
        lambda: with_two_norms(nn.ConvTranspose2d(3, 4, 3), norm2(4), norm2(4)),
        [IMAGE, IMAGE],
    ),
    "convolution in one dimension": (
        lambda: with_two_norms(nn.Conv1d(3, 4, 3), norm1(4), norm1(4)),
        [(1, 3, 8), (2, 3, 8)],
    ),
    "linear layer": (
        lambda: with_two_norms(nn.Linear(6, 4), norm1(4), norm1(4)),
        [(3, 6), (3, 6)],
    ),
    "linear layer without bias": (
        lambda: with_two_norms(nn.Linear(6, 4, bias=False), norm1(4), norm1(4)),
        [(3, 6), (3, 6)],
    ),
    "norms without weights": (
        lambda: Program(
            norms_alone, first=norm2(3, affine=False), second=norm2(3, affine=False)
        ),
        [IMAGE],
    ),
    "convolution and norms without weights": (
        lambda: with_two_norms(
            nn.Conv2d(3, 4, 3),
            norm2(4, affine=False),
            norm2(4, affine=False),
            on_one_input,
        ),
        [IMAGE],
    ),
    "norms with one weight": (norms_with_one_weight, [IMAGE]),
    "convolutions with one weight": (convolutions_with_one_weight, [IMAGE]),
    "names that differ in a dot": (names_that_differ_in_a_dot, [IMAGE]),
    "convolution twice without norms": (
        lambda: Program(
            lambda self, a, b: self.layer(a) + self.layer(b), layer=nn.Conv1d(3, 4, 3)
        ),
        [(1, 3, 8), (1, 3, 8)],
    ),
    "convolution used beside its norm": (
        lambda: Program(
            lambda s, a: (s.norm(s.layer(a)), s.layer(a).relu()),
            layer=nn.Conv2d(3, 4, 3),
            norm=norm2(4),
        ),
        [IMAGE],
    ),
}


@pytest.mark.parametrize(("make", "shapes"), NORM_ROWS.values(), ids=NORM_ROWS)
def test_layers_shared_by_batch_norms_equal_eager(make, shapes, tmp_path):
    torch.manual_seed(0)
    module = make().eval()
    inputs = tuple(map(torch.randn, shapes))
    program = delegraph.lower(module, inputs, backends=["xnnpack"])
    assert len(program.delegates) == 1
    assert program.report.host_operators == 0
    assert_program_and_file_give(program, module, inputs, tmp_path, 1e-4)


def quantize_for_xnnpack(module, inputs, **config):
    """Quantize a program with ExecuTorch's quantizer for XNNPACK."""
    module = torch.export.export(module.eval(), inputs).module()
    prepared = prepare_pt2e(
        module,
        XNNPACKQuantizer().set_global(get_symmetric_quantization_config(**config)),
    )
    prepared(*inputs)
    return torch.export.export(convert_pt2e(prepared), inputs)


DYNAMIC_ROWS = {
    "linear": (lambda: nn.Linear(16, 8), (2, 16)),
    "linear without bias": (lambda: nn.Linear(16, 8, bias=False), (2, 16)),
    "two linear layers of rank three": (
        lambda: nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)),
        (2, 5, 16),
    ),
    "convolution": (lambda: nn.Conv2d(3, 8, 3), (1, 3, 8, 8)),
}


@pytest.mark.parametrize(("make", "shape"), DYNAMIC_ROWS.values(), ids=DYNAMIC_ROWS)
def test_dynamically_quantized_layers_equal_eager(make, shape, tmp_path):
    torch.manual_seed(0)
    inputs = (torch.randn(shape),)
    exported = quantize_for_xnnpack(
        make(), inputs, is_per_channel=True, is_dynamic=True
    )
    program = delegraph.lower(exported, backends=["xnnpack"])

    assert len(program.delegates) == 1
    assert program.report.host_operators == 0
    assert_program_and_file_give(program, exported.module(), inputs, tmp_path, 0.02)


LOADABLE_ROWS = {
    "padding": (lambda: Program(lambda self, a: F.pad(a, (1, 2)) * 2), (2, 3, 4)),
    "convolution with padding in words": (
        lambda: nn.Conv1d(3, 4, 3, padding="same"),
        (1, 3, 8),
    ),
    "linear layers of rank three": (
        lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)),
        (1, 3, 8),
    ),
    "linear of a transposed matrix": (
        lambda: Program(lambda s, a: s.layer(a.mT), layer=nn.Linear(3, 4)),
        (1, 3, 8),
    ),
}


@pytest.mark.parametrize(("make", "shape"), LOADABLE_ROWS.values(), ids=LOADABLE_ROWS)
def test_programs_quantized_for_tosa_load(make, shape, tmp_path):
    tosa = pytest.importorskip("delegraph_tosa.quantizer")
    torch.manual_seed(0)
    inputs = (torch.randn(shape),)
    prepared = prepare_pt2e(
        torch.export.export(make().eval(), inputs).module(), tosa.TOSAQuantizer()
    )
    prepared(*inputs)
    exported = torch.export.export(convert_pt2e(prepared), inputs)
    program = delegraph.lower(exported, backends=["xnnpack"])

    assert_program_and_file_give(program, exported.module(), inputs, tmp_path, 0.05)


def test_a_part_of_a_quantized_group_computes_right_values(tmp_path, monkeypatch):
    """The partition of relu, quantize and dequantize is divided after relu."""
    tosa = pytest.importorskip("delegraph_tosa.quantizer")
    monkeypatch.setattr(
        find_failing_part,
        "inseparable_groups",
        lambda calls: [[call] for call in calls],
    )
    torch.manual_seed(0)
    make, shape = LOADABLE_ROWS["linear layers of rank three"]
    inputs = (torch.randn(shape),)
    exported = torch.export.export(make().eval(), inputs)
    prepared = prepare_pt2e(exported.module(), tosa.TOSAQuantizer())
    prepared(*inputs)
    quantized = torch.export.export(convert_pt2e(prepared), inputs)
    program = delegraph.lower(quantized, backends=["xnnpack"])

    assert "compiles only as" in str(program.report)
    assert_program_and_file_give(program, quantized.module(), inputs, tmp_path, 1e-3)


FLOAT_CONVOLUTIONS = {
    "convolution": lambda: nn.Conv1d(3, 4, 3),
    "transposed convolution": lambda: nn.ConvTranspose1d(3, 4, 3),
}


@pytest.mark.parametrize("make", FLOAT_CONVOLUTIONS.values(), ids=FLOAT_CONVOLUTIONS)
def test_a_float_convolution_before_a_quantize_is_delegated(make, tmp_path):
    torch.manual_seed(0)
    quantize = torch.ops.quantized_decomposed.quantize_per_tensor
    module = Program(
        lambda self, a: quantize(self.layer(a), 0.1, 0, -128, 127, torch.int8),
        layer=make(),
    )
    inputs = (torch.randn(1, 3, 8),)
    program = delegraph.lower(module.eval(), inputs, backends=["xnnpack"])

    assert len(program.delegates) == 1
    assert program.report.host_operators == 1
    # a result in the middle between two integers may be rounded to either
    save_and_expect_right(program, module, inputs, folder=tmp_path, rtol=0, atol=1)


class Cell(nn.Module):
    """Steps of a recurrent cell."""

    def __init__(self, cell, steps):
        super().__init__()
        self.cell = cell
        self.steps = steps

    def forward(self, x, *state):
        for step in range(self.steps):
            given = state if len(state) == 2 else state[0]
            result = self.cell(x[:, step], given)
            state = result if isinstance(result, tuple) else (result,)
        return state


CELL_ROWS = {
    "LSTM": (lambda: nn.LSTMCell(4, 8), 2, 1, 2),
    "LSTM without bias": (lambda: nn.LSTMCell(4, 8, bias=False), 2, 1, 2),
    "LSTM of three steps": (lambda: nn.LSTMCell(4, 8), 2, 3, 4),
    "GRU": (lambda: nn.GRUCell(4, 8), 1, 1, 2),
    "GRU of three steps": (lambda: nn.GRUCell(4, 8), 1, 3, 4),
    "RNN": (lambda: nn.RNNCell(4, 8), 1, 1, 1),
    "RNN with relu": (lambda: nn.RNNCell(4, 8, nonlinearity="relu"), 1, 1, 1),
}


@pytest.mark.parametrize(
    ("make", "states", "steps", "delegates"), CELL_ROWS.values(), ids=CELL_ROWS
)
def test_recurrent_cells_become_as_few_delegates_as_in_executorch(
    make, states, steps, delegates, tmp_path
):
    torch.manual_seed(0)
    module = Cell(make(), steps).eval()
    inputs = (torch.randn(2, steps, 4), *(torch.randn(2, 8) for _ in range(states)))
    program = delegraph.lower(module, inputs, backends=["xnnpack"])
    assert len(program.delegates) == delegates
    assert_program_and_file_give(program, module, inputs, tmp_path, 1e-5)


def test_a_quantized_linear_layer_of_a_cell_is_delegated(tmp_path):
    torch.manual_seed(0)
    inputs = (torch.randn(2, 1, 4), torch.randn(2, 8))
    exported = quantize_for_xnnpack(
        Cell(nn.GRUCell(4, 8), 1), inputs, is_per_channel=True
    )
    program = delegraph.lower(exported, backends=["xnnpack"])

    assert len(program.delegates) <= 2
    assert_program_and_file_give(program, exported.module(), inputs, tmp_path, 0.05)

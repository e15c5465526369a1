"""Quantized small networks are close to floats, and errors name the cause."""

from __future__ import annotations

import itertools

import delegraph
import pytest
import torch
from torch import nn

pytest.importorskip("torchao")
from delegraph_quantize import quantize

pytestmark = pytest.mark.filterwarnings("ignore")  # of torchao


def signal_to_noise(result, wanted):
    noise = (result - wanted).square().sum()
    return float(10 * torch.log10(wanted.square().sum() / noise.clamp_min(1e-20)))


def norm(dimensions, channels):
    """A batch norm with statistics and weights."""
    made = getattr(nn, f"BatchNorm{dimensions}d")(channels)
    with torch.no_grad():
        made.running_mean.normal_()
        made.running_var.uniform_(0.5, 2)
        made.weight.uniform_(0.5, 2)
        made.bias.normal_()
    return made


def convolution(dimensions, transposed, groups, bias, normalized, activated):
    kind = getattr(nn, f"Conv{'Transpose' if transposed else ''}{dimensions}d")
    layers = [kind(4, 8, 3, padding=1, groups=groups, bias=bias)]
    if normalized:
        layers.append(norm(dimensions, 8))
    if activated:
        layers.append(nn.ReLU())
    return nn.Sequential(*layers).eval()


KINDS = list(
    itertools.product(
        (1, 2, 3), (False, True), (1, 2, 4), (True, False), (True, False), (True, False)
    )
)


def is_slow(kind):
    return kind[:3] != (2, True, 2) and kind != (1, True, 4, True, True, False)


@pytest.mark.parametrize(
    "kind",
    [pytest.param(k, marks=[pytest.mark.slow] * is_slow(k)) for k in KINDS],
    ids=str,
)
def test_convolutions_with_batch_norms(kind):
    torch.manual_seed(0)
    model = convolution(*kind)
    x = torch.randn(2, 4, *[6] * kind[0])
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    program = quantize(model, [(x,)], backend="tosa")
    expected = model(x)
    assert signal_to_noise(program.module()(x), expected) > 25
    assert not any("batch_norm" in str(node.target) for node in program.graph.nodes)
    assert all(
        torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items()
    )

    lowered = delegraph.lower(program, (x,), backends=["tosa"], require_full=True)
    assert signal_to_noise(lowered(x), expected) > 25


class Decoder(nn.Module):
    """Depthwise transposed convolutions between other layers, as in image decoders."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.up = nn.ConvTranspose2d(
            8, 8, 4, stride=2, padding=1, output_padding=1, groups=8, bias=False
        )
        self.norm = norm(2, 8)
        self.last = nn.ConvTranspose2d(8, 4, 3, stride=2, dilation=2, groups=4)

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.up(torch.relu(self.first(x))))))


class TakenTwice(nn.Module):
    """Returns the result of a convolution with and without its batch norm."""

    def __init__(self, transposed=False, groups=1):
        super().__init__()
        kind = nn.ConvTranspose2d if transposed else nn.Conv2d
        self.conv = kind(4, 4, 3, groups=groups)
        self.norm = norm(2, 4)

    def forward(self, x):
        y = self.conv(x)
        return self.norm(y) + y * 2


class TwoNorms(TakenTwice):
    """One convolution followed by two batch norms."""

    def __init__(self, transposed=False, groups=1):
        super().__init__(transposed, groups)
        self.other = norm(2, 4)

    def forward(self, x):
        y = self.conv(x)
        return self.norm(y) - self.other(y)


class CalledTwice(TakenTwice):
    """Calls one convolution twice, once followed by a batch norm."""

    def forward(self, x):
        return self.conv(torch.relu(self.norm(self.conv(x))))


class SharedBias(TakenTwice):
    """Two convolutions with one bias, each followed by a batch norm."""

    def __init__(self, transposed=False, groups=1):
        super().__init__(transposed, groups)
        self.second = type(self.conv)(4, 4, 3, groups=groups)
        self.second.bias = self.conv.bias
        self.other = norm(2, 4)

    def forward(self, x):
        return self.other(self.second(torch.relu(self.norm(self.conv(x)))))


class OfTheBatch(TakenTwice):
    """A batch norm that uses the statistics of the batch."""

    def forward(self, x):
        return nn.functional.batch_norm(
            self.conv(x), None, None, self.norm.weight, self.norm.bias, training=True
        )


@pytest.mark.parametrize(
    ("transposed", "groups"), [(False, 1), (True, 1), (False, 2), (True, 2)]
)
@pytest.mark.parametrize(
    "kind", [TakenTwice, TwoNorms, CalledTwice, SharedBias, OfTheBatch]
)
def test_batch_norms_of_shared_convolutions(kind, transposed, groups):
    torch.manual_seed(0)
    model = kind(transposed, groups).eval()
    x = torch.randn(2, 4, 6, 6)
    program = quantize(model, [(x,)], backend="tosa")
    assert signal_to_noise(program.module()(x), model(x)) > 22


def test_a_decoder_with_depthwise_transposed_convolutions():
    torch.manual_seed(0)
    model = Decoder().eval()
    x = torch.randn(1, 3, 6, 6)
    program = quantize(model, [(x,)], backend="tosa")
    assert signal_to_noise(program.module()(x), model(x)) > 22
    lowered = delegraph.lower(program, (x,), backends=["tosa"], require_full=True)
    assert signal_to_noise(lowered(x), program.module()(x)) > 35


class Broken(nn.Module):
    """An observer that fails when it sees a value."""

    @classmethod
    def with_args(cls, **settings):
        return cls

    def forward(self, x):
        raise RuntimeError("the observer is broken")


def test_errors_in_observers_name_the_quantizer():
    from delegraph_tosa.quantizer import TOSAQuantizer
    from torchao.quantization.pt2e.quantizer import (
        QuantizationAnnotation,
        QuantizationSpec,
    )

    class BrokenQuantizer(TOSAQuantizer):
        def annotate(self, model):
            spec = QuantizationSpec(
                torch.int8, Broken, -128, 127, torch.per_tensor_affine
            )
            for node in model.graph.find_nodes(
                op="call_function", target=torch.ops.aten.linear.default
            ):
                node.meta["quantization_annotation"] = QuantizationAnnotation(
                    {node.args[0]: spec}, spec, True
                )
            return model

    model = nn.Linear(2, 2).eval()
    with pytest.raises(
        delegraph.DelegraphError, match="BrokenQuantizer .*the observer is broken"
    ) as failed:
        quantize(model, [(torch.ones(1, 2),)], quantizer=BrokenQuantizer())
    assert failed.value.code == "plugin-failed"
    assert "batch" not in str(failed.value)


def test_a_batch_that_no_program_takes_is_named():
    model = nn.Linear(2, 2).eval()
    batches = [(torch.ones(1, 2),), (torch.ones(1, 3),)]
    with pytest.raises(delegraph.errors.InputError, match="calibration batch 1"):
        quantize(model, batches, backend="tosa", dynamic_shapes=None)


def test_errors_of_the_calibration_data_are_raised_unchanged():
    def load():
        yield (torch.ones(1, 2),)
        raise OSError("no such picture")

    with pytest.raises(OSError, match="no such picture"):
        quantize(nn.Linear(2, 2).eval(), load(), backend="tosa")


CELLS = {
    "LSTM": lambda bias: nn.LSTMCell(4, 8, bias=bias),
    "GRU": lambda bias: nn.GRUCell(4, 8, bias=bias),
    "tanh": lambda bias: nn.RNNCell(4, 8, bias=bias),
    "relu": lambda bias: nn.RNNCell(4, 8, bias=bias, nonlinearity="relu"),
}


class OneCell(nn.Module):
    """A cell with its states as inputs and outputs."""

    def __init__(self, cell):
        super().__init__()
        self.cell = cell

    def forward(self, x, hidden, cell=None):
        return self.cell(x[:, 0], hidden if cell is None else (hidden, cell))


class Steps(OneCell):
    """A model that calls a cell for each of three steps."""

    def __init__(self, cell):
        super().__init__(cell)
        self.last = nn.Linear(8, 2)

    def forward(self, x, hidden, cell=None):
        for k in range(3):
            made = self.cell(x[:, k], hidden if cell is None else (hidden, cell))
            hidden, cell = made if cell is not None else (made, None)
        return self.last(hidden)


class WithoutState(Steps):
    """A cell that starts with zeros."""

    def forward(self, x, *states):
        made = self.cell(x[:, 0])
        return self.last(made[0] if isinstance(made, tuple) else made)


class Vector(OneCell):
    """A cell for a vector without a batch."""

    def forward(self, x, hidden, cell=None):
        return self.cell(x[0, 0], hidden[0] if cell is None else (hidden[0], cell[0]))


def cell_and_inputs(kind, wrapper, bias=True):
    torch.manual_seed(0)
    model = wrapper(CELLS[kind](bias)).eval()
    states = [torch.rand(1, 8) - 0.5 for _ in range(2 if kind == "LSTM" else 1)]
    batches = [(torch.randn(1, 3, 4), *states) for _ in range(4)]
    return model, batches


def as_list(result):
    return list(result) if isinstance(result, (tuple, list)) else [result]


@pytest.mark.parametrize("bits", [8, pytest.param(16, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "wrapper",
    [
        OneCell,
        Steps,
        *(pytest.param(w, marks=pytest.mark.slow) for w in (WithoutState, Vector)),
    ],
)
@pytest.mark.parametrize("kind", CELLS)
def test_cells_of_recurrent_networks_are_quantized(kind, wrapper, bits):
    from delegraph_tosa.quantizer import Precision, TOSAQuantizer

    model, batches = cell_and_inputs(kind, wrapper)
    precision = Precision(activations=torch.int8 if bits == 8 else torch.int16)
    program = quantize(model, batches, quantizer=TOSAQuantizer(precision))
    assert not any("_cell.default" in str(node.target) for node in program.graph.nodes)

    options = {"tosa": {"spec": "TOSA-1.0+INT"}} if bits == 8 else None
    lowered = delegraph.lower(program, batches[0], backends=["tosa"], options=options)
    # floats at the borders of the program are left to the host
    assert lowered.report.host_operators <= len(batches[0]) + 2

    for batch in batches:
        quantized = as_list(program.module()(*batch))
        for result, expected in zip(quantized, as_list(model(*batch)), strict=True):
            assert signal_to_noise(result, expected) > 22
        for result, expected in zip(as_list(lowered(*batch)), quantized, strict=True):
            assert signal_to_noise(result, expected) > 40


@pytest.mark.parametrize("kind", CELLS)
def test_cells_without_bias_are_quantized(kind):
    model, batches = cell_and_inputs(kind, Steps, bias=False)
    program = quantize(model, batches, backend="tosa")
    assert signal_to_noise(program.module()(*batches[0]), model(*batches[0])) > 22


@pytest.mark.parametrize(
    "backend", ["iree", pytest.param("xnnpack", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("kind", CELLS)
def test_quantized_cells_on_other_backends(kind, backend):
    pytest.importorskip(
        {"iree": "iree.compiler", "xnnpack": "executorch.runtime"}[backend]
    )
    model, batches = cell_and_inputs(kind, OneCell)
    program = quantize(model, batches, backend="tosa")
    lowered = delegraph.lower(program, batches[0], backends=[backend])
    for result, expected in zip(
        as_list(lowered(*batches[0])),
        as_list(program.module()(*batches[0])),
        strict=True,
    ):
        assert signal_to_noise(result, expected) > 30

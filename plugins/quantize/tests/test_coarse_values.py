"""By default, ``quantize`` leaves calls in floats whose integers would be too coarse.

For example, eight bits of a spectrum leave few steps for its small values, and a
logarithm magnifies their errors.
"""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import delegraph
import pytest
import torch
from delegraph.errors import DelegraphWarning
from delegraph_quantize import recover_accuracy
from delegraph_quantize.coarse_values import MOST_BATCHES, SampleOfBatches
from torch import nn

BACKENDS = ("tosa", "xnnpack")


class LogMel(nn.Module):
    """A spectrogram with a logarithm, and a layer over it."""

    def __init__(self):
        super().__init__()
        self.bank = nn.Parameter(torch.rand(33, 8))
        self.head = nn.Linear(8, 4)

    def forward(self, wave):
        spectrum = torch.fft.rfft(wave)
        power = torch.view_as_real(spectrum).square().sum(-1)
        features = torch.log(power @ self.bank + 1e-6)
        return self.head(features)


def sounds(count, seed=0):
    """Return batches of one sound; every second sound is 30 times quieter."""
    generator = torch.Generator().manual_seed(seed)
    waves = [torch.randn(1, 64, generator=generator) for _ in range(count)]
    return [(wave * 30.0 ** -(k % 2),) for k, wave in enumerate(waves)]


def ratio(got, expected):
    """Return the signal-to-noise ratio in dB."""
    error = float((got - expected).square().sum())
    return 10 * math.log10(float(expected.square().sum()) / error)


def quantize_without_warning(*args, **kwargs):
    """Quantize; a warning about calls that stay in floats raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", DelegraphWarning)
        return delegraph.quantize(*args, **kwargs)


def log_mel():
    torch.manual_seed(0)
    return LogMel().eval().requires_grad_(False)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_log_that_stays_in_floats_is_named(backend):
    with pytest.warns(DelegraphWarning) as caught:
        delegraph.quantize(log_mel(), sounds(8), backend=backend)

    text = str(caught[0].message)
    assert "which stay in floats: log (test_coarse_values.py:" in text
    assert " after add, matmul" in text


@pytest.mark.parametrize("backend", BACKENDS)
def test_log_of_a_spectrum_survives_quantization(backend):
    model = log_mel()
    with pytest.warns(DelegraphWarning):
        quantized = delegraph.quantize(model, sounds(8), backend=backend)

    lowered = delegraph.lower(quantized, backends=[backend])

    for (wave,) in sounds(4, seed=1):
        assert ratio(lowered(wave), model(wave)) > 20


@pytest.mark.parametrize("backend", BACKENDS)
def test_log_of_a_spectrum_is_ruined_in_integers(backend):
    model = log_mel()

    integers = delegraph.quantize(model, sounds(8), backend=backend, floats=[])

    (quiet_wave,) = sounds(2, seed=1)[1]
    assert ratio(integers.module()(quiet_wave), model(quiet_wave)) < 10


@pytest.mark.parametrize("backend", BACKENDS)
def test_layers_after_a_log_stay_in_integers(backend):
    model = log_mel()
    with pytest.warns(DelegraphWarning, match="stay in floats"):
        quantized = delegraph.quantize(model, sounds(8), backend=backend)
    (layer,) = quantized.graph.find_nodes(
        op="call_function", target=torch.ops.aten.linear.default
    )
    features, weight = layer.args[:2]
    assert "dequantize_per_tensor" in str(features.target)
    assert "dequantize_per_channel" in str(weight.target)


def test_log_of_large_values_stays_in_integers():
    class Net(nn.Module):
        def forward(self, x):
            return torch.log(x)

    batches = [(torch.rand(2, 16) + 1,) for _ in range(4)]

    quantized = quantize_without_warning(Net(), batches, backend="tosa")
    (log,) = quantized.graph.find_nodes(
        op="call_function", target=torch.ops.aten.log.default
    )
    assert "dequantize" in str(log.args[0].target)


def test_the_only_call_of_a_program_is_quantized_with_a_warning():
    class Net(nn.Module):
        def forward(self, x):
            return torch.log(x)

    values = torch.tensor([[1e-5, 1e-3, 0.1, 10.0, 1000.0]])
    batches = [(values,), (values * 0.9,)]

    with pytest.warns(DelegraphWarning, match="has no others: log") as caught:
        quantized = delegraph.quantize(Net(), batches, backend="tosa")

    assert "stay in floats" not in str(caught[0].message)
    (log,) = quantized.graph.find_nodes(
        op="call_function", target=torch.ops.aten.log.default
    )
    assert "dequantize" in str(log.args[0].target)


def test_a_program_without_magnifying_calls_is_not_run_again(monkeypatch):
    """A second run of all batches would take time."""
    # the class that runs a program again
    monkeypatch.setattr("delegraph_quantize.coarse_values._Values", None)
    batches = [(torch.randn(2, 4),) for _ in range(3)]

    quantize_without_warning(nn.Linear(4, 4).eval(), batches)


class Detector(nn.Module):
    """Scores of boxes, of which the best come first."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 50)

    def forward(self, x):
        scores = torch.sigmoid(self.layer(x))
        return torch.topk(scores, 10)


def test_scores_before_a_sort_stay_in_floats():
    """In integers, many scores would be equal, and their order would be lost."""
    torch.manual_seed(0)
    model = Detector().eval()
    with torch.no_grad():
        model.layer.bias += 6  # the best scores are between 254/256 and 1
    batches = [(torch.randn(1, 8),) for _ in range(8)]
    with pytest.warns(DelegraphWarning, match=r"topk \(.*\) after sigmoid"):
        quantized = delegraph.quantize(model, batches, backend="tosa")
    integers = quantize_without_warning(model, batches, backend="tosa", floats=[])

    (x,) = batches[0]
    scores, _ = quantized.module()(x)
    scores_of_integers, _ = integers.module()(x)
    assert len(scores.unique()) > 2 * len(scores_of_integers.unique())
    lowered = delegraph.lower(quantized, backends=["tosa"])
    torch.testing.assert_close(lowered(x)[0], scores, rtol=0, atol=2e-3)


def test_a_sort_of_results_of_a_layer_is_quantized_without_warning():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 50)

        def forward(self, x):
            return torch.topk(self.layer(x).reshape(1, 50), 10)

    batches = [(torch.randn(1, 8),) for _ in range(4)]
    quantize_without_warning(Net().eval(), batches, backend="tosa")


def test_a_log_in_a_program_with_inplace_calls_stays_in_floats():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(8, 4)

        def forward(self, x):
            y = x.square()
            return self.head(torch.log(y + 1e-6).mul_(0.5).relu_())

    torch.manual_seed(0)
    batches = [(torch.randn(4, 8) * 10 ** (-k),) for k in range(4)]
    with pytest.warns(DelegraphWarning, match=r"stay in floats: log .* after"):
        delegraph.quantize(Net().eval(), batches, backend="tosa")


def test_recovered_code_quantizes_as_it_was_scored():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)).eval()
    batches = [(torch.randn(2, 4),) for _ in range(3)]

    found = recover_accuracy(model, batches, lambda program: 1.0, backend="tosa")

    # without it, the default could leave calls in floats
    assert "floats=[]," in found.code()


@pytest.mark.parametrize("count", [3, MOST_BATCHES, MOST_BATCHES + 1, 100])
def test_a_sample_spreads_evenly_over_all_batches(count):
    exported = torch.export.export(log_mel(), sounds(1)[0])
    sample = SampleOfBatches(exported)

    passed_on = list(sample.watch(range(count)))

    assert passed_on == list(range(count))
    assert min(count, MOST_BATCHES // 2) <= len(sample.kept) <= MOST_BATCHES
    step = sample.kept[1] - sample.kept[0]
    assert sample.kept == list(range(0, count, step))


def test_the_warning_names_the_line_of_the_user():
    lines = Path(__file__).read_text().splitlines()
    text = "        features = torch.log(power @ self.bank + 1e-6)"
    place = f"{Path(__file__).name}:{lines.index(text) + 1}"

    with pytest.warns(DelegraphWarning, match=rf"log \({place}\)"):
        delegraph.quantize(log_mel(), sounds(8), backend="tosa")


class Integrator(nn.Module):
    """A recurrent layer that sums up small inputs, and a layer over its last state."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.RNN(4, 4, batch_first=True)
        self.head = nn.Linear(4, 2)
        with torch.no_grad():
            self.rnn.weight_ih_l0.copy_(0.003 * torch.eye(4))
            self.rnn.weight_hh_l0.copy_(0.999 * torch.eye(4))
            self.rnn.bias_ih_l0.zero_()
            self.rnn.bias_hh_l0.zero_()

    def forward(self, x):
        _, last = self.rnn(x)
        return self.head(last[0])


def drifts(count):
    """Return inputs whose sums over 32 steps differ."""
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(count, 1, 1, 4, generator=generator)
    return [(mean + torch.randn(1, 32, 4, generator=generator),) for mean in means]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_state_that_integers_ruin_stays_in_floats(backend):
    torch.manual_seed(0)
    model = Integrator().eval().requires_grad_(False)
    with pytest.warns(DelegraphWarning, match=r"which stay in floats: rnn[;, ]"):
        quantized = delegraph.quantize(model, drifts(8), backend=backend)
    lowered = delegraph.lower(quantized, backends=[backend])
    integers = delegraph.quantize(model, drifts(8), backend=backend, floats=[]).module()

    inputs = [x for (x,) in drifts(4)]
    expected = torch.cat([model(x) for x in inputs])
    by_default = torch.cat([lowered(x) for x in inputs])
    in_integers = torch.cat([integers(x) for x in inputs])
    assert ratio(by_default, expected) > 20
    assert (by_default - expected).norm() < (in_integers - expected).norm() / 2


def test_calls_before_a_coarse_call_in_a_layer_in_floats_are_not_named():
    class LogOfIntegrator(Integrator):
        def forward(self, x):
            _, last = self.rnn(x)
            return torch.log(last[0].abs() + 1e-6), self.head(last[0])

    torch.manual_seed(0)
    model = LogOfIntegrator().eval().requires_grad_(False)
    # every second batch is 100 times quieter
    batches = [(x * 100.0 ** -(k % 2),) for k, (x,) in enumerate(drifts(8))]

    with pytest.warns(DelegraphWarning, match="which stay in floats: rnn") as warned:
        delegraph.quantize(model, batches, backend="tosa")

    (note,) = [str(w.message) for w in warned if "too coarse" in str(w.message)]
    # every state is too coarse for the logarithm, but states are not rounded any more
    assert "log (" in note
    assert "tanh" not in note


@pytest.mark.parametrize("vectors", [1, 2])
def test_norms_of_similar_vectors_stay_in_integers(vectors):
    class Embedding(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(64, 64)

        def forward(self, x):
            return nn.functional.normalize(self.layer(x))

    torch.manual_seed(0)
    batches = [(torch.randn(vectors, 64),) for _ in range(8)]

    quantize_without_warning(Embedding().eval(), batches, backend="tosa")


def test_a_recurrent_layer_of_few_steps_stays_in_integers():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(4, 8, batch_first=True)

        def forward(self, x):
            return self.gru(x)[0]

    torch.manual_seed(0)
    batches = [(torch.randn(1, 4, 4),) for _ in range(4)]
    quantize_without_warning(Net().eval(), batches, backend="tosa")

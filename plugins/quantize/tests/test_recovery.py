"""Calls that stay in floats, and the search for those that a task needs."""

from pathlib import Path

import delegraph
import delegraph_quantize
import pytest
import torch
from delegraph.errors import InputError, OptionError
from torch import nn

aten = torch.ops.aten


class Tones(nn.Module):
    """Tells two tones apart by the logarithms of their powers, at any loudness."""

    def __init__(self):
        super().__init__()
        steps = torch.arange(64.0)
        angles = torch.outer(torch.arange(1.0, 17.0), steps) * torch.pi / 32
        self.register_buffer("waves", torch.cat([angles.cos(), angles.sin()]))
        self.hidden = nn.Linear(16, 16)
        self.classes = nn.Linear(16, 4)

    def forward(self, x):
        spectrum = nn.functional.linear(x, self.waves)
        power = spectrum.pow(2)
        power = power[:, :16] + power[:, 16:]
        loudness = torch.log(power + 1e-5)
        return self.classes(self.hidden(loudness).relu())


def tones(count, seed):
    """Return signals [count, 64] of four tones, with a loudness over 50 dB."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 4
    frequency = labels[:, None] * 2 + 3
    phase = 6.28 * torch.rand(count, 1, generator=generator)
    wave = (torch.arange(64) * frequency * torch.pi / 32 + phase).sin()
    loudness = 10 ** (-2.5 * torch.rand(count, 1, generator=generator))
    noise = torch.randn(count, 64, generator=generator)
    return loudness * (wave + 0.5 * noise), labels


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    net = Tones()
    signals, labels = tones(512, 1)
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    for _ in range(120):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(signals), labels).backward()
        optimizer.step()
    return net.eval().requires_grad_(False)


def calibration():
    return [(signal[None],) for signal in tones(16, 2)[0]]


class Task:
    """The share of tones that are told apart; it counts its calls."""

    def __init__(self):
        self.signals, self.labels = tones(64, 3)
        self.calls = 0

    def __call__(self, program):
        self.calls += 1
        pairs = zip(self.signals, self.labels, strict=True)
        right = [program(x[None]).argmax() == label for x, label in pairs]
        return sum(map(float, right)) / len(right)


HAND_MADE = ("aten.slice", "aten.pow", "aten.add", "aten.log")


def test_a_fix_is_found_within_ten_evaluations(model):
    task = Task()
    found = delegraph_quantize.recover_accuracy(
        model, calibration(), task, backend="tosa"
    )
    assert task.calls == len(found.trials) + 1 <= 10
    by_hand = delegraph.quantize(model, calibration(), backend="tosa", floats=HAND_MADE)
    best = task(by_hand.module(check_guards=False))
    assert best - found.integers > 0.2
    assert found.score - found.integers >= 0.9 * (best - found.integers)
    assert task(found.program.module(check_guards=False)) == found.score
    # the layers with weights stay in integers
    assert not {"hidden", "classes"} & {*found.floats}


def test_the_code_of_a_fix_can_be_pasted(model):
    task = Task()
    found = delegraph_quantize.recover_accuracy(
        model, calibration(), task, backend="tosa"
    )
    assert all(
        item.startswith("test_recovery.py:") or item in ("hidden", "classes")
        for item in found.floats
    )
    names = {"delegraph": delegraph, "model": model, "batches": calibration()}
    exec(found.code(), names)
    assert task(names["quantized"].module(check_guards=False)) == found.score
    text = found.to_text()
    assert found.code() in text and f"all in integers {found.integers:.6g}" in text


def test_tensors_are_ranked_by_their_own_loss(model):
    found = delegraph_quantize.recover_accuracy(
        model, calibration(), Task(), backend="tosa", evaluations=3
    )
    noisiest = [found.places[loss.layer].operator for loss in found.losses[:3]]
    assert {"aten.pow.Tensor_Scalar", "aten.add.Tensor"} & {*noisiest}
    bits = {found.places[loss.layer].operator: loss.bits for loss in found.losses}
    assert bits["aten.pow.Tensor_Scalar"] < 4 < bits["aten.log.default"]


def test_nothing_stays_in_floats_without_a_loss():
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    batches = [(torch.randn(2, 4),) for _ in range(4)]
    found = delegraph_quantize.recover_accuracy(
        net, batches, lambda program: 1.0, backend="tosa"
    )
    assert found.floats == () and len(found.trials) == 1
    with pytest.raises(InputError, match="at least 3 evaluations, not 2"):
        delegraph_quantize.recover_accuracy(net, batches, len, evaluations=2)


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
        self.second = nn.Conv2d(4, 4, 3)

    def forward(self, x):
        x = self.first(x)
        x = torch.tanh(x)
        return self.second(x).sigmoid()


def quantized_tensors(program):
    """Return the calls with a quantized result, and ``conv2d.weight`` of weights."""
    found = set()
    for node in program.graph.nodes:
        users = [str(user.target) for user in node.users]
        if any(".quantize_per_tensor" in user for user in users):
            found.add(node.name)
        if "conv2d" in str(node.target) and "dequantize" in str(node.args[1].target):
            found.add(f"{node.name}.weight")
    return found


def line_of(text):
    lines = Path(__file__).read_text().splitlines()
    [number] = [k for k, line in enumerate(lines, 1) if line.strip() == text]
    return f"test_recovery.py:{number}"


EVERYTHING = {"x", "relu", "tanh", "conv2d_1", "sigmoid"}
EVERYTHING |= {"conv2d.weight", "conv2d_1.weight"}
SECOND = line_of("return self.second(x).sigmoid()")


@pytest.mark.parametrize(
    "items, in_floats",
    [
        ([], set()),
        ([aten.tanh.default, "first"], {"x", "relu", "conv2d.weight"}),
        (["aten.tanh", "aten.relu.default"], {"x", "relu", "conv2d.weight"}),
        (["tanh", "second"], {"tanh", "conv2d_1.weight"}),
        ("second", {"conv2d_1.weight"}),
        ([f"tests/{SECOND}"], {"conv2d_1", "conv2d_1.weight", "sigmoid"}),
    ],
)
def test_selected_calls_stay_in_floats(items, in_floats):
    batches = [(torch.randn(1, 3, 8, 8),) for _ in range(2)]
    program = delegraph.quantize(Blocks().eval(), batches, backend="tosa", floats=items)
    assert quantized_tensors(program) == EVERYTHING - in_floats


def test_calls_stay_in_floats_with_the_quantizer_of_xnnpack():
    pytest.importorskip("executorch")
    batches = [(torch.randn(1, 3, 8, 8),) for _ in range(2)]
    net = Blocks().eval()
    program = delegraph.quantize(net, batches, backend="xnnpack", floats=["second"])
    weights = {"conv2d.weight", "conv2d_1.weight"} & quantized_tensors(program)
    assert weights == {"conv2d.weight"}
    lowered = delegraph.lower(program, backends=["xnnpack"])
    assert lowered.verify(*batches[0]).agrees(0.02)


def test_items_without_calls_are_refused():
    batches = [(torch.randn(1, 3, 8, 8),)]
    net = Blocks().eval()
    with pytest.raises(OptionError, match="no call of the program is 'secnd'.*second"):
        delegraph.quantize(net, batches, backend="tosa", floats=["secnd"])
    with pytest.raises(OptionError, match="floats has 7"):
        delegraph.quantize(net, batches, backend="tosa", floats=[7])
    everything = ["first", "second", "tanh", "sigmoid"]
    with pytest.raises(InputError, match="all calls are left in floats"):
        delegraph.quantize(net, batches, backend="tosa", floats=everything)

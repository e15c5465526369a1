"""``quantize`` leaves selected calls in floats; ``recover_accuracy`` searches for them.

Its search is scored by a task of the user.
"""

from pathlib import Path

import delegraph
import pytest
import torch
from delegraph.errors import InputError, OptionError
from delegraph_quantize import recover_accuracy
from torch import nn
from torch._higher_order_ops.while_loop import while_loop
from torch.export import Dim

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


class Tones(nn.Module):
    """Classifies four tones of any loudness by the logarithms of their powers."""

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
    """Scores a program by the share of tones that it classifies; counts its calls."""

    def __init__(self):
        self.signals, self.labels = tones(64, 3)
        self.calls = 0

    def __call__(self, program):
        self.calls += 1
        pairs = zip(self.signals, self.labels, strict=True)
        right = [program(x[None]).argmax() == label for x, label in pairs]
        return sum(map(float, right)) / len(right)


@pytest.fixture(scope="module")
def task():
    return Task()


@pytest.fixture(scope="module")
def found(model, task):
    """The result of a search for ``Tones``."""
    return recover_accuracy(model, calibration(), task, backend="tosa")


def test_a_search_takes_at_most_ten_evaluations(model):
    task = Task()

    found = recover_accuracy(model, calibration(), task, backend="tosa")

    # the model itself is evaluated too
    assert task.calls == len(found.trials) + 1
    assert task.calls <= 10


# the calls that an expert would leave in floats
CHOSEN_BY_HAND = ("aten.slice", "aten.pow", "aten.add", "aten.log")


def test_a_search_recovers_most_of_the_possible_accuracy(model, task, found):
    by_hand = delegraph.quantize(
        model, calibration(), backend="tosa", floats=CHOSEN_BY_HAND
    )
    possible_gain = task(by_hand.module(check_guards=False)) - found.integers
    assert possible_gain > 0.2

    assert found.score - found.integers >= 0.9 * possible_gain
    assert task(found.program.module(check_guards=False)) == found.score


def test_layers_with_weights_stay_in_integers_if_possible(found):
    assert not {"hidden", "classes"} & {*found.floats}


def test_the_code_of_a_result_reproduces_its_score(model, task, found):
    names = {"delegraph": delegraph, "model": model, "batches": calibration()}

    exec(found.code(), names)

    assert task(names["quantized"].module(check_guards=False)) == found.score


def test_a_result_names_lines_or_modules(found):
    for item in found.floats:
        assert item.startswith("test_recovery.py:") or item in ("hidden", "classes")


def test_the_text_of_a_result_has_its_code_and_scores(found):
    text = found.to_text()

    assert found.code() in text
    assert f"all in integers {found.integers:.6g}" in text


def test_tensors_are_ranked_by_their_own_loss(model):
    found = recover_accuracy(
        model, calibration(), Task(), backend="tosa", evaluations=3
    )

    noisiest = {found.places[loss.layer].operator for loss in found.losses[:3]}
    assert {"aten.pow.Tensor_Scalar", "aten.add.Tensor"} & noisiest
    bits = {found.places[loss.layer].operator: loss.bits for loss in found.losses}
    assert bits["aten.pow.Tensor_Scalar"] < 4 < bits["aten.log.default"]


def test_nothing_stays_in_floats_if_integers_lose_nothing():
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    batches = [(torch.randn(2, 4),) for _ in range(4)]

    found = recover_accuracy(net, batches, lambda program: 1.0, backend="tosa")

    assert found.floats == ()
    assert len(found.trials) == 1


@pytest.mark.parametrize(
    "task, options, message",
    [
        (len, {"evaluations": 2}, "at least 3 evaluations, not 2"),
        (0.9, {}, "must be a function of a program, not 0.9"),
    ],
)
def test_searches_with_wrong_arguments_are_refused(task, options, message):
    batches = [(torch.randn(2, 4),) for _ in range(4)]

    with pytest.raises(InputError, match=message):
        recover_accuracy(nn.Linear(4, 4).eval(), batches, task, **options)


def test_searches_with_one_tensor_as_batches_are_refused():
    with pytest.raises(InputError, match="must be a series of batches, not Tensor"):
        recover_accuracy(nn.Linear(4, 4).eval(), torch.randn(4, 2, 4), len)


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
    """Return the names of calls with a quantized result.

    A quantized weight of a call ``conv2d`` is in it as ``conv2d.weight``.
    """
    found = set()
    for node in program.graph.nodes:
        users = [str(user.target) for user in node.users]
        if any(".quantize_per_tensor" in user for user in users):
            found.add(node.name)
        if "conv2d" in str(node.target) and "dequantize" in str(node.args[1].target):
            found.add(f"{node.name}.weight")
    return found


def line_of(text):
    """Return the item for ``floats`` of a line of this file."""
    lines = Path(__file__).read_text().splitlines()
    [number] = [k for k, line in enumerate(lines, 1) if line.strip() == text]
    return f"test_recovery.py:{number}"


TENSORS_OF_BLOCKS = {
    "x",
    "relu",
    "tanh",
    "conv2d_1",
    "sigmoid",
    "conv2d.weight",
    "conv2d_1.weight",
}
LINE_OF_SECOND = line_of("return self.second(x).sigmoid()")


@pytest.mark.parametrize(
    "items, in_floats",
    [
        ([], set()),
        ([aten.tanh.default, "first"], {"x", "relu", "conv2d.weight"}),
        (aten.sigmoid.default, {"sigmoid"}),
        (aten.sigmoid, {"sigmoid"}),
        (["aten.tanh", "aten.relu.default"], {"x", "relu", "conv2d.weight"}),
        (["tanh", "second"], {"tanh", "conv2d_1.weight"}),
        ("second", {"conv2d_1.weight"}),
        ([f"tests/{LINE_OF_SECOND}"], {"conv2d_1", "conv2d_1.weight", "sigmoid"}),
    ],
)
def test_selected_calls_stay_in_floats(items, in_floats):
    batches = [(torch.randn(1, 3, 8, 8),) for _ in range(2)]

    program = delegraph.quantize(Blocks().eval(), batches, backend="tosa", floats=items)

    assert quantized_tensors(program) == TENSORS_OF_BLOCKS - in_floats


def test_xnnpacks_quantizer_leaves_selected_calls_in_floats():
    pytest.importorskip("executorch")
    batches = [(torch.randn(1, 3, 8, 8),) for _ in range(2)]
    net = Blocks().eval()

    program = delegraph.quantize(net, batches, backend="xnnpack", floats=["second"])

    weights = {"conv2d.weight", "conv2d_1.weight"} & quantized_tensors(program)
    assert weights == {"conv2d.weight"}
    lowered = delegraph.lower(program, backends=["xnnpack"])
    assert lowered.verify(*batches[0]).agrees(0.02)


def quantize_blocks(floats):
    batches = [(torch.randn(1, 3, 8, 8),)]
    return delegraph.quantize(Blocks().eval(), batches, backend="tosa", floats=floats)


def test_a_misspelled_item_is_refused_with_a_suggestion():
    message = "no call of the program matches 'secnd'.*second"
    with pytest.raises(OptionError, match=message):
        quantize_blocks(["secnd"])


@pytest.mark.parametrize("wrong", [7, [7], [None], torch.zeros(2), [""]])
def test_items_of_other_types_are_refused(wrong):
    with pytest.raises(OptionError, match="(?s)floats contains .*items are operators"):
        quantize_blocks(wrong)


def test_leaving_all_calls_in_floats_is_refused():
    with pytest.raises(InputError, match="all calls are left in floats"):
        quantize_blocks(["first", "second", "tanh", "sigmoid"])


def agreement(net, batches):
    """Return a task: minus the largest difference from the model."""
    expected = [net(*batch) for batch in batches]

    def task(program):
        pairs = zip(batches, expected, strict=True)
        return -max(float((program(*x) - y).abs().max()) for x, y in pairs)

    return task


def images(count=4, size=1):
    return [(torch.randn(size, 3, 8, 8),) for _ in range(count)]


class Layers(nn.Sequential):
    """Convolutions that are computed together with what follows, and a linear."""

    def __init__(self):
        torch.manual_seed(0)
        norm = nn.BatchNorm2d(4)
        norm.running_var.fill_(9.0)
        convs = nn.Conv2d(3, 4, 3), norm, nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU()
        super().__init__(*convs, nn.Flatten(), nn.Linear(64, 4))
        self.eval().requires_grad_(False)


WORK = {
    # outputs in height and width * channels in * elements of 3 x 3 kernels
    "conv2d.weight": (6 * 6) * 3 * (4 * 3 * 3),
    "conv2d_1.weight": (4 * 4) * 4 * (4 * 3 * 3),
    "linear": 64 * 4,
}
"""Multiplications of each layer of ``Layers``."""


def search_without_success(net, batches):
    """Return the result of a search in which each choice of floats scores 0."""
    scores = iter([1.0] + [0.0] * 9)
    return recover_accuracy(net, batches, lambda _: next(scores), backend="tosa")


def test_the_work_in_floats_counts_each_layer_once():
    net = Layers()
    batches = images()

    found = search_without_success(net, batches)

    # this choice names one convolution by two modules
    assert any({"0", "2"} <= {*trial.floats} for trial in found.trials)
    for trial in found.trials:
        program = delegraph.quantize(net, batches, backend="tosa", floats=trial.floats)
        in_floats = WORK.keys() - quantized_tensors(program)
        share = sum(WORK[name] for name in in_floats) / sum(WORK.values())
        assert trial.work == pytest.approx(share)
        assert trial.work <= 0.75


class Powers(nn.Module):
    """Squares values of very different sizes between two layers."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.last = nn.Linear(16, 16)
        self.eval().requires_grad_(False)

    def forward(self, x):
        x = self.first(x)
        x = x.pow(2)
        return self.last(x)


def test_cheap_calls_are_tried_before_layers_that_make_outputs():
    # values from 1 down to 0.001
    batches = [(torch.randn(1, 16) * 10 ** -(k % 4),) for k in range(8)]
    net = Powers()

    found = recover_accuracy(net, batches, agreement(net, batches), backend="tosa")

    assert found.trials[1].work == 0
    assert found.trials[2].work > 0
    assert {*found.trials[1].floats} < {*found.trials[2].floats}


class SmallSquares(nn.Module):
    """Adds squares of very different sizes to much larger values."""

    def forward(self, x, y):
        power = y.pow(2)
        loud = 1000 * x
        return loud + power


def test_tensors_of_few_bits_are_tried_despite_little_noise():
    batches = [(torch.randn(64), torch.randn(64) * 10 ** -(k % 4)) for k in range(8)]

    found = search_without_success(SmallSquares(), batches)

    lines = {line_of("power = y.pow(2)"), line_of("return loud + power")}
    assert {*found.trials[1].floats} == lines


def test_a_folded_batch_norm_selects_its_convolution():
    batches = images(2)

    by_norm = delegraph.quantize(Layers(), batches, backend="tosa", floats=["1"])

    by_layer = delegraph.quantize(Layers(), batches, backend="tosa", floats=["0"])
    assert quantized_tensors(by_norm) == quantized_tensors(by_layer)
    assert "conv2d.weight" not in quantized_tensors(by_norm)


class Chain(nn.Module):
    """Computes in one line, without a convolution or matrix product."""

    def forward(self, x):
        return (x.sigmoid() * 3).tanh()


def test_a_program_of_one_line_keeps_a_quantized_call():
    net = Chain()
    batches = images()
    found = recover_accuracy(net, batches, agreement(net, batches), backend="tosa")

    assert found.floats
    assert found.score > found.integers


ANY_BATCH = {"input": {0: Dim("batch")}}


def test_the_task_may_call_programs_as_it_calls_the_model():
    """With eval, by keyword, and with another batch size."""
    net = Layers()
    many = torch.randn(5, 3, 8, 8)
    expected = net(many)

    def task(program):
        return -float((program.eval()(input=many) - expected).abs().max())

    found = recover_accuracy(
        net, images(size=2), task, backend="tosa", dynamic_shapes=ANY_BATCH
    )

    assert found.score > found.integers


def test_the_code_of_a_result_keeps_dynamic_shapes():
    net = Layers()
    batches = images(size=2)
    many = torch.randn(5, 3, 8, 8)
    expected = net(many)

    def task(program):
        return -float((program(many) - expected).abs().max())

    found = recover_accuracy(
        net, batches, task, backend="tosa", dynamic_shapes=ANY_BATCH
    )
    names = {"delegraph": delegraph, "model": net, "batches": batches}
    exec(found.code(), {**names, "dynamic_shapes": ANY_BATCH}, names)

    assert task(found.program.module()) == found.score
    assert task(names["quantized"].module()) == found.score


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            ((torch.zeros(2, 3, 8, 8),), {}),
            r"other shapes than .*\(\[2, 3, 8, 8\]\), not",
        ),
        (
            ((), {"image": torch.zeros(1, 3, 8, 8)}),
            r"other arguments .*image=\[1, 3, 8, 8\]",
        ),
        (((torch.zeros(1, 3, 8, 8), 1), {}), r"other arguments than .*, 1\), not"),
    ],
)
def test_tasks_that_call_programs_with_other_shapes_are_refused(arguments, message):
    args, kwargs = arguments

    with pytest.raises(InputError, match=message):
        recover_accuracy(
            Layers(), images(), lambda program: program(*args, **kwargs), backend="tosa"
        )


def test_keyword_arguments_come_in_any_order():
    class Scaled(nn.Module):
        def forward(self, x, *, scale, shift):
            return torch.tanh(x * scale - shift)

    batches = [{name: torch.randn(4) for name in ("x", "scale", "shift")}] * 3
    expected = Scaled()(**batches[0])

    def task(program):
        values = dict(reversed(batches[0].items()))
        return -float((program(**values) - expected).abs().max())

    with pytest.warns(delegraph.errors.DelegraphWarning, match="the same in all"):
        found = recover_accuracy(Scaled(), batches, task, backend="tosa")

    # the task calls the model itself as well
    assert found.eager == 0
    assert found.score < 0


class State(nn.Module):
    """Keeps a state in a buffer, and returns a power of it."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.mix = nn.Linear(4, 4)
        self.register_buffer("state", torch.zeros(1, 4))
        self.eval().requires_grad_(False)

    def forward(self, x):
        mixed = self.mix(x) + self.state
        self.state.copy_(torch.tanh(mixed))
        return torch.log(self.state.pow(2) + 1e-3)


def test_each_evaluation_begins_with_the_first_state():
    net = State()
    batches = [(torch.randn(1, 4),) for _ in range(6)]
    task = agreement(State(), batches)

    found = recover_accuracy(net, batches, task, backend="tosa")

    assert found.eager == 0
    assert found.score > found.integers
    assert task(found.program.module()) == found.score
    assert not net.state.any()


def test_a_state_is_not_listed_as_a_weight():
    batches = [(torch.randn(1, 4),) for _ in range(6)]
    task = agreement(State(), batches)

    found = recover_accuracy(State(), batches, task, backend="tosa")

    [weight] = [loss for loss in found.losses if loss.is_weight]
    assert weight.layer == "linear"
    # measured without the states of earlier runs
    assert weight.noise < 1e-3


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up = nn.Linear(4, 4)
        self.down = nn.Linear(4, 4)
        self.eval().requires_grad_(False)

    def forward(self, x):
        y = torch.cond(x.sum() > 0, self.up, self.down, (x,))
        z = y.pow(2) + 1e-4
        return torch.log(z)


class Loop(Branches):
    def forward(self, x):
        def body(count, y):
            return count + 1, torch.tanh(self.up(y))

        start = torch.tensor(0), x
        _, y = while_loop(lambda count, y: count < 3, body, start)
        z = y.pow(2) + 1e-4
        return torch.log(z)


@pytest.mark.parametrize("net", [Branches(), Loop()], ids=["branches", "loop"])
def test_programs_with_branches_and_loops_are_searched(net):
    batches = [(torch.randn(2, 4),) for _ in range(6)]
    task = agreement(net, batches)

    found = recover_accuracy(net, batches, task, backend="tosa")

    assert len(found.trials) > 2
    assert task(found.program.module()) == found.score


class Masked(nn.Module):
    """Adds a mask with minus infinity to scores, and returns the scores."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 4)
        self.eval().requires_grad_(False)

    def forward(self, x, mask):
        scores = self.first(x)
        scores = scores.pow(2)
        return torch.log(scores + 1e-4) + mask


def test_infinite_values_of_a_mask_are_no_loss():
    mask = torch.zeros(4, 4).masked_fill(torch.eye(4) > 0, -torch.inf)
    batches = [(torch.randn(4, 4), mask) for _ in range(4)]
    net = Masked()

    def task(program):
        pairs = [(program(*x).exp(), net(*x).exp()) for x in batches]
        return -max(float((got - value).abs().max()) for got, value in pairs)

    with pytest.warns(delegraph.errors.DelegraphWarning):
        found = recover_accuracy(net, batches, task, backend="tosa")

    assert 0 < found.losses[0].noise < 1
    assert found.score > found.integers


@pytest.mark.parametrize(
    "eager, integers",
    [(1.0, 0.25), (1.0, -torch.inf), (torch.inf, 0.25), (1.0, torch.nan)],
)
def test_infinite_and_undefined_scores_are_ranked(eager, integers):
    # of all choices of floats, the second is best
    scores = iter([eager, integers, 0.5, 0.75, *[integers] * 7])

    found = recover_accuracy(
        Layers(), images(), lambda program: next(scores), backend="tosa"
    )

    assert found.score == 0.75
    # the first trial is that with all calls in integers
    assert found.floats == found.trials[2].floats


@pytest.mark.parametrize(
    "score, message",
    [
        (None, "must return a number; it returned None"),
        (torch.zeros(2), r"must return a number; it returned tensor\(\[0., 0.\]\)"),
        (torch.nan, "returns nan for the model itself"),
        (-torch.inf, "returns -inf for the model itself"),
    ],
)
def test_tasks_without_a_score_are_refused(score, message):
    with pytest.raises(InputError, match=message):
        recover_accuracy(Layers(), images(), lambda program: score, backend="tosa")


class Faint(nn.Module):
    """Adds small values, which several lines compute, to large ones."""

    def forward(self, x, y):
        faint = torch.tanh(y)
        faint = torch.tanh(faint + y)
        faint = torch.tanh(faint - y)
        faint = torch.tanh(faint + y)
        faint = torch.tanh(faint - y)
        faint = torch.tanh(faint + y)
        loud = x * 1000
        return loud + faint


def test_calls_without_noise_are_found_by_halves():
    """The choices of lines are halved until few are left."""
    batches = [(torch.randn(4, 64), torch.randn(4, 64)) for _ in range(8)]

    def needs_fifth_tanh_in_floats(program):
        (module,) = program.children()
        return float("tanh_4" not in quantized_tensors(module))

    found = recover_accuracy(
        Faint(), batches, needs_fifth_tanh_in_floats, backend="tosa"
    )

    assert found.score == 1
    # the line of the output is tried first
    assert found.trials[1].floats == (line_of("return loud + faint"),)
    line_after = int(line_of("loud = x * 1000").partition(":")[2])
    fourth, fifth, sixth = (f"test_recovery.py:{line_after - k}" for k in (3, 2, 1))
    assert {fifth, sixth} <= {*found.floats}
    assert fourth not in found.floats

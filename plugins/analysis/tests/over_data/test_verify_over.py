"""``verify_over``: scores of programs over data, worst samples, an interrupted run."""

import json
import math

import delegraph
import pytest
import torch
from delegraph.errors import InputError, OptionError
from delegraph_analysis import verify_over

from plugins.analysis.tests.support.bars import pictures


@pytest.fixture(scope="module")
def lowered(network):
    return delegraph.lower(network, (pictures(1, 0)[0][0],), backends=["tosa"])


def is_right(outputs, label):
    return float(outputs.argmax() == label)


def test_each_program_is_scored_by_the_metric(network):
    calibration = [(picture,) for picture, _ in pictures(8, 1)]
    quantized = delegraph.quantize(network, calibration, backend="tosa")
    programs = {
        "int8": delegraph.lower(quantized, backends=["tosa"]),
        "host": delegraph.lower(quantized, backends=[]),
    }
    data = pictures(16, 2)
    found = verify_over(programs, data, is_right, model=network)
    assert found.columns == ("eager", "quantized", "int8", "host")
    wanted = sum(is_right(network(picture), label) for picture, label in data) / 16
    assert wanted > 0.8
    means = {row.name: row.mean for row in found.summary()}
    assert means["eager"] == wanted
    assert means["quantized"] == means["host"]
    assert found.samples[3].scores[2] == is_right(
        programs["int8"](data[3][0]), data[3][1]
    )
    assert found.to_text().startswith("16 samples, metric is_right; larger is better")


def test_the_default_metric_compares_all_outputs_with_eager(lowered):
    found = lowered.verify_over(picture for picture, _ in pictures(3, 2))
    eager, other = found.summary()
    assert eager.mean == 1 and 0.999 < other.mean <= 1 and found.metric == "agreement"


def test_samples_without_a_label_are_compared_with_eager(lowered):
    seen = []

    def metric(outputs, expected):
        seen.append(expected)
        return 1

    verify_over(lowered, [(pictures(1, 2)[0][0],)], metric)
    assert all(torch.equal(one, seen[0]) for one in seen) and seen[0].shape == (1, 2)


def test_top1_compares_classes_with_labels(lowered, network):
    data = [{"input": picture, "label": 1 - label} for picture, label in pictures(8, 2)]
    right = sum(is_right(network(one["input"]), one["label"]) for one in data) / 8
    found = verify_over(lowered, data, "top1")
    assert [row.mean for row in found.summary()] == [right, right]


class Worsened(torch.nn.Module):
    """Adds the largest element of its input to the first class."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        return self.network(x) * (x.amax() < 2)


def test_worst_samples_come_first_with_their_pictures(network, tmp_path):
    data = pictures(30, 2)
    for index in (7, 21):
        data[index] = (data[index][0] * 4, data[index][1])
    damaged = delegraph.lower(Worsened(network), (data[0][0],), backends=[])
    found = verify_over(
        damaged, [picture for picture, _ in data], "agreement", model=network
    )
    assert {row.index for row in found.worst(2)} == {7, 21}
    assert len(found.pictures) == 10 and {7, 21} <= {*found.pictures}
    rows = found.to_text().partition("worst samples:")[2].splitlines()
    assert rows[1].split() == ["SAMPLE", "EAGER", "QUANTIZED", "LOWERED"]
    assert {rows[2].split()[0], rows[3].split()[0]} == {"7", "21"}
    found.save(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert page.count("data:image/png;base64,") == 2 and "img-src data:" in page
    found.save(tmp_path / "scores.json")
    assert json.loads((tmp_path / "scores.json").read_text()) == found.to_json()


def test_a_signal_is_drawn_as_a_curve(tmp_path):
    signal = torch.linspace(0, 9, 2000).sin()
    lowered = delegraph.lower(torch.nn.Tanh().eval(), (signal,), backends=[])
    found = verify_over(lowered, [signal])
    assert found.pictures[0].startswith("<svg") and len(found.pictures[0]) < 10_000


class Counted:
    """Counts its calls."""

    def __init__(self):
        self.calls = 0

    def __call__(self, outputs, label):
        self.calls += 1
        return is_right(outputs, label)


def test_an_interrupted_run_continues(lowered, tmp_path):
    store = tmp_path / "scores.jsonl"
    data = pictures(6, 2)

    def interrupted():
        yield from data[:4]
        raise KeyboardInterrupt

    metric = Counted()
    with pytest.raises(KeyboardInterrupt):
        verify_over(lowered, interrupted(), metric, store=store)
    assert metric.calls == 8
    with store.open("a") as file:
        file.write('\n{"key": "half')
    found = verify_over(lowered, data, metric, store=store)
    assert metric.calls == 12
    assert found.samples == verify_over(lowered, data, metric).samples


def test_scores_of_another_model_are_not_reused(lowered, network, tmp_path):
    store = tmp_path / "scores.jsonl"
    data = pictures(2, 2)
    metric = Counted()
    verify_over(lowered, data, metric, store=store)
    with torch.no_grad():
        changed = torch.nn.Sequential(*network[:4], torch.nn.Linear(8, 2)).eval()
    other = delegraph.lower(changed, (data[0][0],), backends=["tosa"])
    verify_over(other, data, metric, store=store)
    verify_over(lowered, data, metric, store=store)
    assert metric.calls == 8


class Accumulating(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(2))

    def forward(self, x):
        self.total.add_(x)
        return self.total * 2


def test_each_sample_starts_from_the_initial_state():
    model = Accumulating().eval()
    lowered = delegraph.lower(model, (torch.ones(2),), backends=[])
    data = [torch.ones(2), torch.ones(2)]
    found = verify_over(
        lowered, data, lambda outputs, _: float(outputs.sum()), model=model
    )
    assert [row.scores for row in found.samples] == [(4, 4, 4), (4, 4, 4)]
    assert model.total.tolist() == [0, 0]


@pytest.mark.parametrize(
    "data, message",
    [
        ([], "the data has no sample"),
        (torch.ones(2), "must be a series of samples"),
        ([(1, 2, 3)], "sample 0 has 3 values; the model takes 1 inputs"),
        ([{"nothing": 1}], "sample 0 has the keys nothing"),
        (["text"], "sample 0 is a str"),
    ],
)
def test_data_that_do_not_fit_are_refused(lowered, data, message):
    with pytest.raises(InputError, match=message):
        verify_over(lowered, data)


def test_a_metric_that_fails_is_named(lowered):
    data = pictures(1, 2)
    with pytest.raises(InputError, match="metric is_wrong raises ZeroDivisionError"):

        def is_wrong(outputs, label):
            return 1 / 0

        verify_over(lowered, data, is_wrong)
    with pytest.raises(OptionError, match="there is no metric 'f1'"):
        verify_over(lowered, data, "f1")


def test_a_score_of_nan_is_the_worst(lowered):
    data = pictures(3, 2)
    scores = iter([1, 0.5, 1, math.nan, 1, 0.9])
    found = verify_over(lowered, data, lambda outputs, label: next(scores))
    assert [row.index for row in found.worst()] == [1, 0, 2]
    assert found.summary()[1].worse == 3

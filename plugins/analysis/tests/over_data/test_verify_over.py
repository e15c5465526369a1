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
        ([], "data is empty"),
        (torch.ones(2), "must be a series of samples"),
        ([(1, 2, 3)], "sample 0: it has 3 values; the model takes 1 inputs"),
        ([{"nothing": 1}], "sample 0: it has the keys nothing"),
        (["text"], "sample 0: it is a str"),
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


class Scores:
    """A metric that returns the given scores one after the other."""

    def __init__(self, *scores):
        self.scores = iter(scores)

    def __call__(self, outputs, label):
        return next(self.scores)


def test_the_worst_program_decides_the_order_of_samples(lowered):
    programs = {"a": lowered, "b": lowered}
    # eager, a and b, for three samples
    scores = Scores(1, 1, 1, 1, 0.4, 2, 1, 1, 0.5)
    found = verify_over(programs, pictures(3, 2), scores)
    assert [row.index for row in found.worst()] == [1, 2, 0]
    assert found.to_json()["worst"] == [1, 2, 0]
    assert [(row.worse, row.better) for row in found.summary()] == [
        (0, 0),
        (1, 0),
        (1, 1),
    ]


def test_a_score_of_nan_is_the_worst(lowered):
    data = pictures(3, 2)
    found = verify_over(lowered, data, Scores(1, 0.5, 1, math.nan, 1, 0.9))
    assert [row.index for row in found.worst()] == [1, 0, 2]
    assert found.summary()[1].worse == 3
    assert found.summary()[0].worse == 0


@pytest.mark.parametrize(
    "eager, other, loss",
    [
        (math.inf, math.inf, 0),
        (-math.inf, -math.inf, 0),
        (math.nan, math.nan, 0),
        (math.nan, 1, math.inf),
        (math.inf, 1, math.inf),
        (1, math.inf, -math.inf),
    ],
)
def test_losses_of_scores_that_are_not_finite(lowered, eager, other, loss):
    data = pictures(2, 2)
    found = verify_over(lowered, data, Scores(eager, other, 2, 1.5))
    assert found.samples[0].loss == loss
    assert found.summary()[1].loss == (loss + 0.5) / 2
    content = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert content["samples"][1]["scores"] == [2, 1.5]
    assert None in content["samples"][0]["scores"]


def test_means_of_opposite_infinities_are_nan(lowered):
    scores = Scores(math.inf, 1, -math.inf, 1)
    found = verify_over(lowered, pictures(2, 2), scores)
    assert math.isnan(found.summary()[0].mean)


def test_a_metric_may_write_to_its_arguments(lowered):
    def metric(outputs, label):
        outputs.mul_(0)
        label += 1
        return float(outputs.sum() + label.sum())

    programs = {"a": lowered, "b": lowered}
    found = verify_over(programs, [(pictures(1, 2)[0][0], torch.zeros(1))], metric)
    assert found.samples[0].scores == (1, 1, 1)

    def writes_to_the_reference(outputs, expected):
        score = float(expected.abs().sum())
        outputs.zero_()
        expected.zero_()
        return score

    found = verify_over(programs, [pictures(1, 2)[0][0]], writes_to_the_reference)
    assert min(found.samples[0].scores) > 0


class Doubled(torch.nn.Module):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        return self.network.double(x)


class TwoMethods(torch.nn.Module):
    def forward(self, x):
        return x

    def double(self, x):
        return 2 * x


def test_the_chosen_method_of_the_model_is_called():
    model = TwoMethods().eval()
    x = torch.ones(1, 2)
    lowered = delegraph.lower(
        {"forward": model, "double": Doubled(model).eval()},
        {"forward": (x,), "double": (x,)},
        backends=[],
    )

    def total(outputs, label):
        return float(outputs.sum())

    found = verify_over(lowered, [x], total, model=model, method="double")
    assert found.samples[0].scores == (4, 4, 4)
    # the program of the method itself
    found = verify_over(
        lowered, [x], total, model=Doubled(model).eval(), method="double"
    )
    assert found.samples[0].scores == (4, 4, 4)
    assert verify_over(lowered, [x], total, model=model).samples[0].scores == (2, 2, 2)


def test_a_model_in_training_mode_is_refused():
    model = torch.nn.Dropout().eval()
    x = torch.ones(1, 2)
    lowered = delegraph.lower(model, (x,), backends=[])
    other = delegraph.lower(torch.nn.ReLU().eval(), (x,), backends=[])
    model.train()
    with pytest.raises(InputError, match="Dropout is in training mode"):
        verify_over(lowered, [x])
    with pytest.raises(InputError, match="Dropout is in training mode"):
        verify_over(other, [x], model=model)


def test_columns_have_different_names(lowered):
    with pytest.raises(InputError, match="two columns have one name: eager, eager"):
        verify_over({"eager": lowered}, pictures(1, 2))


class MapStyle(torch.utils.data.Dataset):
    """Pictures without the size of the batch; it accepts any index."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        picture, label = pictures(3, 2)[index % 3]
        return picture[0], int(label)


class Streamed(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(pictures(3, 2))


@pytest.mark.parametrize(
    "data",
    [
        MapStyle(),
        torch.utils.data.DataLoader(MapStyle()),
        torch.utils.data.DataLoader(Streamed(), batch_size=None),
        (sample for sample in pictures(3, 2)),
        [{"input": picture[0], "labels": label} for picture, label in pictures(3, 2)],
    ],
    ids=["map style", "loader", "loader of a stream", "generator", "dicts"],
)
def test_forms_of_data(lowered, data):
    found = verify_over(lowered, data, "top1")
    wanted = verify_over(lowered, pictures(3, 2), "top1")
    assert found.samples == wanted.samples


def test_a_dynamic_batch_takes_single_samples(network):
    lowered = delegraph.lower(
        network,
        (torch.rand(2, 1, 8, 8),),
        dynamic_shapes=({0: torch.export.Dim("n")},),
        backends=[],
    )
    assert len(verify_over(lowered, MapStyle(), "top1").samples) == 3


class Nested(torch.nn.Module):
    def forward(self, pair, *, scale, more):
        return pair[0] + 2 * pair[1] + 4 * scale + 8 * more["bias"]


def test_samples_of_nested_and_keyword_inputs():
    x = torch.ones(1)
    lowered = delegraph.lower(
        Nested().eval(),
        ((x, x.clone()),),
        example_kwargs={"more": {"bias": x.clone()}, "scale": x.clone()},
        backends=[],
    )
    data = [
        {"more": {"bias": x * 1000}, "pair": (x, x * 10), "scale": x * 100, "label": 1},
        {
            "pair_0": x,
            "pair_1": x * 10,
            "scale": x * 100,
            "more_bias": x * 1000,
            "y": 1,
        },
    ]
    found = verify_over(lowered, data, lambda outputs, label: float(outputs) * label)
    assert [row.scores for row in found.samples] == [(8421, 8421)] * 2


class Difference(torch.nn.Module):
    def forward(self, x, y):
        return x - y


def test_an_input_with_the_name_of_a_label_is_an_input():
    x = torch.ones(1)
    lowered = delegraph.lower(Difference().eval(), (x, x.clone()), backends=[])
    data = [{"x": x * 5, "y": x}, {"x": x * 5, "y": x, "label": 100}]
    found = verify_over(lowered, data, lambda outputs, label: float(outputs + label))
    assert [row.scores for row in found.samples] == [(8, 8), (104, 104)]


def test_errors_name_the_sample_and_the_program(lowered):
    data = pictures(3, 2)

    def metric(outputs, label):
        assert label != 0 or seen.append(1) or len(seen) < 4
        return 1

    seen = []
    with pytest.raises(InputError, match="sample 2, lowered: the metric metric raises"):
        verify_over(lowered, data, metric)
    data[1] = (torch.rand(1, 1, 5, 5), data[1][1])
    with pytest.raises(
        InputError, match="sample 1, eager: the model's method 'forward'"
    ):
        verify_over(lowered, data)

    def broken():
        yield data[0]
        raise KeyError("no picture")

    with pytest.raises(KeyError) as raised:
        verify_over(lowered, broken())
    assert raised.value.__notes__ == ["sample 1"]


class Noisy(torch.nn.Module):
    def forward(self, x):
        return x + torch.rand_like(x)


def test_sample_k_has_the_random_seed_k():
    x = torch.zeros(1, 2)
    lowered = delegraph.lower(Noisy().eval(), (x,), backends=[])
    state = torch.get_rng_state()
    found = verify_over(lowered, [x, x], lambda outputs, label: float(outputs.sum()))
    assert torch.equal(torch.get_rng_state(), state)
    first, second = [row.scores for row in found.samples]
    assert first[0] == first[1]
    assert second[0] == second[1] != first[0]

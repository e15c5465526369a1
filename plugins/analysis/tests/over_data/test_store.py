"""The file of ``store``: what it returns again, and what it does not."""

import functools
import sqlite3

import delegraph
import pytest
import torch
from delegraph.backend import CompileSpec
from delegraph.errors import NoRuntime, WriteError
from delegraph_analysis import verify_over
from delegraph_analysis.over_data import store, verifying

from plugins.analysis.tests.support.bars import pictures


@pytest.fixture(scope="module")
def lowered(network):
    return delegraph.lower(network, (pictures(1, 0)[0][0],), backends=["tosa"])


@pytest.fixture
def path(tmp_path):
    return tmp_path / "outputs.db"


@pytest.fixture
def calls(monkeypatch):
    """The indices of the samples for which a lowered program was called."""
    indices = []
    call = verifying._call_lowered

    def counted(lowered, method, sample):
        indices.append(sample.index)
        return call(lowered, method, sample)

    monkeypatch.setattr(verifying, "_call_lowered", counted)
    return indices


def total(outputs, label):
    return float(outputs.sum())


def test_an_interrupted_run_continues(lowered, path, calls):
    data = pictures(6, 2)

    def interrupted():
        yield from data[:4]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        verify_over(lowered, interrupted(), total, store=path)
    assert calls == [0, 1, 2, 3]
    found = verify_over(lowered, data, total, store=path)
    assert calls == [0, 1, 2, 3, 4, 5]
    assert found.samples == verify_over(lowered, data, total).samples


def power(outputs, label, exponent):
    return exponent


def test_metrics_are_computed_again(lowered, path, calls):
    data = pictures(1, 2)
    metrics = [functools.partial(power, exponent=k) for k in (1, 2)]
    scores = [
        verify_over(lowered, data, metric, store=path).samples[0].scores
        for metric in metrics
    ]
    assert scores == [(1, 1), (2, 2)]
    assert calls == [0]


def scaled(factor):
    class Scaled(torch.nn.Module):
        def forward(self, x):
            return x * factor

    return Scaled()


def scaled_by_a_weight(factor):
    layer = torch.nn.Linear(2, 2)
    torch.nn.init.constant_(layer.weight, factor)
    return layer


class ScaledByAConstant(torch.nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = torch.tensor(factor)

    def forward(self, x):
        return x * self.factor


def scaled_in_a_branch(factor):
    class Branches(torch.nn.Module):
        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda x: x * factor, lambda x: -x, (x,))

    return Branches()


def scaled_by_a_constant_of_a_branch(factor):
    class Branches(torch.nn.Module):
        def forward(self, x):
            branches = (lambda x: x * torch.tensor([1.0, factor]), lambda x: -x)
            return torch.cond(x.sum() > 0, *branches, (x,))

    return Branches()


class Counting(torch.nn.Module):
    def __init__(self, start):
        super().__init__()
        self.register_buffer("count", torch.full((2,), start))

    def forward(self, x):
        self.count.add_(x[0])
        return self.count * 2


@pytest.mark.parametrize("backends", [[], ["tosa"]], ids=["host", "tosa"])
@pytest.mark.parametrize(
    "model",
    [
        scaled,
        scaled_by_a_weight,
        ScaledByAConstant,
        scaled_in_a_branch,
        scaled_by_a_constant_of_a_branch,
        Counting,
    ],
)
def test_outputs_of_another_program_are_not_taken(model, backends, path):
    x = torch.ones(1, 2)
    for factor in (2.0, 3.0):
        program = delegraph.lower(model(factor).eval(), (x,), backends=backends)
        eager, other = verify_over(program, [x], total, store=path).samples[0].scores
        assert eager == other


def test_outputs_of_other_inputs_are_not_taken(lowered, path, calls):
    (x, label), *_ = pictures(1, 2)
    verify_over(lowered, [(x, label)], total, store=path)
    verify_over(lowered, [(x + 1, label)], total, store=path)
    assert calls == [0, 0]
    # a sample at another place has another random seed
    verify_over(lowered, [(x + 2, label), (x, label)], total, store=path)
    assert calls == [0, 0, 0, 1]


class Keyword(torch.nn.Module):
    def forward(self, x, *, scale):
        return x * scale


def test_outputs_of_other_keyword_inputs_are_not_taken(path, calls):
    x = torch.ones(1, 2)
    program = delegraph.lower(
        Keyword().eval(), (x,), example_kwargs={"scale": x.clone()}, backends=[]
    )
    for scale in (1, 2, 2):
        verify_over(program, [{"x": x, "scale": x * scale}], total, store=path)
    assert calls == [0, 0]


@pytest.mark.parametrize(
    "name, value",
    [
        ("blob", b"another"),
        ("compile_specs", [CompileSpec("target", b"another")]),
        ("meta", {"producer": "delegraph-tosa 9.9", "fingerprint": ""}),
        ("named_data", lambda: {"weights": b"another"}),
        ("state_tensors", lambda: [torch.ones(1)]),
    ],
)
def test_each_part_of_a_delegate_counts(lowered, name, value, monkeypatch):
    (delegate,) = lowered.delegates
    program = lowered.exported_program()
    before = store._describe_program(program)
    assert store._describe_program(program) == before
    monkeypatch.setattr(delegate.module, name, value)
    assert store._describe_program(program) != before


class Nested(torch.nn.Module):
    def forward(self, x):
        return {"sum": x + 1, "rest": (x[:, 0], 7)}


def test_nested_outputs_come_back(path):
    x = torch.rand(1, 2)
    program = delegraph.lower(Nested().eval(), (x,), backends=[])
    seen = []

    def metric(outputs, label):
        seen.append(outputs)
        return 1

    for _ in range(2):
        verify_over(program, [x], metric, store=path)
    for outputs in seen:
        assert torch.equal(outputs["sum"], x + 1)
        assert torch.equal(outputs["rest"][0], x[:, 0])
        assert outputs["rest"][1] == 7


def test_outputs_of_eager_in_place_of_a_runtime_are_not_kept(
    lowered, path, calls, monkeypatch
):
    class WithoutRuntimes:
        def runtime_for(self, backend):
            raise NoRuntime("no-runtime", backend)

    monkeypatch.setattr(store, "default_registry", WithoutRuntimes)
    for _ in range(2):
        verify_over(lowered, pictures(1, 2), total, store=path)
    assert calls == [0, 0]


def test_another_file_stays_as_it_is(lowered, path):
    path.write_text("labels of my pictures")
    with pytest.raises(WriteError, match="cannot be kept in .*outputs.db"):
        verify_over(lowered, pictures(1, 2), store=path)
    assert path.read_text() == "labels of my pictures"
    path.unlink()
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE outputs (key, value)")
    database.close()
    before = path.read_bytes()
    with pytest.raises(WriteError, match="it has other content"):
        verify_over(lowered, pictures(1, 2), store=path)
    assert path.read_bytes() == before


def test_a_file_that_cannot_be_written_is_named(lowered, path):
    with pytest.raises(WriteError, match="cannot be kept in"):
        verify_over(lowered, pictures(1, 2), store=path / "missing" / "file")

    def removed():
        yield pictures(1, 2)[0]
        kept = sqlite3.connect(path)
        kept.execute("DROP TABLE outputs")
        kept.close()
        yield pictures(1, 3)[0]

    with pytest.raises(WriteError, match="sample 1, lowered: the outputs of samples"):
        verify_over(lowered, removed(), store=path)

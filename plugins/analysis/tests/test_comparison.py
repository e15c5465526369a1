"""``delegraph.compare``: one export, each backend alone and all in order."""

import delegraph
import pytest
import torch
from delegraph.backend import BackendDetails, PreprocessResult
from delegraph.discovery.registry import Registry
from delegraph.errors import BackendNotFound, ContractViolation, OptionError
from delegraph.partitioner import CapabilityPartitioner
from delegraph_analysis import comparison
from delegraph_programs import TRACING

from core.tests.conftest import EchoBackend, EchoRuntime


class MuteBackend(BackendDetails):
    """Has no runtime."""

    @staticmethod
    def preprocess(edge_program, compile_specs):
        return PreprocessResult(b"mute")


class BrokenBackend(BackendDetails):
    @staticmethod
    def preprocess(edge_program, compile_specs):
        raise ContractViolation("contract-violation", "too large\nfor it")


class Net(torch.nn.Module):
    exports = 0

    def forward(self, x):
        Net.exports += torch.compiler.is_exporting()
        return (x.sin() + 1).relu() * 2


def refuse_others(names):
    takes = {f"aten.{name}" for name in names.split()}
    return lambda node: (
        "no" if takes and str(node.target).rpartition(".")[0] not in takes else None
    )


@pytest.fixture(scope="module")
def compared_backends():
    registry = Registry(discover=False)
    kinds = (
        (EchoBackend, "sin add", EchoRuntime),
        (MuteBackend, "relu add", None),
        (BrokenBackend, "", None),
    )
    for kind, names, runtime in kinds:
        partitioner = CapabilityPartitioner(refuse_others(names), kind.__name__)
        registry.register(kind, partitioner=partitioner, runtime=runtime)
    backends = ["echobackend", "mutebackend", "brokenbackend"]
    Net.exports = 0
    compared = delegraph.compare(
        Net().eval(), (torch.ones(3),), backends=backends, registry=registry
    )
    assert Net.exports == 1  # whatever the number of backends
    return registry, compared


def test_a_row_for_each_backend_and_one_for_all(compared_backends):
    _, compared = compared_backends
    echo, mute, broken, together = compared.candidates
    assert [c.backends for c in compared.candidates[:3]] == [
        ("echobackend",),
        ("mutebackend",),
        ("brokenbackend",),
    ]
    assert echo.report.delegated_share == 0.5
    assert echo.relative_error == 0
    assert echo.run_seconds > 0
    assert mute.run_seconds is None
    assert mute.error.code == "no-runtime"
    assert mute.bytes == 4
    assert broken.report is None
    assert broken.error.code == "contract-violation"
    assert together.backends == ("echobackend", "mutebackend", "brokenbackend")
    assert together.error is not None
    assert compared.alone == {
        "echobackend": {"aten.sin.default": 1},
        "mutebackend": {"aten.relu.default": 1},
    }
    assert compared.eager_seconds > 0


def test_no_lowering_runs_while_the_model_is_timed(compared_backends, monkeypatch):
    timed = comparison.call_methods
    held = []

    def watched(methods, *rest):
        held.append((type(next(iter(methods.values()))).__name__, TRACING.is_mine()))
        return timed(methods, *rest)

    monkeypatch.setattr(comparison, "call_methods", watched)
    delegraph.compare(
        Net().eval(),
        (torch.ones(3),),
        backends=["echobackend"],
        registry=compared_backends[0],
    )
    turn = [("GraphModule", True), ("Executable", False)]
    assert held == turn * (1 + comparison.RUNS), "eager and the lowering take turns"


class FailingRuntime(EchoRuntime):
    """Its second call fails."""

    @staticmethod
    def load(*parts):
        calls = []
        run = EchoRuntime.load(*parts)

        def call(*args):
            calls.append(args)
            if len(calls) > 1:
                raise ValueError("no more")
            return run(*args)

        return call


class Doubling(torch.nn.Module):
    def forward(self, x):
        print("called")
        x.mul_(2)
        return x.sin()


def test_failed_runs_end_their_row_and_keep_inputs(capsys):
    registry = Registry(discover=False)
    for name, runtime in (("good", EchoRuntime), ("failing", FailingRuntime)):
        kind = type(name, (EchoBackend,), {})
        registry.register(
            kind,
            partitioner=CapabilityPartitioner(refuse_others("sin"), name),
            runtime=runtime,
        )
    given = torch.ones(3)
    compared = delegraph.compare(
        Doubling().eval(), (given,), backends=["good", "failing"], registry=registry
    )
    good, failing, _ = compared.candidates
    assert given.tolist() == [1, 1, 1]
    assert good.relative_error == 0
    low, high = good.spread
    assert low <= good.run_seconds <= high
    assert good.first_seconds > 0
    assert failing.first_seconds > 0
    assert failing.run_seconds is None
    assert failing.error.code == "plugin-failed"
    assert failing.verifications is None
    assert "no more" in str(compared)
    rows = compared.to_json()
    assert rows["runs"] == comparison.RUNS
    assert rows["candidates"][0]["spread"] == [low, high]
    assert "load" in rows


def test_comparison_is_printed_as_a_table(compared_backends):
    _, compared = compared_backends
    lines = str(compared).splitlines()
    assert lines[1].startswith("echobackend")
    assert "50% of 4" in lines[1]
    assert lines[3].endswith("contract-violation: too large")
    assert lines[-1] == "only mutebackend takes: 1 x aten.relu.default"


def test_narrow_terminals_show_candidates_below_each_other(compared_backends):
    _, compared = compared_backends
    assert compared.text(1000) == compared.text() == str(compared)
    lines = compared.text(40).split("\n")
    heads = [line for line in lines if not line.startswith(" ")]
    assert heads[:5] == [
        *(" + ".join(candidate.backends) for candidate in compared.candidates),
        "eager",
    ]
    assert (
        max(
            len(line)
            for line in lines
            if line.startswith("  ") and "  error" not in line
        )
        <= 40
    )


def test_programs_without_inputs_are_lowered_and_not_run(compared_backends):
    registry, _ = compared_backends
    program = torch.export.export(Net().eval(), (torch.ones(3),))
    program._example_inputs = None
    (row,) = delegraph.compare(
        program, backends=["echobackend"], registry=registry
    ).candidates
    assert row.report.delegated_share == 0.5
    assert row.run_seconds is None
    assert row.error is None


def test_all_usable_backends_are_compared_by_default(compared_backends):
    registry = Registry(discover=False)
    with pytest.raises(BackendNotFound):
        delegraph.compare(Net().eval(), torch.ones(3), registry=registry)
    for name in ("b", "a"):
        partitioner = CapabilityPartitioner(refuse_others(""), name)
        registry.register(
            type(name, (EchoBackend,), {}), partitioner=partitioner, runtime=EchoRuntime
        )
    rows = delegraph.compare(Net().eval(), torch.ones(3), registry=registry).candidates
    assert [row.backends for row in rows] == [("a",), ("b",), ("a", "b")]


@pytest.mark.parametrize(
    "backends, error",
    [([], OptionError), ("echobackend", OptionError), (["no"], BackendNotFound)],
)
def test_wrong_backends_are_refused(compared_backends, backends, error):
    with pytest.raises(error):
        delegraph.compare(
            Net().eval(),
            (torch.ones(3),),
            backends=backends,
            registry=compared_backends[0],
        )

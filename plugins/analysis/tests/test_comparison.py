"""``delegraph.compare`` exports a model once and lowers it for each backend."""

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


class BackendWithoutRuntime(BackendDetails):
    @staticmethod
    def preprocess(edge_program, compile_specs):
        return PreprocessResult(b"mute")


class FailingBackend(BackendDetails):
    @staticmethod
    def preprocess(edge_program, compile_specs):
        raise ContractViolation("contract-violation", "too large\nfor it")


class Net(torch.nn.Module):
    """Four operators: sin, add, relu and mul."""

    exports = 0

    def forward(self, x):
        Net.exports += torch.compiler.is_exporting()
        return (x.sin() + 1).relu() * 2


def register(registry, backend, operators, runtime):
    """Register a backend that supports only these ATen operators."""

    def refuse_others(node):
        name = str(node.target).rpartition(".")[0]
        return None if name in operators else "no"

    partitioner = CapabilityPartitioner(refuse_others, backend.__name__)
    registry.register(backend, partitioner=partitioner, runtime=runtime)


ALL_OPERATORS = ("aten.sin", "aten.add", "aten.relu", "aten.mul")


@pytest.fixture(scope="module")
def registry():
    """Return a registry with a working backend and two with a fault."""
    registry = Registry(discover=False)
    register(registry, EchoBackend, ("aten.sin", "aten.add"), EchoRuntime)
    register(registry, BackendWithoutRuntime, ("aten.relu", "aten.add"), None)
    register(registry, FailingBackend, ALL_OPERATORS, None)
    return registry


BACKENDS = ("echobackend", "backendwithoutruntime", "failingbackend")


@pytest.fixture(scope="module")
def compared(registry):
    """Return the comparison of ``Net`` on all three backends."""
    Net.exports = 0
    return delegraph.compare(
        Net().eval(), (torch.ones(3),), backends=list(BACKENDS), registry=registry
    )


def test_a_model_is_exported_once_for_all_backends(compared):
    assert Net.exports == 1


def test_each_backend_has_a_row_and_all_together_have_one(compared):
    assert [candidate.backends for candidate in compared.candidates] == [
        ("echobackend",),
        ("backendwithoutruntime",),
        ("failingbackend",),
        BACKENDS,
    ]


def test_a_working_backend_has_its_share_error_and_time(compared):
    working = compared.candidates[0]

    assert working.report.delegated_share == 0.5
    assert working.relative_error == 0
    assert working.run_seconds > 0
    assert compared.eager_seconds > 0


def test_a_backend_without_runtime_has_a_size_but_no_time(compared):
    without_runtime = compared.candidates[1]

    assert without_runtime.bytes == len(b"mute")
    assert without_runtime.run_seconds is None
    assert without_runtime.error.code == "no-runtime"


def test_a_backend_that_fails_has_an_error_and_no_report(compared):
    failing, together = compared.candidates[2:]

    assert failing.report is None
    assert failing.error.code == "contract-violation"
    assert together.error is not None


def test_operators_of_a_single_backend_are_listed(compared):
    assert compared.alone == {
        "echobackend": {"aten.sin.default": 1},
        "backendwithoutruntime": {"aten.relu.default": 1},
    }


def test_no_lowering_runs_while_the_model_is_timed(registry, monkeypatch):
    call_methods = comparison.call_methods
    calls = []

    def record_call(methods, *rest):
        [called] = methods.values()
        calls.append((type(called).__name__, TRACING.is_mine()))
        return call_methods(methods, *rest)

    monkeypatch.setattr(comparison, "call_methods", record_call)
    delegraph.compare(
        Net().eval(), (torch.ones(3),), backends=["echobackend"], registry=registry
    )

    # Eager PyTorch, which holds the lock against tracing, and the lowering alternate.
    # The first call of each is a warm-up.
    pair = [("GraphModule", True), ("Executable", False)]
    assert calls == pair * (1 + comparison.RUNS)


class RuntimeThatFailsLater(EchoRuntime):
    """The first call works and the second one raises."""

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


class DoublingItsInput(torch.nn.Module):
    def forward(self, x):
        x.mul_(2)
        return x.sin()


X = torch.ones(3)


@pytest.fixture(scope="module")
def compared_with_failing_runtime():
    """Return the comparison of a backend that works and one whose runtime fails."""
    registry = Registry(discover=False)
    good = type("good", (EchoBackend,), {})
    failing = type("failing", (EchoBackend,), {})
    register(registry, good, ("aten.sin",), EchoRuntime)
    register(registry, failing, ("aten.sin",), RuntimeThatFailsLater)
    return delegraph.compare(
        DoublingItsInput().eval(), (X,), backends=["good", "failing"], registry=registry
    )


def test_models_that_write_to_their_inputs_get_copies(compared_with_failing_runtime):
    good = compared_with_failing_runtime.candidates[0]

    assert X.tolist() == [1, 1, 1]
    assert good.relative_error == 0


def test_a_failing_run_ends_only_its_own_row(compared_with_failing_runtime):
    good, failing, _ = compared_with_failing_runtime.candidates

    assert good.first_seconds > 0
    assert good.error is None
    assert failing.first_seconds > 0
    assert failing.run_seconds is None
    assert failing.verifications is None
    assert failing.error.code == "plugin-failed"
    assert "no more" in str(compared_with_failing_runtime)


def test_the_median_is_between_the_fastest_and_slowest_run(
    compared_with_failing_runtime,
):
    good = compared_with_failing_runtime.candidates[0]
    fastest, slowest = good.spread

    assert fastest <= good.run_seconds <= slowest


def test_json_has_the_number_of_runs_and_the_spread(compared_with_failing_runtime):
    good = compared_with_failing_runtime.candidates[0]
    content = compared_with_failing_runtime.to_json()

    assert content["runs"] == comparison.RUNS
    assert content["candidates"][0]["spread"] == list(good.spread)
    assert "load" in content


def test_comparison_is_printed_as_a_table(compared):
    lines = str(compared).splitlines()

    assert lines[1].startswith("echobackend")
    assert "50% of 4" in lines[1]
    assert lines[3].endswith("contract-violation: too large")
    assert lines[-1] == "only backendwithoutruntime takes: 1 x aten.relu.default"


def test_wide_terminals_get_the_same_table_as_str(compared):
    assert compared.text(1000) == compared.text() == str(compared)


def test_narrow_terminals_show_candidates_below_each_other(compared):
    lines = compared.text(40).split("\n")

    headings = [line for line in lines if not line.startswith(" ")]
    names = [" + ".join(candidate.backends) for candidate in compared.candidates]
    assert headings[:5] == [*names, "eager"]
    # texts of errors are not wrapped
    figures = [
        line for line in lines if line.startswith("  ") and "  error" not in line
    ]
    assert max(len(line) for line in figures) <= 40


def test_programs_without_inputs_are_lowered_and_not_run(registry):
    program = torch.export.export(Net().eval(), (torch.ones(3),))
    program._example_inputs = None

    compared = delegraph.compare(program, backends=["echobackend"], registry=registry)

    [row] = compared.candidates
    assert row.report.delegated_share == 0.5
    assert row.run_seconds is None
    assert row.error is None


def test_a_registry_without_backends_is_an_error():
    with pytest.raises(BackendNotFound):
        delegraph.compare(
            Net().eval(), torch.ones(3), registry=Registry(discover=False)
        )


def test_all_usable_backends_are_compared_by_default():
    registry = Registry(discover=False)
    for name in ("b", "a"):
        register(registry, type(name, (EchoBackend,), {}), ALL_OPERATORS, EchoRuntime)

    rows = delegraph.compare(Net().eval(), torch.ones(3), registry=registry).candidates

    assert [row.backends for row in rows] == [("a",), ("b",), ("a", "b")]


@pytest.mark.parametrize(
    ("backends", "error"),
    [([], OptionError), ("echobackend", OptionError), (["no"], BackendNotFound)],
)
def test_wrong_backends_are_refused(registry, backends, error):
    with pytest.raises(error):
        delegraph.compare(
            Net().eval(), (torch.ones(3),), backends=backends, registry=registry
        )

"""Plugins may add report formats, readers of models, and observers of runs."""

import json

import delegraph
import pytest
import torch
from delegraph.backend import BackendDetails, PreprocessResult
from delegraph.discovery.registry import Registry
from delegraph.errors import (
    FormatNotFound,
    InputError,
    PluginBroken,
    PluginFailed,
    UsageError,
)
from delegraph.partitioner import (
    CapabilityPartitioner,
    DelegationSpec,
    Partitioner,
    PartitionResult,
)
from delegraph.plugin import ModelSpec, ReportSpec, hookimpl
from delegraph.report import LoweringResult, ReportFormat, write_report
from delegraph.runtime import BackendRuntime

from ..conftest import EchoBackend, EchoRuntime


class Net(torch.nn.Module):
    def forward(self, x):
        return torch.relu(torch.sin(x) + 1)


class Csv(ReportFormat):
    @staticmethod
    def render(result):
        rows = [
            f"{method},{op},{n}"
            for method, counts in result.report.host.items()
            for op, n in counts.items()
        ]
        return "\n".join(["method,operator,count", *rows]) + "\n"


class Several(ReportFormat):
    tells_failures = True

    @classmethod
    def write(cls, result, path):
        places = [path.with_name(f"{path.name}.{k}") for k in range(2)]
        for place in places:
            place.write_text(str(result.error))
        return places


class Failing(ReportFormat):
    @staticmethod
    def render(result):
        raise ZeroDivisionError("no rows")


class Foreign:
    """A model object of another library."""


class Special(Foreign):
    pass


def zoo(given):
    if given == "bad":
        return None
    return {"model": Net().eval(), "args": (torch.ones(2),)}


class Plugin:
    @hookimpl
    def delegraph_reports(self):
        here = f"{__name__}:"
        return [
            ReportSpec(".csv", here + "Csv"),
            ReportSpec(".two", here + "Several"),
            ReportSpec(".bad", here + "Failing"),
            ReportSpec(".no", here + "Net"),
            ReportSpec(".txt", here + "Csv"),
        ]

    @hookimpl
    def delegraph_models(self):
        return [ModelSpec("zoo", f"{__name__}:zoo", types=(f"{__name__}:Foreign",))]


@pytest.fixture
def registry():
    registry = Registry(discover=False)
    registry.register(EchoBackend, runtime=EchoRuntime)
    registry.register(Plugin())
    return registry


@pytest.fixture
def result(registry):
    return LoweringResult(
        delegraph.lower(
            Net().eval(), (torch.ones(2),), backends=[], registry=registry
        ).report
    )


def test_the_suffix_chooses_a_plugins_format(registry, result, tmp_path):
    assert write_report(result, tmp_path / "r.CSV", registry) == [tmp_path / "r.CSV"]
    assert (tmp_path / "r.CSV").read_text().splitlines()[1:] == [
        "forward,aten.sin.default,1",
        "forward,aten.add.Tensor,1",
        "forward,aten.relu.default,1",
    ]
    assert [p.name for p in write_report(result, tmp_path / "r.two", registry)] == [
        "r.two.0",
        "r.two.1",
    ]


def test_plugins_cannot_replace_text_and_json(registry, result, tmp_path):
    for name in ("r.txt", "r"):
        write_report(result, tmp_path / name, registry)
        assert (tmp_path / name).read_text() == f"{result.report}\n"
    result.report.save(tmp_path / "r.json")

    assert json.loads((tmp_path / "r.json").read_text()) == {
        **result.report.to_json(),
        "verification": None,
    }


def test_only_formats_for_failures_run_without_a_report(registry, tmp_path):
    failed = LoweringResult(None, error=InputError("input-invalid", "no model"))
    assert write_report(failed, tmp_path / "r.csv", registry) == []
    assert len(write_report(failed, tmp_path / "r.two", registry)) == 2
    assert [path.name for path in tmp_path.iterdir()] != ["r.csv"]


def test_errors_of_formats_name_the_format(registry, result, tmp_path):
    with pytest.raises(FormatNotFound, match="there is no report format for 'r.doc'"):
        write_report(result, "r.doc", registry)
    with pytest.raises(
        PluginBroken, match=r"no subclass of delegraph.report.ReportFormat"
    ):
        write_report(result, tmp_path / "r.no", registry)
    with pytest.raises(PluginFailed, match="ZeroDivisionError: no rows"):
        write_report(result, tmp_path / "r.bad", registry)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", ["html", "junit.xml", "nodes.json"])
def test_missing_analysis_is_named_with_its_pip_command(registry, result, suffix):
    with pytest.raises(
        FormatNotFound, match="comes with delegraph-analysis, which is not installed"
    ) as caught:
        write_report(result, f"r.{suffix}", registry)
    assert caught.value.hint == "pip install delegraph-analysis"


def test_objects_of_another_library_are_models(registry):
    lowered = delegraph.lower(Special(), backends=[], registry=registry)
    assert torch.equal(lowered(torch.ones(2)), Net()(torch.ones(2)))
    with pytest.raises(
        InputError, match="must be an nn.Module or an ExportedProgram, not object"
    ):
        delegraph.lower(object(), backends=[], registry=registry)


def test_a_plugin_reads_models_of_its_scheme(registry, monkeypatch):
    from delegraph.command import check_model, load_model, read_model

    monkeypatch.setattr(load_model, "default_registry", lambda: registry)
    assert check_model("zoo:any") is None

    loaded = read_model("zoo:any")
    module = loaded.programs["forward"]
    inputs = loaded.inputs["forward"]
    assert torch.equal(module(*inputs), Net()(torch.ones(2)))
    with pytest.raises(InputError, match="zoo:bad"):
        read_model("zoo:bad")
    with pytest.raises(
        UsageError, match="there is no model scheme 'zou'; did you mean 'zoo'"
    ):
        check_model("zou:any")


class Record:
    def __init__(self):
        self.seen = []

    def begin(self, values):
        self.seen.append(("begin", [n.name for n in values]))

    def see(self, node, value):
        self.seen.append((node.name, type(value).__name__))

    def enter(self, owner, module, inputs):
        self.seen.append(("enter", len(inputs)))

    def leave(self):
        self.seen.append("leave")

    def inside(self, delegate, values):
        self.seen.append(("inside", delegate.name))

    def end(self):
        self.seen.append("end")


class Branching(torch.nn.Module):
    def forward(self, x):
        y = torch.sin(x)
        return torch.cond(y.sum() > 0, lambda t: t + 1, lambda t: t - 1, (y,))


def test_an_observer_sees_a_run_in_order(registry):
    x = torch.ones(2)
    lowered = delegraph.lower(Branching().eval(), (x,), backends=[], registry=registry)
    record = Record()
    assert torch.equal(lowered.observe(record, x), Branching()(x))

    names = [entry if isinstance(entry, str) else entry[0] for entry in record.seen]
    assert names[:2] == ["begin", "sin"]
    assert names[-1] == "end"
    assert (
        names.index("enter")
        < names.index("add")
        < names.index("leave")
        < names.index("cond")
    )

    figures = lowered.verify(x, observer=Record())
    assert figures.agrees()
    with pytest.raises(InputError, match="does not show the values in it"):
        lowered.verify(x, observer=Record(), runtime="executorch")


def test_nested_delegate_is_observed_as_part_of_the_outer(registry):
    """The outer delegate has no runtime, so its original operators run."""

    class InnerBackend(BackendDetails):
        @staticmethod
        def preprocess(edge_program, compile_specs):
            return PreprocessResult(b"")

    class InnerRuntime(BackendRuntime):
        @staticmethod
        def load(processed_bytes, compile_specs, named_data):
            return lambda x: (torch.sin(x),)

    class OuterBackend(InnerBackend):
        pass

    class TakesAll(Partitioner):
        def partition(self, program):
            for node in program.graph.nodes:
                if node.op == "call_function":
                    node.meta["delegation_tag"] = "all"
            return PartitionResult(program, {"all": DelegationSpec("OuterBackend", [])})

    takes_sin = CapabilityPartitioner(
        lambda node: None if "sin" in str(node.target) else "unknown", "InnerBackend"
    )
    registry.register(
        InnerBackend, partitioner=takes_sin, runtime=InnerRuntime, name="inner"
    )
    registry.register(OuterBackend)
    x = torch.ones(2)
    inner = delegraph.lower(Waves().eval(), (x,), backends=["inner"], registry=registry)
    outer = delegraph.lower(
        inner.exported_program(), backends=[TakesAll()], registry=registry
    ).with_missing_runtime("eager")

    assert torch.equal(outer.observe(Record(), x), Waves()(x))


class Waves(torch.nn.Module):
    def forward(self, x):
        return torch.sin(x) + 1

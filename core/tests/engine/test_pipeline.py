"""Every entry point runs a range of the same lowering steps."""

import delegraph
import delegraph_executorch.edge as edge
import pytest
import torch
from delegraph import api
from delegraph.backend import BackendDetails, PreprocessResult
from delegraph.discovery.registry import Registry
from delegraph.engine import pipeline
from delegraph.partitioner import CapabilityPartitioner
from delegraph_executorch.edge import (
    EdgeProgramManager,
    MethodProgramsPartitionerSpec,
    to_backend,
    to_edge,
    to_edge_transform_and_lower,
)
from torch import nn

STEPS = [
    "export",
    "normalize",
    "decompose-and-partition",
    "extract",
    "compile",
    "insert",
    "finish",
]
EACH_TURN = STEPS[2:6]


class Waves(nn.Module):
    def forward(self, x):
        return torch.sin(x) * torch.cos(x)


def export_waves():
    return torch.export.export(Waves().eval(), (torch.ones(3),))


def partitioner_for(*names):
    return CapabilityPartitioner(
        lambda n: None if n.target.overloadpacket.__name__ in names else "no",
        "EchoBackend",
    )


@pytest.fixture
def recorded_steps(monkeypatch, registry):
    """Record the names of the steps that run. EchoBackend is in the default registry."""
    names = []
    begin = pipeline.Journal.step

    def step(journal, name, **options):
        names.append(name)
        return begin(journal, name, **options)

    monkeypatch.setattr(pipeline.Journal, "step", step)
    with delegraph.register(
        registry.get_backend("EchoBackend"), runtime=registry.runtime_for("EchoBackend")
    ):
        yield names


def test_lower_runs_all_steps_and_reports_their_times(recorded_steps):
    lowered = api.lower(
        Waves().eval(),
        (torch.ones(3),),
        backends=[partitioner_for("sin"), partitioner_for("cos")],
    )

    assert recorded_steps == [*STEPS[:2], *EACH_TURN, *EACH_TURN, "finish"]
    assert list(lowered.report.seconds) == STEPS
    assert all(seconds > 0 for seconds in lowered.report.seconds.values())
    assert all(
        list(row.seconds) == ["extract", "compile"] for row in lowered.report.delegates
    )


def test_the_report_lists_all_steps_without_a_backend(recorded_steps):
    assert list(api.lower(export_waves(), backends=[]).report.seconds) == STEPS
    assert recorded_steps == ["export", "normalize", "finish"]


def edge_manager():
    return EdgeProgramManager({"forward": export_waves()})


@pytest.mark.parametrize(
    "face, steps",
    [
        (
            lambda: to_backend("EchoBackend", export_waves(), []),
            ["normalize", *EACH_TURN, "finish"],
        ),
        (
            lambda: to_backend(export_waves(), partitioner_for("sin")),
            ["normalize", *EACH_TURN, "finish"],
        ),
        (
            lambda: to_backend(
                MethodProgramsPartitionerSpec(
                    {"a": export_waves(), "b": export_waves()},
                    {"b": partitioner_for("sin")},
                )
            ),
            ["normalize", *EACH_TURN, "finish"],
        ),
        (
            lambda: to_edge({"a": export_waves(), "b": export_waves()}),
            ["normalize", "finish"],
        ),
        (
            lambda: to_edge_transform_and_lower(
                export_waves(),
                [lambda p: p],
                [partitioner_for("sin"), partitioner_for("cos")],
            ),
            ["normalize", *EACH_TURN, *EACH_TURN, "finish"],
        ),
        (lambda: edge_manager().transform([lambda p: p]), ["normalize", "finish"]),
        (
            lambda: edge_manager().to_backend(partitioner_for("sin")),
            ["normalize", *EACH_TURN, "finish"],
        ),
    ],
)
def test_every_entry_point_runs_a_range_of_the_steps(recorded_steps, face, steps):
    face()
    assert recorded_steps == steps


class Unread:
    """A blob that fails when its bytes are read."""

    def __len__(self):
        return 3

    def write_to(self, file):
        raise AssertionError("the blob was read")


class LazyBackend(BackendDetails):
    @staticmethod
    def preprocess(edge_program, compile_specs):
        return PreprocessResult(Unread())


class SineAndMish(nn.Module):
    """A sine, which is delegated, and a mish, which is decomposed for the host later."""

    def forward(self, x):
        return nn.functional.mish(torch.sin(x))


@pytest.mark.parametrize("module", [Waves(), SineAndMish()])
def test_lowering_does_not_read_blobs(module):
    """torch's verifier would read and join the bytes of every delegate."""
    registry = Registry(discover=False)
    registry.register(LazyBackend)
    sines = CapabilityPartitioner(
        lambda n: None if n.target is torch.ops.aten.sin.default else "no",
        "LazyBackend",
    )
    program = torch.export.export(module.eval(), (torch.ones(3),))
    lowered = api.lower(program, backends=[sines, sines], registry=registry)

    assert isinstance(lowered.delegates[0].module.blob, Unread)
    with pytest.raises(AssertionError, match="the blob was read"):
        lowered.exported_program().validate()


@pytest.mark.parametrize("face", [api, edge, edge.manager])
def test_public_modules_take_no_names_from_the_steps(face):
    steps = (
        "plan",
        "planner",
        "partition",
        "schedule",
        "buffers",
        "extract",
        "compile_partitions",
        "insert",
        "decompose",
    )
    inside = (
        "delegraph_programs.decompose",
        "delegraph_programs.functionalize",
        *(f"delegraph.engine.{step}" for step in steps),
    )
    homes = {
        name: f"{getattr(value, '__module__', '')}."
        for name, value in vars(face).items()
    }
    taken = [
        name
        for name, home in homes.items()
        if home.startswith(tuple(f"{module}." for module in inside))
    ]

    # which the core offers plugins
    assert [name for name in taken if name != "extract_partition"] == []

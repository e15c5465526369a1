"""Figures and facts of a backend are shown by delegate and by line of the program."""

import runpy
from typing import ClassVar

import delegraph
import pytest
import torch
from delegraph.backend import BackendDetails, DelegateMappingBuilder, PreprocessResult
from delegraph.discovery.registry import Registry
from delegraph.errors import ContractViolation
from delegraph.partitioner import CapabilityPartitioner
from delegraph_programs import is_operator
from torch import nn

aten = torch.ops.aten
X = torch.ones(2, 4)


class TellingBackend(BackendDetails):
    """One event for a multiplication with its follower. A linear layer takes ten times
    longer.
    """

    more: ClassVar = {}

    @classmethod
    def preprocess(cls, edge_program, compile_specs):
        mapping = DelegateMappingBuilder(generated_identifiers=True)
        calls = [
            node
            for node in edge_program.graph.nodes
            if node.op == "call_function" and is_operator(node)
        ]
        figures = {}
        while calls:
            together = [calls.pop(0)]
            if together[0].target is aten.mul.Tensor and calls:
                together.append(calls.pop(0))
            cycles = 1000 if together[0].target is aten.linear.default else 100
            identifier = mapping.insert_delegate_mapping_entry(nodes=together)
            figures[identifier] = {"cycles": cycles, "energy": cycles / 3}
        given = {
            "facts": {"memory": "on-chip", "target": spec(compile_specs)},
            "figures": figures,
            **cls.more,
        }
        return PreprocessResult(b"", mapping.get_delegate_mapping(), **given)


def spec(compile_specs):
    return compile_specs[0].value.decode() if compile_specs else "npu-1"


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        x = self.layer(x)
        x = x * 2
        x = x.relu()
        return torch.cholesky_inverse(x @ x.T).sin()


def partitioner_for(refuses=("cholesky_inverse",), target=None):
    specs = (
        []
        if target is None
        else [delegraph.backend.CompileSpec("target", target.encode())]
    )
    names = {f"aten.{name}.default" for name in refuses}
    return CapabilityPartitioner(
        lambda n: "no" if str(n.target) in names else None, "TellingBackend", specs
    )


def lower_net(*partitioners, module=None, inputs=(X,)):
    registry = Registry(discover=False)
    registry.register(TellingBackend)
    return delegraph.lower(
        module or Net().eval(),
        inputs,
        backends=list(partitioners or [partitioner_for()]),
        registry=registry,
    )


@pytest.fixture(scope="module")
def program():
    return lower_net()


def test_the_report_has_figures_of_each_delegate(program):
    first, second = program.report.delegates
    assert first.figures["cycles"] > second.figures["cycles"] == 100
    assert "cycles 100, energy 33.33" in str(second)
    assert "memory on-chip" in str(second)
    assert program.delegates[1].figures == {0: {"cycles": 100, "energy": 100 / 3}}
    assert program.delegates[1].facts == {"memory": "on-chip", "target": "npu-1"}
    assert program.report.to_json()["delegates"][1]["figures"] == {
        "cycles": 100,
        "energy": 100 / 3,
    }


def test_lines_are_sorted_by_cost(program):
    rows = program.report.figures
    cycles = [row.figures["cycles"] for row in rows]
    assert cycles == sorted(cycles, reverse=True)
    assert cycles[0] >= 1000
    assert sum(cycles) == sum(row.figures["cycles"] for row in program.report.delegates)

    (fused,) = (row for row in rows if len(row.sources) == 2)
    assert [s.code for s in fused.sources] == ["x = x * 2", "x = x.relu()"]
    assert fused.figures["cycles"] == 100  # counted once, for both lines

    text = str(program.report)
    assert "  by line of the program:" in text
    assert (
        f"    cycles 100, energy 33.33  {fused.sources[0]} with"
        f" {fused.sources[1].place}" in text
    )
    assert (
        program.report.to_json()["figures"][0]["sources"][0]["file"]
        == rows[0].sources[0].file
    )


def test_the_text_shows_the_ten_most_expensive_lines(tmp_path):
    rows = "\n".join(f"        x = x.sin() + {k}" for k in range(12))
    head = "from torch import nn\nclass Long(nn.Module):\n    def forward(self, x):"
    file = tmp_path / "long.py"
    file.write_text(f"{head}\n{rows}\n        return x\n")
    report = lower_net(
        partitioner_for(()), module=runpy.run_path(str(file))["Long"]().eval()
    ).report

    assert len(report.figures) == 12
    assert "    and 2 more" in str(report)
    assert "more" not in report.to_text(verbose=True)


def test_target_is_shown_if_there_are_several():
    both = lower_net(
        partitioner_for(("linear", "cholesky_inverse"), "npu-1"),
        partitioner_for(("cholesky_inverse",), "npu-2"),
    ).report
    assert {row.target for row in both.delegates} == {"npu-1", "npu-2"}
    assert "target npu-1" in str(both)
    assert "target npu-2" in str(both)

    one = lower_net().report
    assert "target" not in str(one)
    assert {row["target"] for row in one.to_json()["delegates"]} == {"npu-1"}


def test_figures_of_branches_add_up():
    class Branches(nn.Module):
        def forward(self, x):
            return torch.cond(
                x.sum() > 0, lambda x: x.sin(), lambda x: x.cos().relu(), (x,)
            )

    program = lower_net(partitioner_for(()), module=Branches().eval())
    assert sum(row.figures["cycles"] for row in program.report.figures) == sum(
        row.figures.get("cycles", 0) for row in program.report.delegates
    )


def test_a_backend_without_figures_adds_no_text(monkeypatch):
    monkeypatch.setattr(TellingBackend, "more", {"figures": {}})
    report = lower_net().report
    assert report.figures == []
    assert "by line" not in str(report)


@pytest.mark.parametrize(
    "more, said",
    [
        ({"facts": ["on-chip"]}, "facts that are a list"),
        ({"figures": None}, "figures that are a NoneType"),
        (
            {"figures": {99: {"cycles": 1}}},
            "figures for 99, which debug_handle_map does not have",
        ),
        ({"figures": {0: 5}}, "5 as the figures of 0"),
        ({"figures": {0: {"cycles": float("nan")}}}, "the figure 'cycles' of 0"),
        ({"figures": {0: {"cycles": 10**400}}}, "the figure 'cycles' of 0"),
        ({"figures": {0: {"cycles": "many"}}}, "the figure 'cycles' of 0"),
        ({"figures": {0: {3: 1}}}, "the figure 3 of 0"),
        ({"figures": {0: {"cycles": True}}}, "the figure 'cycles' of 0"),
    ],
)
def test_wrong_facts_and_figures_are_refused(more, said, monkeypatch):
    monkeypatch.setattr(TellingBackend, "more", more)
    with pytest.raises(
        ContractViolation, match=f"(?s)TellingBackend.preprocess returned {said}"
    ):
        lower_net()


def test_huge_figures_and_unprintable_names_are_shown(monkeypatch):
    figures = {0: {"cycles\x1b[2J": 2**62}}
    monkeypatch.setattr(
        TellingBackend, "more", {"figures": figures, "facts": {"a\nb": "c"}}
    )
    text = str(lower_net().report)
    assert "\x1b" not in text
    assert "cycles\\x1b[2J" in text

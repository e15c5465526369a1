"""Node data for Model Explorer: each figure is at the node of the user's program, and
of the file, that it is of.

What Model Explorer calls these nodes was taken from its adapter for ``.pt2`` files, and
Arm's for ``.tosa`` files; Model Explorer 0.1.34 shows all columns of both beside these
nodes, looked at in a browser.
"""

import contextlib
import io
import json
import sys
from pathlib import Path

import delegraph
import pytest
import torch
from delegraph.backend import BackendDetails, PreprocessResult
from delegraph.cli import main
from delegraph.discovery.registry import Registry
from delegraph.errors import InputError
from delegraph.partitioner import CapabilityPartitioner
from delegraph.runtime import Border
from delegraph_analysis import ProgramProfile
from delegraph_analysis.columns import node_data_of
from delegraph_analysis.profiling import Part
from delegraph_tosa.serialize import read_numbered
from torch import nn


class Net(nn.Module):
    """A normalization that is decomposed, an operator that is refused between two
    delegates, a dropout that goes.
    """

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.GroupNorm(2, 4)

    def forward(self, x):
        y = nn.functional.dropout(self.norm(self.conv(x)), 0.5, self.training)
        return torch.linalg.inv_ex(y + 10 * torch.eye(4))[0] * 2


X = torch.randn(1, 3, 6, 6)


@pytest.fixture(scope="module")
def exported():
    torch.manual_seed(0)
    return torch.export.export(Net().eval(), (X,))


def results_by_column(columns, graph="graph"):
    """Column -> node -> value, from what is written."""
    return {
        c.name: {n: r["value"] for n, r in c.to_json()[graph]["results"].items()}
        for c in columns
    }


def test_figures_are_at_the_nodes_of_the_exported_program(exported):
    lowered = delegraph.lower(exported, backends=["tosa"])
    verification = lowered.verify(X, per_operator=True)
    found = verification.operators
    shown = results_by_column(lowered.node_data(verification=verification))
    names = {node.name: node for node in exported.graph.nodes}
    assert all(set(column) <= set(names) for column in shown.values())
    computing = {"conv2d", "group_norm", "add", "linalg_inv_ex", "mul_1"}
    assert computing <= set(shown["delegate"])
    assert computing == set(shown["error"]) - {
        "eye",
        "mul",
    }
    assert shown["delegate"]["group_norm"].startswith("lowered_module_0 of tosa: ")
    assert shown["delegate"]["mul_1"].startswith("lowered_module_1 of tosa: ")
    assert shown["delegate"]["linalg_inv_ex"] == "host"
    assert shown["refusal"] == {
        "linalg_inv_ex": "tosa: no TOSA lowering for this operator"
    }
    assert "self.norm(self.conv(x))" in shown["source"]["conv2d"]
    of_norm = [
        operator.figures.relative_error
        for operator in found.operators
        if "norm" in (operator.source.code if operator.source else "")
    ]
    assert shown["error"]["group_norm"] in of_norm
    colors = [
        r["bgColor"]
        for r in lowered.node_data()[0].to_json()["graph"]["results"].values()
        if "bgColor" in r
    ]
    assert len(set(colors)) == 1  # both delegates are of one backend
    errors = lowered.node_data(verification=verification)[-1].to_json()["graph"]
    assert {r["bgColor"] for r in errors["results"].values()} == {"#d5efd5"}
    assert "gradient" not in errors
    lowered.report.release()
    with pytest.raises(InputError, match="before the report is released"):
        lowered.node_data()


def test_infinite_values_are_kept_and_parts_show_the_worst(
    exported,
):
    from delegraph_analysis import NodeData

    data = NodeData(
        "error",
        {"graph": {"a": float("inf"), "b": 0.5, "c": float("nan")}},
        ("red", "green"),
        {float("inf"): "red"},
    ).to_json()
    assert json.loads(json.dumps(data, allow_nan=False))["graph"]["results"] == {
        "a": {"value": sys.float_info.max, "bgColor": "red"},
        "b": {"value": 0.5},
        "c": {"value": sys.float_info.max},
    }


MODEL = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)

    def forward(self, x):
        return torch.relu(self.conv(x)) * 2

def net():
    return Net().eval(), (torch.randn(1, 3, 6, 6),)

def both():
    return {"methods": {"one": net(), "two": net()}}
"""


def run_command(*words):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        code = main([*map(str, words)])
    return code, out.getvalue()


def test_the_command_writes_one_file_for_each_column(
    tmp_path,
):
    (tmp_path / "m.py").write_text(MODEL)
    given = (
        "lower",
        f"{tmp_path / 'm.py'}:net",
        "--backend=tosa",
        "--report",
        tmp_path / "n.nodes.json",
    )
    code, out = run_command(*given, "--verify-operators", "-o", tmp_path / "m.tosa")
    assert code == 0
    assert f"wrote {tmp_path / 'n.delegate.json'}, " in out
    columns = {
        p.name.split(".")[1]: json.loads(p.read_text())
        for p in tmp_path.glob("n.*.json")
    }
    assert set(columns) == {"delegate", "source", "refusal", "error"}
    _, numbers = read_numbered((tmp_path / "m.tosa").read_bytes())
    nodes = {f"main/op{number}": operator.name for operator, number in numbers.items()}
    of_file = columns["source"]["main"]["results"]
    assert set(of_file) <= set(nodes)
    assert {nodes[n] for n in of_file} >= {"CONV2D", "CLAMP", "MUL"}
    assert set(columns["error"]["main"]["results"]) == set(of_file)
    assert columns["refusal"] == {"graph": {"name": "refusal", "results": {}}}
    exit_code, _ = run_command(*given, "--max-delegates=0")
    assert exit_code == 1
    assert len(list(tmp_path.glob("n.*.json"))) == 4
    run_command(
        "lower",
        f"{tmp_path / 'm.py'}:both",
        "--backend=tosa",
        "--report",
        tmp_path / "b.nodes.json",
    )
    assert {p.name for p in tmp_path.glob("b.*.json")} == {
        f"b.{m}.{c}.json"
        for m in ("one", "two")
        for c in ("delegate", "source", "refusal")
    }


class FusingBackend(BackendDetails):
    """Expects cycles: 5 for two calls together, and 7 for the last."""

    @staticmethod
    def preprocess(edge_program, compile_specs):
        first, second, third = (
            node.meta["debug_handle"]
            for node in edge_program.graph.nodes
            if node.op == "call_function"
        )
        handles = {"f": (first, second), "l": (third,)}
        figures = {"f": {"cycles": 5}, "l": {"cycles": 7}}
        return PreprocessResult(b"", handles, figures=figures)


class Chain(torch.nn.Module):
    def forward(self, x):
        return x.sin().cos().tanh()


def test_figures_of_backends_are_columns_and_a_table(tmp_path):
    registry = Registry(discover=False)
    registry.register(FusingBackend)
    partitioner = CapabilityPartitioner(lambda n: None, "FusingBackend")
    lowered = delegraph.lower(
        Chain().eval(), (torch.ones(2),), backends=[partitioner], registry=registry
    )
    columns = {
        c.name: c
        for c in node_data_of(
            lowered.report, "forward", None, lambda identifier: ("file", identifier)
        )
    }
    assert columns["cycles"].values == {
        "graph": {"sin": 5, "cos": 5, "tanh": 7},
        "file": {"f": 5, "l": 7},
    }
    parts = (
        Part("a", "lowered_module_0", 0.5, identifier="f"),
        Part("b", "x", 0.25, identifier=Border("output", 0)),
    )
    profile = ProgramProfile("forward", 1, *[1.0] * 6, None, parts, {})
    timed = node_data_of(
        lowered.report,
        "forward",
        None,
        lambda identifier: ("file", identifier),
        profile,
    )
    # a border is no node of a file
    assert {c.name: c for c in timed}["milliseconds"].values["file"] == {"f": 500.0}
    page = lowered.report.to_html()
    rows = page.partition("<h3>By line of the program</h3>")[2].partition("</table>")[0]
    assert "x.sin().cos().tanh()" in rows
    assert ">12<" in rows


def test_no_module_takes_a_name_away():
    """Importing a module makes it an attribute of its package, also where a function
    had that name.
    """
    import delegraph_analysis

    modules = {path.stem for path in Path(delegraph_analysis.__file__).parent.iterdir()}
    assert not modules & set(delegraph_analysis.__all__)

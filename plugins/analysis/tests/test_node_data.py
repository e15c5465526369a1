"""Node data files put each figure of a report at its node in Model Explorer."""

# Model Explorer's names of these nodes come from its adapter for ``.pt2`` files, and
# from Arm's for ``.tosa`` files.

import contextlib
import io
import json
import sys
from pathlib import Path

import delegraph
import delegraph_analysis
import pytest
import torch
from delegraph.backend import BackendDetails, PreprocessResult
from delegraph.cli import main
from delegraph.discovery.registry import Registry
from delegraph.errors import InputError
from delegraph.partitioner import CapabilityPartitioner
from delegraph.runtime import Border
from delegraph_analysis import NodeData, ProgramProfile
from delegraph_analysis.columns import node_data_of
from delegraph_analysis.profiling import Part
from delegraph_tosa.serialize import read_numbered
from torch import nn


class Net(nn.Module):
    """A model with three kinds of nodes that are hard to place.

    The normalization is decomposed, the inverse runs on the host between two
    delegates, and the dropout is removed.
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


@pytest.fixture(scope="module")
def lowered(exported):
    return delegraph.lower(exported, backends=["tosa"])


@pytest.fixture(scope="module")
def verification(lowered):
    return lowered.verify(X, per_operator=True)


def results_of(column):
    """Return node -> result, from the JSON content of a column."""
    return column.to_json()["graph"]["results"]


@pytest.fixture(scope="module")
def values(lowered, verification):
    """Return column -> node -> value, from the JSON content of all columns."""
    return {
        column.name: {
            node: result["value"] for node, result in results_of(column).items()
        }
        for column in lowered.node_data(verification=verification)
    }


def test_columns_have_only_nodes_of_the_exported_program(exported, values):
    names = {node.name for node in exported.graph.nodes}

    for column in values.values():
        assert set(column) <= names


def test_all_computing_nodes_have_a_delegate_and_an_error(values):
    computing = {"conv2d", "group_norm", "add", "linalg_inv_ex", "mul_1"}

    assert computing <= set(values["delegate"])
    # eye and mul are constants in the lowered program
    assert computing == set(values["error"]) - {"eye", "mul"}


def test_nodes_show_their_delegate_or_the_host(values):
    delegates = values["delegate"]

    assert delegates["group_norm"].startswith("lowered_module_0 of tosa: ")
    assert delegates["linalg_inv_ex"] == "host"
    assert delegates["mul_1"].startswith("lowered_module_1 of tosa: ")


def test_refused_nodes_show_the_reason(values):
    assert values["refusal"] == {
        "linalg_inv_ex": "tosa: no TOSA lowering for this operator"
    }


def test_nodes_show_their_source_line(values):
    assert "self.norm(self.conv(x))" in values["source"]["conv2d"]


def test_a_decomposed_node_shows_the_error_of_one_of_its_parts(values, verification):
    errors_of_norm = [
        operator.figures.relative_error
        for operator in verification.operators.operators
        if operator.source and "norm" in operator.source.code
    ]

    assert values["error"]["group_norm"] in errors_of_norm


def test_delegates_of_one_backend_have_one_color(lowered):
    delegate_column = lowered.node_data()[0]

    colors = [
        result["bgColor"]
        for result in results_of(delegate_column).values()
        if "bgColor" in result
    ]
    assert len(set(colors)) == 1


def test_small_errors_are_all_green_without_a_gradient(lowered, verification):
    error_column = lowered.node_data(verification=verification)[-1]

    colors = {result["bgColor"] for result in results_of(error_column).values()}
    assert colors == {"#d5efd5"}
    assert "gradient" not in error_column.to_json()["graph"]


def test_released_reports_have_no_node_data(exported):
    lowered = delegraph.lower(exported, backends=["tosa"])
    lowered.report.release()

    with pytest.raises(InputError, match="before the report is released"):
        lowered.node_data()


def test_values_that_are_not_finite_become_the_largest_float():
    """JSON has neither infinity nor NaN."""
    values = {"a": float("inf"), "b": 0.5, "c": float("nan")}
    gradient = ("red", "green")
    colors = {float("inf"): "red"}

    content = NodeData("error", {"graph": values}, gradient, colors).to_json()

    written = json.loads(json.dumps(content, allow_nan=False))
    assert written["graph"]["results"] == {
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


def run_lower(folder, model, *options):
    """Run ``delegraph lower`` for a model of ``MODEL``, with a node data report.

    Return the exit code and the standard output.
    """
    (folder / "m.py").write_text(MODEL)
    words = ["lower", f"{folder / 'm.py'}:{model}", "--backend=tosa"]
    words += ["--report", str(folder / "n.nodes.json"), *map(str, options)]
    stdout = io.StringIO()
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(io.StringIO()):
        code = main(words)
    return code, stdout.getvalue()


def test_the_command_writes_one_file_for_each_column(tmp_path):
    code, stdout = run_lower(tmp_path, "net", "--verify-operators")

    assert code == 0
    assert f"wrote {tmp_path / 'n.delegate.json'}, " in stdout
    assert {path.name for path in tmp_path.glob("n.*.json")} == {
        "n.delegate.json",
        "n.source.json",
        "n.refusal.json",
        "n.error.json",
    }
    refusals = json.loads((tmp_path / "n.refusal.json").read_text())
    assert refusals == {"graph": {"name": "refusal", "results": {}}}


def test_columns_have_the_operators_of_the_written_file(tmp_path):
    file = tmp_path / "m.tosa"
    code, _ = run_lower(tmp_path, "net", "--verify-operators", "-o", file)

    assert code == 0
    _, numbers = read_numbered(file.read_bytes())
    names = {f"main/op{number}": operator.name for operator, number in numbers.items()}
    sources = json.loads((tmp_path / "n.source.json").read_text())["main"]["results"]
    assert set(sources) <= set(names)
    assert {names[node] for node in sources} >= {"CONV2D", "CLAMP", "MUL"}
    errors = json.loads((tmp_path / "n.error.json").read_text())["main"]["results"]
    assert set(errors) == set(sources)


def test_node_data_is_written_if_too_many_delegates_fail_the_command(tmp_path):
    code, _ = run_lower(tmp_path, "net", "--verify-operators", "--max-delegates=0")

    assert code == 1
    assert len(list(tmp_path.glob("n.*.json"))) == 4


def test_several_methods_have_files_of_their_own(tmp_path):
    run_lower(tmp_path, "both")

    assert {path.name for path in tmp_path.glob("n.*.json")} == {
        "n.one.delegate.json",
        "n.one.source.json",
        "n.one.refusal.json",
        "n.two.delegate.json",
        "n.two.source.json",
        "n.two.refusal.json",
    }


class FusingBackend(BackendDetails):
    """Reports 5 cycles for the first two operators together, and 7 for the last."""

    @staticmethod
    def preprocess(edge_program, compile_specs):
        first, second, third = (
            node.meta["debug_handle"]
            for node in edge_program.graph.nodes
            if node.op == "call_function"
        )
        handles = {"fused": (first, second), "last": (third,)}
        figures = {"fused": {"cycles": 5}, "last": {"cycles": 7}}
        return PreprocessResult(b"", handles, figures=figures)


class Chain(torch.nn.Module):
    def forward(self, x):
        return x.sin().cos().tanh()


@pytest.fixture(scope="module")
def report_with_cycles():
    registry = Registry(discover=False)
    registry.register(FusingBackend)
    partitioner = CapabilityPartitioner(lambda node: None, "FusingBackend")
    return delegraph.lower(
        Chain().eval(), (torch.ones(2),), backends=[partitioner], registry=registry
    ).report


def columns_with_file_nodes(report, profile=None):
    """Return name -> column; operators of the delegate are nodes of a graph "file"."""
    columns = node_data_of(
        report, "forward", None, lambda identifier: ("file", identifier), profile
    )
    return {column.name: column for column in columns}


def test_figures_of_backends_are_a_column(report_with_cycles):
    columns = columns_with_file_nodes(report_with_cycles)

    assert columns["cycles"].values == {
        "graph": {"sin": 5, "cos": 5, "tanh": 7},
        "file": {"fused": 5, "last": 7},
    }


def test_times_are_at_operators_and_not_at_borders(report_with_cycles):
    parts = (
        Part("a", "lowered_module_0", 0.5, identifier="fused"),
        Part("b", "x", 0.25, identifier=Border("output", 0)),
    )
    profile = ProgramProfile("forward", 1, *[1.0] * 6, None, parts, {})

    columns = columns_with_file_nodes(report_with_cycles, profile)

    assert columns["milliseconds"].values["file"] == {"fused": 500.0}


def test_the_page_adds_up_figures_of_a_source_line(report_with_cycles):
    page = report_with_cycles.to_html()

    table = page.partition("<h3>By line of the program</h3>")[2]
    rows = table.partition("</table>")[0]
    assert "x.sin().cos().tanh()" in rows
    assert ">12<" in rows  # 5 + 7 cycles


def test_no_public_name_is_also_a_module():
    """The import of a module would replace a public function of the same name."""
    folder = Path(delegraph_analysis.__file__).parent
    modules = {path.stem for path in folder.iterdir()}

    assert not modules & set(delegraph_analysis.__all__)

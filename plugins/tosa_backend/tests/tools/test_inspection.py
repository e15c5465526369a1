"""``delegraph inspect`` computes figures, writes an HTML page and shows verdicts of tools."""

from __future__ import annotations

import json
import re
import subprocess
from html.parser import HTMLParser
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from delegraph.cli import main
from delegraph_analysis import summary_text
from delegraph_tosa.format import TosaFormat
from delegraph_tosa.ir import operators as ops
from delegraph_tosa.ir.graph import Graph, Value, literal
from delegraph_tosa.ir.types import DType, Type
from delegraph_tosa.serialize import TosaFile
from delegraph_tosa.spec import TosaSpec
from delegraph_tosa.tools import figures
from delegraph_tosa.tools.graph_figures import multiply_accumulates
from delegraph_tosa.tools.html import page

from ..support import reference_tools
from ..support.samples import make_operator, samples
from ..support.structured import custom, structured

EVIL = "<script>alert('x')</script>\"&\x00\n"


def value(*shape: int, name: str = "") -> Value:
    return Value(Type(shape, DType.FP32), name=name)


def chain_graph() -> Graph:
    """exp, then its sum with the input: 32 bytes each; input, exp and sum are alive at
    once.
    """
    x = value(8, name="x")
    exp = make_operator(ops.EXP, x)
    add = make_operator(ops.ADD, *exp.outputs, x)
    last = make_operator(ops.ABS, *add.outputs)
    last.outputs[0].name = "y"
    return Graph([x], last.outputs, [exp, add, last])


def test_figures_of_a_chain():
    found = figures(chain_graph())
    assert found.computed_bytes == {"fp32": 4 * 32}
    assert found.constant_bytes == {}
    assert found.parameters == 0
    assert found.multiply_accumulates == 0
    assert found.largest_live_bytes == 3 * 32


def test_peak_memory_includes_bodies_at_their_call():
    x = value(8)
    condition = Value(Type((1,), DType.BOOL))
    branches = [
        Graph([v := value(8)], (op := make_operator(ops.EXP, v)).outputs, [op], name)
        for name in ("a", "b")
    ]
    called = make_operator(
        ops.COND_IF, condition, x, then_graph=branches[0], else_graph=branches[1]
    )
    assert (
        figures(Graph([condition, x], called.outputs, [called])).largest_live_bytes
        == 1 + 2 * 32 + 2 * 32
    )


def test_bodies_of_control_flow_are_counted(tmp_path):
    graph = next(
        sample.graph
        for sample in structured()
        if sample.label == "VARIABLE_WRITE(in WHILE_LOOP)"
    )
    file = tmp_path / "loop.tosa"
    file.write_bytes(TosaFile(graph, TosaSpec()).join())
    found = TosaFormat.inspect(file)
    assert sum(found.operators.values()) == 9
    assert found.operators["WHILE_LOOP"] == 1
    assert found.operators["GREATER"] == 1
    assert found.operators["ADD"] == 2
    assert found.constants == 3
    assert found.constant_bytes == 16
    assert found.constant_bytes_by_type == {"fp32": 8, "int32": 8}
    assert found.profiles == ("FP", "INT")
    assert found.extensions == ("controlflow", "variable")


def test_a_graph_of_nothing_has_nothing(tmp_path):
    file = tmp_path / "empty.tosa"
    file.write_bytes(TosaFile(Graph([], [], []), TosaSpec()).join())
    lines = TosaFormat.inspect(file).lines()
    assert {
        "inputs: none",
        "outputs: none",
        "0 operators: none",
        "bytes of constants: none",
    } <= set(lines)


def test_summary_lists_values_and_largest_constants(tmp_path):
    graph = chain_graph()
    weights = [literal(np.ones((8,)) * k, DType.FP32, np.float32) for k in range(7)]
    for k, weight in enumerate(weights):
        weight.name = f"w{k}"
        graph.operators.append(make_operator(ops.ADD, graph.outputs[0], weight))
        graph.outputs = list(graph.operators[-1].outputs)
    graph.outputs[0].name = "\x1b[2J" + "y" * 100
    file = tmp_path / "chain.tosa"
    file.write_bytes(TosaFile(graph, TosaSpec()).join())
    found = TosaFormat.summarize(file)
    (method,) = found.methods
    assert [(value.name, value.dtype, value.shape) for value in method.inputs] == [
        ("x", "float32", (8,))
    ]
    assert method.operators == {"ADD": 8, "EXP": 1, "ABS": 1}
    assert found.kind == "TOSA program"
    assert found.version == "1.0"
    assert found.bytes == file.stat().st_size
    assert dict(found.needs) == {"profiles": ["FP"], "extensions": []}
    assert found.constants == 7
    assert found.constant_bytes == 7 * 32
    assert [(c.name, c.bytes) for c in found.largest] == [
        (f"w{k}", 32) for k in range(5)
    ]
    shown = summary_text(found)
    assert "\x1b" not in shown
    assert "y" * 60 not in shown
    assert "  in   x: float32[8]" in shown
    assert "operators: 10 (8 ADD, 1 ABS, 1 EXP)" in shown


def test_tools_get_no_large_constants_of_large_files(tmp_path, monkeypatch):
    """The reference model is not asked at all, tosa-opt about a copy."""
    weight, zero = (
        literal(np.zeros(shape), DType.FP32, np.float32) for shape in ((1, 512, 512), 1)
    )
    x = value(1, 4, 512, name="x")
    product = make_operator(ops.MATMUL, x, weight, zero, zero, dtype=DType.FP32)
    file = tmp_path / "product.tosa"
    file.write_bytes(
        TosaFile(Graph([x], product.outputs, [product]), TosaSpec()).join()
    )
    asked = []

    def call(command, text=""):
        asked.extend(
            Path(found).stat().st_size
            for found in re.findall(r"filename=([^}]+)", " ".join(command))
        )
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr("delegraph_tosa.tools.external_validators.WHOLE_UP_TO", 1 << 20)
    real = TosaFormat.verify(file)
    assert [v.accepted for v in real] == [
        True,
        None,
    ]
    assert "a copy with 1 large constants as inputs" in real[0].detail
    monkeypatch.setattr("delegraph_tosa.tools.external_validators._call", call)
    TosaFormat.verify(file)
    assert len(asked) == 1
    assert asked[0] < 4096


PRODUCTS = {
    "CONV2D": 1 * 4 * 6 * 5 * 3 * 3 * 4,
    "DEPTHWISE_CONV2D": 4 * 6 * 8 * 3 * 3,
    "CONV3D": 2 * 4 * 6 * 5 * 1 * 3 * 3 * 4,
    "TRANSPOSE_CONV2D": 4 * 5 * 5 * 3 * 2 * 3,
    "MATMUL": 2 * 3 * 4 * 5,
    "ADD": 0,
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_multiply_accumulates_are_counted(name):
    operator = next(
        s.graph.operators[0]
        for s in samples(DType.FP32)
        if s.label.startswith(f"{name}(")
    )
    assert multiply_accumulates(operator) == PRODUCTS[name]


def test_parameters_do_not_count_shape_constants():
    x = value(2, 3)
    reshape = make_operator(ops.RESHAPE, x, literal([3, 2], DType.SHAPE, np.int64))
    add = make_operator(
        ops.ADD, *reshape.outputs, literal(np.ones((3, 2)), DType.FP32, np.float32)
    )
    found = figures(Graph([x], add.outputs, [reshape, add]))
    assert found.parameters == 6
    assert found.constant_bytes == {"fp32": 24, "shape": 16}


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        assert not [
            name
            for name, content in attrs
            if name.startswith("on") or "http:" in (content or "")
        ]

    def handle_data(self, data):
        self.text += data


def test_names_are_never_markup_in_pages():
    graph = chain_graph()
    graph.inputs[0].name = EVIL
    graph.name = EVIL
    graph.operators[0].source = EVIL
    written = page(graph, EVIL, [(EVIL, EVIL)])
    reader = _Reader()
    reader.feed(written)
    known = (
        "html head meta title style script body h1 h2 table tr th td div svg path g"
        " rect text".split()
    )
    # the one that moves pictures
    assert reader.tags <= {*known}
    assert written.count("<script") == 1
    assert "<script>alert('x')</script>" in reader.text
    assert {"EXP", "ADD", "ABS"} <= set(re.findall("[A-Z]{3}", reader.text))
    assert not re.search(r"(src|href|url)\s*[=(]", written)


def test_each_edge_leads_downwards():
    paths = re.findall(r'class="wire" d="([^"]+)"', page(chain_graph(), "t", []))
    assert len(paths) == 4  # values; one of them is used twice
    assert sum(path.count("l3 6l3 -6") for path in paths) == 5  # arrowheads
    legs = re.findall(r"M\d+ (\d+)(?:V\d+)?C\d+ \d+ \d+ \d+ \d+ (\d+)", "".join(paths))
    assert len(legs) == 6
    assert all(int(start) < int(end) for start, end in legs)


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "a ,b}.tosa"
    file.write_bytes(TosaFile(chain_graph(), TosaSpec()).join())
    return file


def test_inspect_command_writes_page_and_verdicts(path, tmp_path, capsys):
    reference_tools.tools()
    assert (
        main(
            [
                "inspect",
                str(path),
                "--html",
                str(tmp_path / "g.html"),
                "--verify",
                "--json",
            ]
        )
        == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert [(v["judge"], v["accepted"]) for v in found["verdicts"]] == [
        ("tosa-opt", True),
        ("reference model", True),
    ]
    assert found["largest_live_bytes"] == 96
    assert "EXP" in (tmp_path / "g.html").read_text()


def test_a_refusal_is_shown_and_is_exit_code_1(tmp_path, capsys):
    reference_tools.tools()
    deep = make_operator(ops.ABS, value(*[1] * 7))
    file = tmp_path / "deep.tosa"
    file.write_bytes(
        TosaFile(Graph(deep.inputs, deep.outputs, [deep]), TosaSpec()).join()
    )
    assert main(["inspect", str(file), "--verify"]) == 1
    assert (
        "refused by tosa-opt: 'tosa.abs' op failed level check"
        in capsys.readouterr().out
    )


@pytest.mark.parametrize("sample", list(structured()), ids=lambda sample: sample.label)
def test_the_page_and_the_text_of_every_structure(sample, tmp_path):
    file = tmp_path / "s.tosa"
    file.write_bytes(TosaFile(sample.graph, TosaSpec()).join())
    shown = TosaFormat.page(file)
    assert shown.count("<svg") == len(sample.graph.reachable())
    assert all(
        f">{op.name}<" in shown
        for graph in sample.graph.reachable()
        for op in graph.operators
    )
    facts = TosaFormat.inspect(file)
    assert facts.text.count("graph @") == len(sample.graph.reachable())


VERIFIED = (
    "VARIABLE_WRITE(in WHILE_LOOP)",
    "COND_IF(5 deep)",
    "VARIABLE_READ(in both branches)",
)


@pytest.mark.parametrize("label", VERIFIED)
def test_official_tools_verify_control_flow_and_variables(label, tmp_path):
    reference_tools.tools()
    file = tmp_path / "s.tosa"
    file.write_bytes(
        TosaFile(
            next(s.graph for s in structured() if s.label == label), TosaSpec()
        ).join()
    )
    assert [verdict.accepted for verdict in TosaFormat.verify(file)] == [True, True]


def test_custom_operators_skip_the_reference_model(tmp_path):
    reference_tools.tools()
    file = tmp_path / "custom.tosa"
    file.write_bytes(TosaFile(custom(), TosaSpec()).join())
    legal, run = TosaFormat.verify(file)
    assert legal.accepted
    assert run.accepted is None
    assert run.detail == "it does not run CUSTOM, which only its implementation knows"
    assert main(["inspect", str(file), "--verify"]) == 0


def test_refusals_of_tools_are_shown_without_traceback(tmp_path):
    """The reference model lacks convolutions of mixed element types, which the 1.1
    draft has.
    """
    reference_tools.tools()
    graph = next(
        s.graph
        for s in samples(version=(1, 1))
        if s.label.startswith("CONV2D(fp8e4m3, fp8e5m2")
    )
    file = tmp_path / "mixed.tosa"
    file.write_bytes(TosaFile(graph, TosaSpec((1, 1))).join())
    verdict = TosaFormat.verify(file)[1]
    assert verdict.accepted is False
    assert "Traceback" not in verdict.detail
    assert "File" not in verdict.detail
    assert verdict.detail


def test_tools_that_are_not_installed_are_named(path, monkeypatch, capsys):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    assert main(["inspect", str(path), "--verify"]) == 0
    assert (
        "not checked by tosa-opt: not installed: pip install tosa-tools"
        in capsys.readouterr().out
    )

"""Reports and programs for the tests of pages, and readers of their parts."""

from collections import Counter
from html.parser import HTMLParser
from xml.etree import ElementTree

import delegraph
import torch
from delegraph.backend import BackendDetails, PreprocessResult
from delegraph.discovery.registry import Registry
from delegraph.errors import Unsupported
from delegraph.partitioner import CapabilityPartitioner
from delegraph.report.left_on_host import host_calls
from delegraph.report.rows import Cause
from delegraph_analysis.accuracy.operators import (
    OperatorStatistics,
    OperatorVerification,
    VerificationByOperator,
)
from delegraph_analysis.drawing.viewer import SCRIPT as VIEWER
from delegraph_programs.compare_with_eager import OutputStatistics
from torch import nn
from torch.export.exported_program import (
    ExportedProgram,
    ModuleCallEntry,
    ModuleCallSignature,
)
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
)
from torch.export.graph_signature import TensorArgument as Tensor
from torch.utils import _pytree as pytree

aten = torch.ops.aten
EVIL = (
    "\"'><script>alert(1)</script></style></svg></title><img src=//evil"
    " onload=a()>&amp;\n\u202eabc\u2066\x07"
)
SHOWN = (
    EVIL.replace("\n", "\\n")
    .replace("\u202e", "\\u202e")
    .replace("\u2066", "\\u2066")
    .replace("\x07", "\\x07")
)
TAGS = {
    *"html head meta title style body h1 h2 h3 p nav div table thead tbody tr th td ul"
    " li b code span br a".split()
}
TAGS |= {*"details summary svg g rect text path header script".split()}
ATTRIBUTES = {
    *"lang charset http-equiv content name id class href scope tabindex role"
    " aria-label aria-hidden".split()
}
ATTRIBUTES |= {*"width height viewbox preserveaspectratio x y rx d".split()}


class First(BackendDetails):
    """Its facts are those of a backend that means harm."""

    @staticmethod
    def preprocess(edge_program, compile_specs):
        result = PreprocessResult(b"12345")
        result._delegate_info_meta = {EVIL: EVIL}
        return result


class Refusing(BackendDetails):
    @staticmethod
    def preprocess(edge_program, compile_specs):
        raise Unsupported("unsupported", EVIL)


class Second(BackendDetails):
    @staticmethod
    def preprocess(edge_program, compile_specs):
        return PreprocessResult(b"1" * 2000)


def registry_with_backends():
    registry = Registry(discover=False)
    registry.register(First)
    registry.register(Second)
    registry.register(Refusing)
    return registry


def partitioner_for(names, backend, why="not mine"):
    """A partitioner that takes the operators whose names have one of ``names`` in them."""
    return CapabilityPartitioner(
        lambda n: None if any(k in str(n.target) for k in names) else why, backend
    )


class Net(nn.Module):
    """A buffer that is written, several results, a constant, and operators for two
    backends and the host.
    """

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x, y):
        self.total.add_(x.sum(0))
        left, right = torch.split(torch.relu(self.a(x)) + y, 2, -1)
        values, indices = torch.sort(torch.cat([right, left], -1))
        return self.b(values).tanh(), indices, torch.sort(y)[0].sin()


def lower_net(program=None, inputs=None, partitioners=None):
    given = [
        partitioner_for(["linear", "relu", "add"], "First"),
        partitioner_for(["tanh", "sin", "cat"], "Second", "second knows three"),
    ]
    inputs = inputs or (torch.ones(3, 4), torch.ones(3, 4))
    return delegraph.lower(
        program or Net().eval(),
        inputs,
        backends=given if partitioners is None else partitioners,
        registry=registry_with_backends(),
    )


class Reader(HTMLParser):
    """Tags, attributes and texts, as a browser separates them."""

    def __init__(self, page):
        super().__init__()
        self.tags = Counter()
        self.attributes = []
        self.texts = Counter()
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags[tag] += 1
        self.attributes += attrs

    def handle_data(self, data):
        self.texts[data] += 1


def parse_page(page):
    """The page as XML, which only what is well-formed can be."""
    assert page.startswith("<!DOCTYPE html>\n")
    # lines, for those who read texts only
    page = page.replace("<br/>", " ").replace("</li>", " </li>")
    return ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>\n"))


def text_of(element):
    return " ".join("".join(element.itertext()).split())


def parse_checked_page(page):
    """Only known tags and attributes, nothing from outside, every link leads somewhere;
    returns the tree.
    """
    page.encode()
    assert [c for c in page if c != "\n" and not c.isprintable()] == []
    reader = Reader(page)
    assert set(reader.tags) <= TAGS
    assert reader.tags["style"] == reader.tags["script"] == 1
    assert page.count(f"<script>{VIEWER}</script>") == 1
    assert {name for name, _ in reader.attributes} <= ATTRIBUTES
    ids = [value for name, value in reader.attributes if name == "id"]
    links = [value for name, value in reader.attributes if name == "href"]
    assert len(ids) == len(set(ids))
    assert {*links} <= {f"#{i}" for i in ids}
    return parse_page(page)


def table_rows(root, heads):
    """The cells of the tables with these heads, a dictionary a row."""
    found = []
    for table in root.iter("table"):
        names = [text_of(h) for h in table.iter("th")]
        if names[: len(heads)] == heads:
            found += [
                dict(zip(names, map(text_of, row), strict=True))
                for row in table.find("tbody")
            ]
    return found


def boxes_of(element):
    """Lines, class and tooltip of each box of a drawing."""
    groups = [
        g
        for g in element.iter("g")
        if g.find("rect") is not None and g.find("title") is not None
    ]
    return [
        ([t.text for t in g.iter("text")], g.get("class"), g.find("title").text)
        for g in groups
    ]


def export_chain(
    size, operator=lambda k: aten.relu.default if k % 10 else aten.sin.default
):
    """An exported program of ``size`` operators in line; every tenth is a sine, if
    nothing else is said.
    """
    graph = torch.fx.Graph()
    node = graph.placeholder("x")
    for k in range(size):
        node = graph.call_function(operator(k), (node,))
    graph.output((node,))
    for each in graph.nodes:
        each.meta["val"] = torch.empty(4, device="meta")
    inputs = [InputSpec(InputKind.USER_INPUT, Tensor("x"), None)]
    outputs = [OutputSpec(OutputKind.USER_OUTPUT, Tensor(node.name), None)]
    trees = [pytree.tree_flatten(value)[1] for value in (((0,), {}), (0,))]
    entry = ModuleCallEntry(
        "", ModuleCallSignature([Tensor("x")], [Tensor(node.name)], *trees)
    )
    return ExportedProgram(
        nn.Module(), graph, ExportGraphSignature(inputs, outputs), {}, {}, [entry]
    )


def mine(k):
    return aten.relu.default if 500 <= k < 900 or k >= 1100 else aten.sin.default


def verification_of(report):
    """Made-up figures of the operators of a report: each ten times as wrong as the one
    before.
    """
    info = report.origin.delegates[0]
    rows = []
    for k, node in enumerate(
        [*info.nodes, *host_calls(report.origin.programs["forward"].graph.nodes)]
    ):
        where = info.name if k < len(info.nodes) else "host"
        figures = OutputStatistics(
            node.name, (4,), 10.0 ** (k - 4), 1.0, 0, "float32", snr=80.0 - k
        )
        rows.append(
            OperatorStatistics(
                "forward", node.name, "aten.x", 1, where, None, figures, 1e-9
            )
        )
    outputs = (OutputStatistics("output_0", (3, 4), 0.5, 2.0, 0, "float32", snr=12.04),)
    return VerificationByOperator(
        (*outputs, outputs[0], outputs[0]),
        OperatorVerification(tuple(rows), {"random": 2}),
    )


def hostile_report():
    """A report whose every text means harm, some of it megabytes of it."""
    report = lower_net({EVIL: Net().eval()}, {EVIL: (torch.ones(3, 4),) * 2}).report
    long = EVIL * 20_000
    for row in report.delegates:
        object.__setattr__(row, "name", EVIL)
        object.__setattr__(row, "operators", {long: 3, EVIL: 1})
    report.rows.causes[:] = [
        Cause(EVIL, EVIL, long, long, EVIL, cause.refusals, 1, cause.handles)
        for cause in report.causes
    ]
    report.notes[:] = [long, EVIL]
    return report


def without_times(report):
    report.seconds.clear()
    for row in report.delegates:
        row.seconds.clear()
    return report

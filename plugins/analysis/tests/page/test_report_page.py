"""The report's page: all of the report is in it, no name of the model is markup, and
its pictures are readable.
"""

import base64
import copy
import hashlib
import itertools
import math
import os
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import delegraph
import pytest
import torch
from delegraph.discovery.registry import Registry
from delegraph.partitioner import CapabilityPartitioner
from delegraph.report.model import Report
from delegraph.report.rows import Cause, DelegateRow, MethodRow, RefusalRow, Rows
from delegraph.report.values_as_text import Fact
from delegraph_analysis.drawing import (
    STYLE,
    TONES,
    Box,
    Picture,
    Wire,
    condense,
    svg,
    text,
)
from delegraph_analysis.drawing.condense import LARGEST, STRETCHES
from delegraph_analysis.drawing.layout import lay_out
from delegraph_analysis.page.report_page import BOXES
from delegraph_programs import Source
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ..support.report_pages import (
    EVIL,
    SHOWN,
    TAGS,
    First,
    Net,
    boxes_of,
    export_chain,
    lower_net,
    parse_checked_page,
    parse_page,
    partitioner_for,
    registry_with_backends,
    table_rows,
    text_of,
    without_times,
)


@pytest.fixture(scope="module")
def report():
    methods = {"one": Net().eval(), "two": nn.Linear(4, 4).eval()}
    x = torch.ones(3, 4)
    return lower_net(methods, {"one": (x, x), "two": (x,)}).report


# --- nothing from outside, nothing from the model -------------------------------------


def test_the_page_refers_to_nothing_outside(report):
    page = report.to_html()
    parse_checked_page(page)
    assert "http" not in page.replace("http-equiv", "")
    assert "url(" not in page
    assert "@import" not in page


def test_the_policy_admits_the_style_sheet_and_the_script_alone(report):
    page = report.to_html()
    policy = re.search(
        r'<meta http-equiv="Content-Security-Policy" content="([^"]+)"/>', page
    )[1]
    expected = (
        "default-src 'none'; style-src '{}'; base-uri 'none'; form-action 'none';"
        " script-src '{}'"
    )
    digests = []
    for tag in ("style", "script"):
        held = re.search(rf"<{tag}>(.*)</{tag}>", page, re.DOTALL)[1]
        digests.append(
            "sha256-"
            + base64.b64encode(hashlib.sha256(held.encode()).digest()).decode()
        )
        assert page.index("Content-Security-Policy") < page.index(f"<{tag}>")
    assert policy == expected.format(*digests)


class Bad(nn.Module):
    """Its buffer is what EVIL says."""

    def __init__(self):
        super().__init__()
        self.register_buffer(EVIL, torch.ones(4))

    def forward(self, x):
        self.get_buffer(EVIL).add_(1)
        return torch.sort(torch.relu(x) + self.get_buffer(EVIL))[0]


def test_names_from_the_model_are_never_markup():
    lowered = lower_net(
        {EVIL: Bad().eval()},
        {EVIL: (torch.ones(4),)},
        [partitioner_for(["relu"], "First", EVIL)],
    )
    report = lowered.report
    line = EVIL.replace("\n", "")
    refusal = report.refusals[0]
    assert report.causes[0].refusals == (refusal,)
    object.__setattr__(refusal, "operator", EVIL)
    object.__setattr__(refusal, "source", Source(f"/{EVIL}", 7, EVIL, EVIL))
    for node in lowered.exported_program(EVIL).graph.nodes:
        node.name = EVIL
        node.meta["stack_trace"] = (
            f'  File "/{line}.py", line 7, in {line}\n    {line}\n'
        )
    report.notes.append(EVIL)
    report.seconds[EVIL] = 1.0
    root = parse_checked_page(report.to_html())
    for place in ("h2", "li", "td", "code"):
        assert any(SHOWN in text_of(e) for e in root.iter(place)), place
    titles = [e.text for e in root.iter("title")]
    for said in (
        f"refused by CapabilityPartitioner: {SHOWN}",
        f"input buffer {SHOWN}",
        "at /" + SHOWN.replace("\\n", "") + ".py:7",
    ):
        assert any(said in t for t in titles), said
    [row] = [
        r
        for r in table_rows(root, ["operators", "which"])
        if r["which"] == f"{refusal.count} x {SHOWN}"
    ]
    assert row["why"] == f"CapabilityPartitioner: {SHOWN}"
    assert row["first at"] == f"/{SHOWN}:7, in {SHOWN} {SHOWN}"
    [delegate] = table_rows(root, ["delegate"])
    assert delegate["facts"] == f"{SHOWN} {SHOWN}"


@given(st.text(), st.text())
@settings(max_examples=200, deadline=None)
def test_any_text_survives_as_text(one, other):
    picture = Picture(
        [Box((one, other), (other, one), owner=one), Box((other,))],
        [Wire(0, (1,), one)],
    )
    drawn = svg(picture, other)
    assert drawn.isascii() or drawn.encode()
    root = ElementTree.fromstring(drawn)
    assert len(list(root.iter("rect"))) == 2
    assert {e.tag for e in root.iter()} <= TAGS
    seen = (
        one
        if one.isprintable()
        else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in one)
    )
    assert ElementTree.fromstring(f"<p a='{text(one)}'/>").get("a") == seen


def test_lines_fit_into_their_box():
    box = Box(("n" * 31, "n" * 32, "\u6f22" * 16, "\u202e" * 31), marked=True)
    shown = [
        t.text for t in ElementTree.fromstring(svg(Picture([box], []), "")).iter("text")
    ]
    assert shown == [
        "n" * 28 + "…",
        "n" * 28 + "…",
        "\u6f22" * 13 + "…",
        "\\u202e" * 3 + "…",
        "!",
    ]
    [plain] = ElementTree.fromstring(svg(Picture([Box(("n" * 31,))], []), "")).iter(
        "text"
    )
    assert plain.text == "n" * 31


def test_long_names_are_cut():
    drawn = svg(Picture([Box(("n" * 10**6,), ("t" * 10**6,))], []), "l" * 10**6)
    assert len(drawn) < 5000


# --- all of the report ----------------------------------------------------------------


def test_every_delegate_has_a_row(report):
    rows = table_rows(
        parse_page(report.to_html()),
        ["delegate", "backend", "operators", "size", "inputs", "outputs"],
    )
    assert len(rows) == len(report.delegates) == 5
    assert {delegate.backend for delegate in report.delegates} == {"first", "second"}
    for row, delegate in zip(
        rows, sorted(report.delegates, key=lambda d: d.method), strict=True
    ):
        assert row["delegate"] == delegate.name
        assert row["backend"] == f"{delegate.backend} {delegate.producer}".strip()
        assert row["size"] == {5: "5 bytes", 2000: "2.0 kB"}[delegate.bytes]
        for name, count in delegate.operators.items():
            assert f"{count} x {name}" in row["operators"]
        for border in ("inputs", "outputs"):
            assert all(str(a) in row[border] for a in getattr(delegate, border))
        assert all(
            f"{k} {v}" in row["facts"].replace(SHOWN, EVIL)
            for k, v in delegate.facts.items()
        )


def test_refusals_have_count_reasons_and_first_line(report):
    rows = table_rows(
        parse_page(report.to_html()), ["operators", "which", "why", "first at"]
    )
    assert {refusal.operator for refusal in report.refusals} == {
        "aten.sum.dim_IntList",
        "aten.split.Tensor",
        "aten.sort.default",
    }
    for refusal in report.refusals:
        shown = (
            f"{refusal.count} x {refusal.operator}",
            f"{refusal.backend}: {refusal.reason}",
        )
        row = next(r for r in rows if (r["which"], r["why"]) == shown)
        assert row["operators"] == str(refusal.count)
        assert row["first at"].startswith(
            f"{refusal.source.place}, in forward {refusal.source.code}"[:60]
        )
    assert "2 x aten.sort.default" in {r["which"] for r in rows}


def test_measured_times_of_delegates_are_shown():
    report = without_times(lower_net().report)
    assert "time" not in table_rows(parse_page(report.to_html()), ["delegate"])[0]
    row = report.delegates[1]
    row.seconds.update({"extract": 0.0012, "preprocess": 0.1234567})
    [shown] = [
        r for r in table_rows(parse_page(report.to_html()), ["delegate"]) if r["time"]
    ]
    assert shown["delegate"] == row.name
    assert shown["time"] == "extract 1.2 ms preprocess 123.5 ms"
    assert report.to_json()["delegates"][1]["seconds"] == {
        "extract": 0.0012,
        "preprocess": 0.123457,
    }
    assert "      time: extract 1.2 ms, preprocess 123.5 ms\n" in report.to_text(
        verbose=True
    )
    assert "extract 1.2 ms, pre" not in str(report)


def test_a_new_fact_is_read_in_text_json_and_on_the_page(monkeypatch):
    """Facts of a delegate, of a method and of the whole report."""
    report = lower_net().report
    widest = Fact("widest", "widest value", "{:,} bytes".format)
    shapes = Fact("shapes", "shapes", entries=list)
    monkeypatch.setattr(DelegateRow, "widest", 1234, raising=False)
    monkeypatch.setattr(MethodRow, "shapes", ["[2, 3]", "[4]"], raising=False)
    monkeypatch.setattr(Report, "shapes", ["[2, 3]", "[4]"], raising=False)
    for kind, fact in ((DelegateRow, widest), (MethodRow, shapes), (Report, shapes)):
        monkeypatch.setattr(kind, "FACTS", (*kind.FACTS, fact))
        monkeypatch.setattr(kind, "KEYS", (*kind.KEYS, fact.name))
    found = report.to_json()
    root = parse_page(report.to_html())
    assert {row["widest"] for row in found["delegates"]} == {1234}
    assert found["shapes"] == ["[2, 3]", "[4]"]
    assert all(row["shapes"] == ["[2, 3]", "[4]"] for row in found["methods"].values())
    assert f"{report.delegates[0]}".endswith(", 1,234 bytes")
    assert str(report).count("\n  shapes: [2, 3], [4]\n") == len(report.methods)
    assert "\nshapes: [2, 3]" in str(report)
    assert table_rows(root, ["delegate"])[0]["widest value"] == "1,234 bytes"
    assert [text_of(e) for e in root.iter("h2")][-1] == "Shapes"
    assert "shapes: [2, 3], [4]" in text_of(root)


def test_counts_and_sizes_read_as_in_the_text():
    class Half(nn.Module):
        def forward(self, x, y):
            return torch.cat([x.relu(), x], 1).sin(), y.cos()

    shapes = (
        {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", min=3)},
        {0: torch.export.Dim("batch")},
    )
    registry = Registry(discover=False)
    takes = CapabilityPartitioner(
        lambda n: None if "relu" in str(n.target) else f"{n.name} is not taken", "First"
    )
    registry.register(First, partitioner=takes, name="first")
    arguments = {"dynamic_shapes": shapes, "backends": ["first"], "registry": registry}
    lowered = delegraph.lower(
        Half().eval(), (torch.ones(3, 5), torch.ones(3, 2)), **arguments
    )
    page = lowered.report.to_html()
    assert "<summary>All of them: 3 operators</summary>" in page
    assert lowered.report.host_operators == 3
    assert "float32[batch, 2*length]" in page
    assert "refused by first: cos is not taken" in page
    refusals = next(data for data in lowered.node_data() if data.name == "refusal")
    assert refusals.values["graph"]["cos"] == "first: cos is not taken"


def test_totals_of_a_method(report):
    for name, row in report.methods.items():
        delegates = [
            delegate for delegate in report.delegates if delegate.method == name
        ]
        assert report.to_json()["methods"][name] == {
            "delegates": len(delegates),
            "delegated_operators": sum(d.operator_count for d in delegates),
            "bytes": sum(d.bytes for d in delegates),
            "host_operators": sum(row.left.values()),
        }


def test_verbose_text_has_operators_and_border():
    text = lower_net().report.to_text(verbose=True)
    assert (
        "      operators: 2 x aten.add.Tensor, 1 x aten.linear.default, 1 x"
        " aten.relu.default\n" in text
    )
    assert "      outputs: add_1: float32[4], add: float32[3, 4]\n" in text


def test_methods_lead_to_their_sections(report):
    root = parse_page(report.to_html())
    [nav] = root.iter("nav")
    headings = {h.get("id"): text_of(h) for h in root.iter("h2")}
    assert [headings[a.get("href")[1:]] for a in nav.iter("a")] == [
        "Method one",
        "Method two",
    ]


def test_page_shows_that_a_report_has_no_delegates():
    page = lower_net(partitioners=[]).report.to_html()
    parse_checked_page(page)
    assert "No backend was asked." in page
    assert "Delegates</h3>" not in page


def test_copies_keep_pictures_and_released_reports_keep_tables(report):
    copied = copy.deepcopy(report)
    assert copied.to_html() == report.to_html()
    copied.release()
    assert "No picture" in copied.to_html()
    root = parse_checked_page(copied.to_html())
    assert len(table_rows(root, ["delegate"])) == len(report.delegates)
    parse_checked_page(Report().to_html())


# --- the pictures ---------------------------------------------------------------------


def test_the_picture_shows_owners_reasons_and_types(report):
    root = parse_page(report.to_html())
    drawn = boxes_of(
        next(e for e in root.iter("div") if e.get("aria-label") == "method one")
    )
    by_title = {lines[0]: (lines, kind, tooltip) for lines, kind, tooltip in drawn}
    looks = Counter(kind for _, kind, _ in drawn)
    assert looks == {"t0": 2, "t1": 2, "host marked": 4, "border": 7}
    lines, kind, tooltip = by_title["sort"]
    assert kind == "host marked"
    assert lines[1] == "float32[3, 4], int64[3, 4]"
    assert "refused by CapabilityPartitioner: second knows three" in tooltip
    assert "report_pages.py" in tooltip
    assert (
        by_title["input buffer total"][0][1]
        == by_title["new value of total"][0][1]
        == "float32[4]"
    )
    assert by_title["lowered_module_0"][0][1:3] == ["first", "4 operators, 5 bytes"]


def test_boxes_link_to_the_inside_of_their_delegate(report):
    root = parse_page(report.to_html())
    link = next(
        a
        for a in root.iter("a")
        if a.find("g") is not None and text_of(a.find("g")).count("lowered_module_1")
    )
    [inside] = [e for e in root.iter("div") if e.get("id") == link.get("href")[1:]]
    titles = [lines[0] for lines, _, _ in boxes_of(inside)]
    [row] = [
        delegate
        for delegate in report.delegates
        if (delegate.method, delegate.name) == ("one", "lowered_module_1")
    ]
    assert sorted(t for t in titles if " " not in t) == sorted(
        op.split(".")[1] for op in row.operators
    )
    assert {f"input {value.name}" for value in row.inputs} | {
        f"output {output.name}" for output in row.outputs
    } <= {*titles}
    constants = [
        tooltip for _, _, tooltip in boxes_of(inside) if "constant p_" in tooltip
    ]
    assert len(constants) == 1
    assert "float32[4, 4]" in constants[0]


@st.composite
def pictures(draw, largest=40):
    count = draw(st.integers(1, largest))
    made = [Box(("box",) * draw(st.integers(1, 5))) for _ in range(count)]
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
    wires = []
    for i, j in (
        draw(st.lists(st.sampled_from(pairs), max_size=60, unique=True))
        if pairs
        else ()
    ):
        wires.append(Wire(i, tuple(sorted({j, draw(st.integers(i + 1, count - 1))}))))
    return Picture(made, wires)


def apart(one, other, space=0):
    return (
        one.x + one.width + space <= other.x
        or other.x + other.width + space <= one.x
        or one.y + one.height + space <= other.y
        or other.y + other.height + space <= one.y
    )


@given(pictures())
@settings(max_examples=150, deadline=None)
def test_boxes_never_overlap_and_wires_avoid_them(picture):
    layout = lay_out(picture)
    places = layout.places
    assert all(apart(a, b, 8) for a, b in itertools.combinations(places, 2))
    assert all(p.x >= 0 and p.y >= 0 and p.x + p.width <= layout.width for p in places)
    assert all(p.y + p.height <= layout.height for p in places)
    for wire, legs in zip(picture.wires, layout.routes, strict=True):
        source = places[wire.source]
        ends = [(leg.x2, leg.y2) for leg in legs if leg.end]
        assert {(x, y) for x, y in ends} == {
            (x, y)
            for x, y in ends
            if any(_meets(x, y, places[t]) for t in wire.targets)
        }
        assert len(ends) == len(wire.targets)
        starts = {
            (source.y + source.height, source.x <= leg.x1 <= source.x + source.width)
            for leg in legs[:1]
        }
        assert starts == {(legs[0].y1, True)}
        for leg in legs:
            assert leg.y1 <= leg.y1 + leg.drop < leg.y2
            assert 0 <= leg.x1 <= layout.width
            _check_passes(leg, places)


def _meets(x, y, place):
    return place.x < x < place.x + place.width and y == place.y


def _check_passes(leg, places):
    """The straight part touches no box but ends at one; the bow stays between two rows."""
    low = leg.y1 + leg.drop
    for p in places:
        crossed = p.x < leg.x1 < p.x + p.width and p.y < low and leg.y1 < p.y + p.height
        assert not crossed
        assert p.y + p.height <= low or leg.y2 <= p.y


def test_chains_stay_straight_next_to_shortcuts():
    """The main line of a network does not give way to a value that passes by."""
    picture = Picture(
        [Box(("n",)) for _ in range(6)],
        [Wire(k, (k + 1,)) for k in range(5)] + [Wire(1, (4,))],
    )
    layout = lay_out(picture)
    assert max(p.x for p in layout.places) - min(p.x for p in layout.places) <= 2


def test_words_are_made_for_drawn_boxes_only():
    """Of a stretch, which is one box, only the title of each is read; the wires inside
    of it say nothing.
    """
    made = []
    boxes = [
        Box((f"op{k}",), more=lambda k=k: made.append(k) or ("type",))
        for k in range(1100)
    ]
    wires = [
        Wire(k, (k + 1,), lambda k=k: made.append(f"wire {k}") or "")
        for k in range(1099)
    ]
    small, _ = condense(Picture(boxes, wires))
    assert made == []
    assert {len(b.shown()) for b in small.boxes} == {2}
    svg(small, "")
    assert {*made} == {f"wire {k}" for k in range(2, 1099, 3)}


def chain(size):
    return [Wire(k, (k + 1,)) for k in range(size - 1)]


def residual(size):
    return chain(size) + [Wire(k, (k + 4,)) for k in range(0, size - 4, 4)]


def dense(size):
    draw = random.Random(0)
    sources = (
        (k, draw.randrange(max(0, k - 100), k))
        for k in range(1, size)
        for _ in range(8)
    )
    return [Wire(s, (k,)) for k, s in sources]


def star(size):
    return [Wire(0, tuple(range(1, size)))]


@pytest.mark.parametrize("shape", [chain, residual, dense, star])
@pytest.mark.parametrize("size", [LARGEST, 8000])
def test_large_pictures_are_condensed_and_nothing_is_lost(shape, size):
    made = [
        Box((f"op{k % 7}",), owner="a" if k % 10 else "b", marked=k % 10 == 0)
        for k in range(size)
    ]
    small, note = condense(Picture(made, shape(size)))
    assert len(small.boxes) <= LARGEST
    assert sum(b.count for b in small.boxes) == size
    assert all(w.source < t for w in small.wires for t in w.targets)
    assert bool(note) == (len(small.boxes) < size)
    if size > LARGEST:
        assert f"from 8,000 boxes to {len(small.boxes):,}" in note
        assert len(small.boxes) <= 2 * STRETCHES
    drawn = svg(small, "")
    assert len(drawn) < 1_500_000
    assert drawn.count("<rect") == len(small.boxes)


def test_small_pictures_are_drawn_whole():
    picture = Picture([Box(("x",))] * 300, residual(300))
    assert condense(picture) == (picture, "")


def test_pages_of_large_programs_are_small_with_complete_tables():
    report = delegraph.lower(
        export_chain(8000),
        backends=[partitioner_for(["relu"], "Second")],
        registry=registry_with_backends(),
    ).report
    page = report.to_html()
    root = parse_checked_page(page)
    assert len(table_rows(root, ["delegate"])) == len(report.delegates) == 800
    assert [r["operators"] for r in table_rows(root, ["operators", "which"])] == ["800"]
    assert len(page) < 3_000_000
    assert page.count("<rect") < LARGEST + BOXES + 10
    assert re.search(
        r"Condensed from 1,602 boxes to \d+: stretches of up to 5 operators", page
    )
    assert re.search(r"The inside of \d+ more is not drawn", page)


def test_boxes_without_drawn_inside_link_to_their_rows(monkeypatch):
    monkeypatch.setattr("delegraph_analysis.page.report_page.BOXES", 25)
    report = delegraph.lower(
        export_chain(40),
        backends=[partitioner_for(["relu"], "Second")],
        registry=registry_with_backends(),
    ).report
    root = parse_checked_page(report.to_html())
    led = [a.get("href")[1:] for a in root.iter("a") if a.get("class") == "delegate"]
    kinds = [
        next(e.tag for e in root.iter() if e.get("id") == target) for target in led
    ]
    assert kinds == ["div", "div", "tr", "tr"]
    assert "The inside of 2 more is not drawn" in text_of(root)


# --- bytes and colours ----------------------------------------------------------------

SCRIPT = """
import hashlib, sys
sys.path.insert(0, {folder!r})
from report_pages import lower_net, without_times
page = ("delegraph_analysis.page.report_page", "delegraph_analysis.page.graphs", "delegraph_analysis.drawing")
for module in [m for m in sys.modules if m.startswith(page)]:
    del sys.modules[module]
report = without_times(lower_net().report)
assert not [m for m in sys.modules if m.startswith(page)], "pictures are drawn when they are asked for"
print(hashlib.sha256(report.to_html().encode()).hexdigest())
"""


def test_pages_are_deterministic_and_drawn_on_demand(report):
    assert report.to_html() == report.to_html()
    script = SCRIPT.format(folder=str(Path(__file__).parents[1] / "support"))
    running = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
        )
        for seed in ("1", "2")
    ]
    digests = {process.communicate()[0] for process in running}
    assert [process.returncode for process in running] == [0, 0]
    assert len(digests) == 1


SIGHT = {
    # how readers see linear RGB: Machado, Oliveira and Fernandes (2009), severity 1
    "all colours": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "no red": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "no green": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "no blue": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}


def linear(colour):
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]


def dot(row, colour):
    return sum(a * b for a, b in zip(row, colour, strict=True))


def luminance(colour):
    return dot((0.2126, 0.7152, 0.0722), linear(colour))


def lab(colour):
    """CIELAB of linear RGB, D65."""
    rows = (
        (0.4124, 0.3576, 0.1805),
        (0.2126, 0.7152, 0.0722),
        (0.0193, 0.1192, 0.9505),
    )
    x, y, z = (
        dot(row, colour) / white
        for row, white in zip(rows, (0.9505, 1, 1.089), strict=True)
    )
    x, y, z = (
        c ** (1 / 3) if c > 0.008856 else 7.787 * c + 16 / 116 for c in (x, y, z)
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colours_are_distinct_for_colour_blind_readers(scheme):
    given = dict(
        re.findall(
            r"--(\w+): (#[0-9a-f]{6})",
            STYLE.split("@media screen and (prefers-color-scheme: dark)")[scheme],
        )
    )
    owners = [given[name] for name in (*(f"t{k}" for k in range(TONES)), "host")]
    paper = luminance(given["paper"])
    for name in ("ink", "faint", "link", "mark"):
        assert contrast(luminance(given[name]), paper) > 4.5, name
    assert min(contrast(luminance(c), paper) for c in owners) >= 3
    for sight, matrix in SIGHT.items():
        seen = [
            lab([min(1, max(0, dot(row, linear(c)))) for row in matrix]) for c in owners
        ]
        assert min(math.dist(a, b) for a, b in itertools.combinations(seen, 2)) > 30, (
            sight
        )


def contrast(one, other):
    return (max(one, other) + 0.05) / (min(one, other) + 0.05)


def test_text_on_a_terminal_moves_no_cursor():
    row = RefusalRow(
        "forward",
        "my.op\x1b[2J",
        "acme",
        "no\u202e reason\x07",
        1,
        Source("a.py", 3, "f", "x = \x1b]0;title"),
    )
    cause = Cause("forward", "acme", row.reason, "do \x1b", "", (row,))
    shown = Report(
        Rows(host={"forward": {"my.op": 1}}, causes=[cause]), ["a\rb"]
    ).to_text()
    assert "hint: do \\x1b" in shown
    assert "1 x my.op\\x1b[2J  acme: no\\u202e reason\\x07\n" in shown
    assert "a\\rb" in shown
    assert all(c.isprintable() or c == "\n" for c in shown)


def test_the_count_of_freed_operators_includes_dependents():
    """Operators that depend on its own for another cause are counted too."""
    row = RefusalRow("forward", "aten.conv2d.default", "acme", "dynamic", 2, None)
    for frees, said in (
        (0, "take 0 more operators; other reasons keep them on the host"),
        (1, "take 1 more operator"),
        (3, "take 3 more operators"),
    ):
        assert Cause("forward", "acme", "dynamic", "", "", (row,), frees).remarks == [
            f"without that cause acme would {said}"
        ]


def test_partitions_that_a_compiler_refused_have_a_table():
    report = lower_net(
        partitioners=[
            partitioner_for(["tanh", "sin"], "Refusing"),
            partitioner_for(["tanh"], "Second"),
        ]
    ).report
    page = report.to_html()
    _, _, section = page.partition("<h3>Refused when they were compiled</h3>")
    rows = section.partition("</table>")[0]
    assert (
        [row.partition in rows for row in report.given_back]
        == [True] * len(report.given_back)
        != []
    )
    assert text(EVIL) in rows
    assert "<script>alert" not in page

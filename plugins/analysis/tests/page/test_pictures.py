"""The page in use: what its first view shows, what leads where, the figures against
eager, and cells of a notebook.
"""

import re
from collections import Counter

import delegraph
import pytest
import torch
from delegraph.errors import InputError
from delegraph.host.verify import Verification
from delegraph_analysis.drawing import Box, Picture, Wire, overview
from delegraph_analysis.drawing.viewer import SCRIPT
from delegraph_analysis.page.graphs import method_pictures
from hypothesis import given, settings
from hypothesis import strategies as st

from ..support.report_pages import (
    SHOWN,
    Net,
    boxes_of,
    export_chain,
    hostile_report,
    lower_net,
    mine,
    parse_checked_page,
    parse_page,
    partitioner_for,
    registry_with_backends,
    table_rows,
    text_of,
    verification_of,
)

aten = torch.ops.aten


@pytest.fixture(scope="module")
def tall():
    """A program of 1,600 operators: 500 of the host before the first delegate, 200
    between it and the second.
    """
    report = delegraph.lower(
        export_chain(1600, mine),
        backends=[partitioner_for(["relu"], "First")],
        registry=registry_with_backends(),
    ).report
    return report, parse_checked_page(report.to_html())


def frame_of(root, label):
    [found] = [e for e in root.iter("div") if e.get("aria-label") == label]
    return found


def places_of(element, kind):
    """(x, y, width, height) of the boxes of a class."""
    groups = [
        g
        for g in element.iter("g")
        if g.get("class", "").split()[:1] == [kind] and g.find("rect") is not None
    ]
    return [
        tuple(int(g.find("rect").get(k)) for k in ("x", "y", "width", "height"))
        for g in groups
    ]


# --- the first view -------------------------------------------------------------------


def test_overviews_of_tall_programs_show_delegates_first(tall):
    report, root = tall
    assert len(report.delegates) == 2
    assert report.host_operators == 700
    [first, second] = [
        e
        for e in root.iter("div")
        if e.get("class") == "picture" and "inside" not in e.get("aria-label")
    ]
    assert first.get("aria-label") == "overview of method forward"
    assert second.get("aria-label") == "method forward"
    found = places_of(first, "t0")
    assert len(found) == 2
    assert all(y + height < 420 and x + width < 300 for x, y, width, height in found)
    assert [
        lines[:2] for lines, kind, _ in boxes_of(first) if kind == "host marked"
    ] == [
        ["500 host operators", "500 x sin"],
        ["200 host operators", "200 x sin"],
    ]
    assert min(y for _, y, _, _ in places_of(second, "t0")) > 10_000, (
        "which is why there is an overview"
    )


def test_operators_on_the_host_are_listed_before_pictures(tall):
    _, root = tall
    order = [e for e in root.iter() if e.get("class") in ("short causes", "picture")]
    assert [e.get("class") for e in order[:2]] == ["short causes", "picture"]
    assert (
        table_rows(order[0], ["operators", "which", "why", "first at", "in the graph"])[
            0
        ]["operators"]
        == "700"
    )


def test_small_pictures_have_no_overview():
    assert "overview" not in lower_net().report.to_html()


@st.composite
def mixed(draw):
    """Pictures of up to 100 boxes, of the host, of delegates, inputs and outputs, and
    wires among them.
    """
    size = draw(st.integers(41, 100))
    made = [Box((f"op{k}",), owner="host operator") for k in range(size)]
    for k in draw(st.sets(st.integers(0, size - 1), max_size=20)):
        made[k] = Box(
            (f"delegate{k}",), kind="backend", owner="first delegate", link=f"d{k}"
        )
    pairs = st.tuples(st.integers(0, size - 1), st.integers(0, size - 1)).filter(
        lambda p: p[0] < p[1]
    )
    wires = [Wire(i, (j,)) for i, j in draw(st.lists(pairs, max_size=150, unique=True))]
    used = {w.source for w in wires}
    using = {w.targets[0] for w in wires}
    for k in range(size):
        if k not in using | used or (k in using) == (k in used):
            continue
        end = "input" if k in used else "output"
        made[k] = (
            Box((end,), kind="border", owner=end) if made[k].kind == "host" else made[k]
        )
    return Picture(made, wires)


@given(mixed())
@settings(max_examples=80, deadline=None)
def test_an_overview_keeps_delegates_and_the_ways_between_them(picture):
    small = overview(picture) or picture
    assert sum(b.count for b in small.boxes) == len(picture.boxes)
    assert all(w.source < t for w in small.wires for t in w.targets), "wires lead down"
    names = [b.lines[0] for b in picture.boxes if b.kind == "backend"]
    assert sorted(b.lines[0] for b in small.boxes if b.kind == "backend") == sorted(
        names
    )
    assert ways(small) == ways(picture)


def ways(picture):
    """Pairs of delegates, one directly behind the other."""
    names = [b.lines[0] for b in picture.boxes]
    mine = [b.kind == "backend" for b in picture.boxes]
    return {
        (names[w.source], names[t])
        for w in picture.wires
        for t in w.targets
        if mine[w.source] and mine[t]
    }


class Sizes(torch.nn.Module):
    """On the host: an operator whose size depends on data, its checks, and one that is
    decomposed there.
    """

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        found = x.nonzero()
        return (
            found,
            self.linear(x.view(-1, 2 * x.shape[1])).sin(),
            found.shape[0] + x.shape[0],
        )


def test_pictures_and_tables_count_host_operators_equally():
    dynamic = {"x": {0: 2 * torch.export.Dim("half", max=8)}}
    inputs = (torch.ones(4, 2),)
    chosen = [partitioner_for(["relu"], "First")]
    report = delegraph.lower(
        Sizes().eval(),
        inputs,
        dynamic_shapes=dynamic,
        backends=chosen,
        registry=registry_with_backends(),
    ).report
    [whole] = method_pictures(report, "forward", "m0").graphs
    owners = Counter(box.owner for box in whole.picture.boxes if box.kind != "border")
    assert owners["host operator"] == report.host_operators == 4
    assert owners["further call"] == 0
    marked = {box.owner for box in whole.picture.boxes if box.marked}
    assert owners["size computation"] > 2
    assert marked == {"host operator"}


# --- what leads where -----------------------------------------------------------------


def parent_link(root, id):
    """Where the box with this id leads."""
    return next(
        a.get("href")
        for a in root.iter("a")
        if any(g.get("id") == id for g in a.iter("g"))
    )


def test_refusals_and_their_boxes_link_to_each_other():
    report = lower_net().report
    root = parse_checked_page(report.to_html())
    rows = [tr for tr in root.iter("tr") if re.fullmatch(r"m0c\d+", tr.get("id", ""))]
    assert len(rows) == len(report.causes) > 3
    told = Counter()
    for row, cause in zip(rows, report.causes, strict=True):
        boxes = [a.get("href")[1:] for a in row.iter("a")]
        assert len(boxes) == cause.count
        for box in boxes:
            [group] = [g for g in root.iter("g") if g.get("id") == box]
            assert f"refused by {cause.backend}: " in group.find("title").text
            told[parent_link(root, box)] += 1
    assert {href[1:] for href in told} <= {row.get("id") for row in rows}


def test_many_boxes_of_a_refusal_are_folded_away(tall):
    _, root = tall
    [row] = [tr for tr in root.iter("tr") if tr.get("id") == "m0c0"]
    cell = row[-1]
    assert text_of(cell).startswith("1 2 3 4 5 6 7 8 more9 10")
    assert len(list(cell.iter("a"))) == 208
    assert text_of(cell).endswith("…")


def test_delegates_link_to_boxes_and_boxes_to_the_inside(tall):
    report, root = tall
    rows = table_rows(root, ["delegate"])
    assert [r["in the graph"] for r in rows] == ["1", "1"]
    targets = [
        tr[-1].find("a").get("href")[1:]
        for tr in root.iter("tr")
        if len(tr) >= 7 and tr[-1].find("a") is not None
    ]
    [first] = [
        e
        for e in root.iter("div")
        if e.get("aria-label") == "overview of method forward"
    ]
    found = {g.get("id"): g for g in first.iter("g")}
    assert [text_of(found[t].findall("text")[0]) for t in targets[-2:]] == [
        delegate.name for delegate in report.delegates
    ]
    assert [parent_link(root, t) for t in targets[-2:]] == ["#m0d0", "#m0d1"]


def test_delegates_of_two_methods_and_of_branches_have_different_names():
    net = Net().eval()
    x = torch.ones(3, 4)
    lowered = lower_net({"one": net, "two": net}, {"one": (x, x), "two": (x, x)})
    names = [delegate.name for delegate in lowered.report.delegates]
    assert len(names) == len(set(names)) >= 4
    again = lower_net({"one": net, "two": net}, {"one": (x, x), "two": (x, x)})
    assert names == [delegate.name for delegate in again.report.delegates]


# --- figures against eager ------------------------------------------------------------


def test_figures_against_eager_link_to_their_boxes():
    report = lower_net().report
    root = parse_checked_page(report.to_html({"forward": verification_of(report)}))
    assert (
        "The outputs differ from eager by more than their tolerance; largest error 0.25"
        " of the largest value." in text_of(root)
    )
    [output, *_] = table_rows(root, ["output", "type"])
    assert output == {
        "output": "output_0", "type": "float32[3, 4]", "error": "0.25", "SNR dB": "12.0", "largest error": "0.5",
        "largest value": "2", "": "differs, by more than 0.001",
    }  # fmt: skip
    rows = table_rows(root, ["operator", "in", "error", "SNR dB", "error of eager"])
    assert rows[0]["error"] == "0.01"
    assert rows[1]["error"].startswith("1e+")
    assert rows[0]["SNR dB"] == "78.0"
    assert "2 not compared: random" in text_of(root)
    ids = {e.get("id"): e for e in root.iter("g")}
    linked = [
        tr
        for tr in root.iter("tr")
        if re.fullmatch(r"m0a\d+", tr.get("id", "")) and tr[-1].find("a") is not None
    ]
    assert len(linked) >= 5
    for tr in linked:
        group = ids[tr[-1].find("a").get("href")[1:]]
        assert re.search(r" e[1-4]$", group.get("class"))
        assert f"differs from float64 by {text_of(tr[2])}" in group.find("title").text
        assert f"error {text_of(tr[2])}" in [text_of(t) for t in group.iter("text")]


def test_only_results_of_verify_are_accepted_as_figures():
    report = lower_net().report
    with pytest.raises(
        InputError,
        match="method forward has OperatorVerification, not the result of verify",
    ):
        report.to_html({"forward": verification_of(report).operators})


def test_signal_to_noise_is_in_decibels():
    x = torch.tensor([3.0, 4.0])
    assert Verification.of(x + torch.tensor([0.3, 0.4]), x).outputs[
        0
    ].snr == pytest.approx(20.0, abs=1e-5)
    assert Verification.of(x, x).outputs[0].snr is None
    assert Verification.of(x, x * 0).outputs[0].snr is None


# --- hostile names, and notebooks -----------------------------------------------------


def test_hostile_texts_stay_texts_and_short():
    page = hostile_report().to_html()
    root = parse_checked_page(page)
    assert len(page) < 600_000
    assert text_of(next(root.iter("h2"))) == f"Method {SHOWN}"
    assert page.count("<script") == 1
    assert page.count("alert(1)") == page.count("&lt;script&gt;alert(1)&lt;/script&gt;")


def test_notebook_cells_are_small_plain_text(tall):
    for report, least in (
        (tall[0], 300),
        (hostile_report(), 2000),
        (lower_net().report, 1000),
    ):
        shown = report._repr_html_()
        root = parse_page(f"<!DOCTYPE html>\n{shown}")
        assert [(e.tag, e.attrib) for e in root.iter()] == [("pre", {})]
        assert least < len(shown) < 60_000
    shown = tall[0]._repr_html_()
    assert "700 x aten.sin.default" in shown
    assert "\n  lowered_module_1" in shown


def test_the_script_touches_no_text_of_the_model_as_markup():
    assert "<" not in SCRIPT
    assert "&" not in SCRIPT
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacent",
        "document.write",
        "eval",
        "fetch",
        "http",
        "import",
        "open(",
    ):
        assert word not in SCRIPT.replace("this.open()", "").replace("  open() {", "")

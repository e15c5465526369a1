"""The report's page in a real browser: its first view, how pictures move, where links
lead, what runs, and paper.
"""

import json
from contextlib import ExitStack

import delegraph
import numpy as np
import pytest

from ..support.browser import MISSING, browser, executable, pixels
from ..support.report_pages import (
    EVIL,
    export_chain,
    hostile_report,
    lower_net,
    mine,
    partitioner_for,
    registry_with_backends,
    verification_of,
)

pytestmark = pytest.mark.skipif(executable() is None, reason=MISSING)
WIDE = (1280, 800)
RECT = (
    "(e => {const r = e.getBoundingClientRect(); return [r.left, r.top, r.right,"
    " r.bottom]})"
)


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    """Skipped where there is a browser that cannot start, as in a container that
    forbids what it needs.
    """
    folder = tmp_path_factory.mktemp("browser")
    with ExitStack() as stack:
        try:
            tab = stack.enter_context(browser(executable(), folder))
        except (EOFError, BrokenPipeError):
            pytest.skip(
                f"{executable()} does not start:"
                f" {(folder / 'log.txt').read_text().strip()[-300:]}"
            )
        yield tab


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Files: a program of 1,600 operators whose first 500 the host computes; figures;
    texts that mean harm; tables.
    """
    folder = tmp_path_factory.mktemp("pages")
    tall = delegraph.lower(
        export_chain(1600, mine),
        backends=[partitioner_for(["relu"], "First")],
        registry=registry_with_backends(),
    ).report
    small = lower_net().report
    made = {
        "tall": tall.to_html(),
        "figures": small.to_html({"forward": verification_of(small)}),
        "hostile": hostile_report().to_html(),
        "notebook": (
            "<!DOCTYPE"
            f" html><body>{hostile_report()._repr_html_()}{tall._repr_html_()}{tall._repr_html_()}</body>"
        ),
    }
    for name, page in made.items():
        (folder / f"{name}.html").write_text(page, encoding="utf-8")
    return folder


def boxes_of(tab, selector):
    """(left, top, right, bottom) in the window of each element."""
    return tab.evaluate(
        f"[...document.querySelectorAll({json.dumps(selector)})].map({RECT})"
    )


def box_of(tab, expression):
    return tab.evaluate(f"{RECT}({expression})")


def middle_of(box):
    return (box[0] + box[2]) / 2, (box[1] + box[3]) / 2


def is_inside(box, around, space=0):
    """Whether all of ``box`` is seen in ``around``."""
    return all(box[k] >= around[k] - space for k in (0, 1)) and all(
        box[k] <= around[k] + space for k in (2, 3)
    )


def assert_no_messages_or_requests(tab, path):
    """Nothing was logged, thrown, shown as a dialog, or asked for, but the file itself."""
    told = (
        "Log.entryAdded Runtime.exceptionThrown Runtime.consoleAPICalled"
        " Page.javascriptDialogOpening".split()
    )
    assert tab.said(*told) == []
    assert {r["request"]["url"] for r in tab.said("Network.requestWillBeSent")} == {
        path.as_uri()
    }


# --- the first view -------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("script", [True, False], ids=["script", "no-script"])
def test_the_first_view_shows_the_delegates(tab, pages, script, scheme):
    """What the picture of a window of 1280 x 800 shows, from top to bottom.

    The title and how much is delegated; a bar, blue for 900 of 1,600 operators and grey
    for the rest; the colours; what was left to the host, one row; the tools of the
    graph at the right; and in a frame the overview: a grey box with a broken red line
    for 500 operators of the host, a blue box for the first delegate below it, and so
    on, with both delegates in the window at a size that can be read.
    """
    path = pages / "tall.html"
    tab.open(path, WIDE, script, scheme)
    (x0, y0, x1, y1), *_ = boxes_of(tab, ".share")
    found = [
        boxes_of(tab, f"{selector} rect")
        for selector in (".picture a.delegate", ".picture a .host")
    ]
    (frame, *_), (table, *_) = boxes_of(tab, ".picture"), boxes_of(tab, ".short")
    window = (0, 0, *WIDE)
    assert_no_messages_or_requests(tab, path)
    assert table[3] < frame[1] < WIDE[1] * 0.6, "the refusals are above the graph"
    delegates = found[0][:2]
    host = found[1][0]
    assert all(is_inside(box, window) and is_inside(box, frame) for box in delegates)
    assert all(box[2] - box[0] > 140 for box in delegates)
    assert host[3] < delegates[0][1] < delegates[1][1]

    seen = pixels(tab.picture()).astype(int)
    blue, paper = (
        ((0, 78, 254), (255, 255, 255))
        if scheme == "light"
        else ((93, 135, 249), (20, 23, 26))
    )
    bar = seen[int((y0 + y1) / 2), int(x0) + 8 : int(x1) - 8]
    assert abs(has_colour(bar, blue).mean() - 900 / 1600) < 0.01
    assert tuple(seen[3, 3]) == paper
    for left, top, right, bottom in delegates:
        assert (
            has_colour(
                seen[int(top) + 8 : int(bottom) - 8, round(left)], blue, 40
            ).mean()
            > 0.9
        ), "its line is blue"
        assert (
            has_colour(seen[int(top) : int(bottom), round(right) + 9], blue, 40).mean()
            < 0.1
        )
    assert tab.evaluate("document.querySelectorAll('.tools').length") == (
        2 if script else 0
    )


def has_colour(seen, colour, distance=12):
    return np.abs(seen - np.array(colour)).max(-1) <= distance


def test_a_narrow_window_shows_them_too(tab, pages):
    """And the reason against the operators of the host, which is not to be looked for
    at the right.
    """
    tab.open(pages / "tall.html", (400, 800))
    assert tab.evaluate("document.documentElement.scrollWidth") <= 400
    assert is_inside(boxes_of(tab, ".picture a.delegate rect")[0], (0, 0, 400, 800))
    assert is_inside(boxes_of(tab, "#m0c0 td b")[0], (0, 0, 400, 800))
    assert width_of(boxes_of(tab, "#m0c0 td")[2]) > 300


def test_a_picture_that_opens_smaller_leaves_no_room_below_it(tab, pages):
    tab.open(pages / "figures.html", (800, 800))
    frame = boxes_of(tab, ".picture")[0]
    drawn = boxes_of(tab, ".picture svg")[0]
    assert is_inside(drawn, frame)
    assert (
        tab.evaluate("document.querySelector('.picture svg').viewBox.baseVal.width")
        > 800
    )
    assert frame[3] - drawn[3] < 4


def test_a_printed_page_has_everything_in_its_width(tab, pages):
    tab.open(pages / "figures.html", (700, 800))
    tab.call("Emulation.setEmulatedMedia", media="print")
    try:
        assert tab.evaluate("document.documentElement.scrollWidth") <= 700
        assert all(box[2] <= 700 for box in boxes_of(tab, "td, th, .picture svg"))
    finally:
        tab.call("Emulation.setEmulatedMedia", media="")


# --- moving and scaling ---------------------------------------------------------------


def test_buttons_keys_and_the_wheel_scale_and_dragging_moves(tab, pages):
    path = pages / "tall.html"
    tab.open(path, (500, 800))
    second = "document.querySelectorAll('.picture')[1].querySelectorAll('a')[30].querySelector('rect')"
    tab.evaluate(
        "document.querySelectorAll('.picture')[1].scrollIntoView({block: 'center'})"
    )
    frame = box_of(tab, "document.querySelectorAll('.picture')[1]")
    first = boxes_of(tab, ".picture a.delegate rect")[2]
    assert is_inside(first, frame), (
        "a picture that is too large for its frame opens there too"
    )
    assert width_of(first) > 150, (
        "a picture that is too large for its frame opens there too"
    )
    tab.evaluate(
        "document.querySelectorAll('.picture')[1].focus({preventScroll: true})"
    )
    tab.key("1")
    tab.evaluate("document.querySelectorAll('.picture')[1].scrollTo(0, 1500)")
    size = width_of(box_of(tab, second))
    assert size == pytest.approx(220, abs=3)
    tab.key("+")
    assert width_of(box_of(tab, second)) == pytest.approx(1.25 * 220, abs=4)
    tab.key("-")

    x, y = middle_of(box_of(tab, second))
    x = x - 60
    y = y + 10
    tab.mouse("mouseWheel", x, y, deltaX=0, deltaY=-300, modifiers=2)  # with Ctrl
    larger = box_of(tab, second)
    assert width_of(larger) == pytest.approx(220 * np.e, rel=0.02)
    there = middle_of(larger)[0] - 60 * np.e, middle_of(larger)[1] + 10 * np.e
    assert there == pytest.approx((x, y), abs=3), (
        "what is under the pointer stays there"
    )
    tab.mouse("mouseWheel", x, y, deltaX=0, deltaY=40)
    moved = box_of(tab, second)
    assert width_of(moved) == pytest.approx(width_of(larger), abs=1), (
        "without Ctrl it scrolls"
    )
    assert moved[1] < larger[1], "without Ctrl it scrolls"

    here = tab.evaluate("location.href")
    x, y = middle_of(moved)
    tab.mouse("mousePressed", x, y, button="left", clickCount=1)
    for step in (20, 60, 90):
        tab.mouse("mouseMoved", x, y + step, button="left", buttons=1)
    tab.mouse("mouseReleased", x, y + 90, button="left", clickCount=1)
    assert box_of(tab, second)[1] == pytest.approx(moved[1] + 90, abs=2)
    assert tab.evaluate("location.href") == here, "a drag over a box follows no link"

    tab.key("0")
    whole = box_of(tab, "document.querySelectorAll('.picture')[1].querySelector('svg')")
    assert is_inside(whole, frame, 2)
    for key in "dn":
        tab.key(key)
        assert is_inside(
            boxes_of(tab, ".picture a.delegate rect")[2 + "dn".index(key)], frame
        )
    x, y = middle_of(box_of(tab, "document.querySelectorAll('.tools')[1].children[0]"))
    before = width_of(box_of(tab, second))
    tab.click(x, y)
    assert width_of(box_of(tab, second)) == pytest.approx(before / 1.25, rel=0.02)
    assert_no_messages_or_requests(tab, path)


def width_of(box):
    return box[2] - box[0]


# --- links ----------------------------------------------------------------------------


@pytest.mark.parametrize("script", [True, False], ids=["script", "no-script"])
def test_a_refusal_leads_to_its_boxes_and_each_back(tab, pages, script):
    tab.open(pages / "tall.html", WIDE, script)
    link = "document.querySelectorAll('#m0c0 td:last-child > a')[6]"
    target = tab.evaluate(f"{link}.getAttribute('href')")
    tab.click(*middle_of(box_of(tab, link)))
    box = box_of(tab, f"document.querySelector('{target} > rect')")
    assert tab.evaluate("location.hash") == target
    assert is_inside(box, (0, 0, *WIDE))
    assert is_inside(
        box, box_of(tab, f"document.querySelector('{target}').closest('.picture')")
    )
    lines = tab.evaluate(
        f"[...document.querySelectorAll('{target} text')].map(t => t.textContent)"
    )
    assert lines[0] == "sin"
    tab.click(*middle_of(box))
    assert tab.evaluate("location.hash") == "#m0c0"
    row = box_of(tab, "document.querySelector('#m0c0')")
    table = boxes_of(tab, ".short")[0]
    assert is_inside(row, (0, 0, *WIDE), 2)
    assert is_inside(row, table, 2)


def test_links_of_delegates_unfold_their_inside(tab, pages):
    path = pages / "tall.html"
    tab.open(path, WIDE)
    tab.click(*middle_of(boxes_of(tab, ".picture a.delegate rect")[0]))
    assert tab.evaluate("document.querySelector('#m0d0').closest('details').open")
    shown = boxes_of(tab, "#m0d0 .picture")[0]
    assert shown[1] < WIDE[1]
    assert shown[3] - shown[1] > 200
    assert len(boxes_of(tab, "#m0d0 .tools button")) == 4
    assert_no_messages_or_requests(tab, path)


def test_figures_colour_the_boxes_and_lead_to_them(tab, pages):
    path = pages / "figures.html"
    tab.open(path, WIDE)
    fills = {
        k: tab.evaluate(
            f"getComputedStyle(document.querySelector('.picture .e{k} rect')).fill"
        )
        for k in (3, 4)
    }
    assert fills == {3: "rgb(245, 165, 36)", 4: "rgb(194, 52, 10)"}
    tab.call("Accessibility.enable")
    nodes = tab.call("Accessibility.getFullAXTree")["nodes"]
    spoken = [
        n["name"]["value"]
        for n in nodes
        if n.get("role", {}).get("value") in ("button", "region", "link")
    ]
    assert {"Smaller", "Larger", "Next delegate", "method forward"} <= {*spoken}
    assert all(spoken)
    link = "[...document.querySelectorAll('[id^=m0a] td:last-child a')].at(-1)"
    tab.evaluate(f"{link}.scrollIntoView({{block: 'center'}})")
    target = tab.evaluate(f"{link}.getAttribute('href')")
    tab.click(*middle_of(box_of(tab, link)))
    assert is_inside(
        box_of(tab, f"document.querySelector('{target} > rect')"), (0, 0, *WIDE)
    )
    assert_no_messages_or_requests(tab, path)


# --- what runs ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["hostile", "notebook"])
def test_texts_that_mean_harm_do_nothing(tab, pages, name):
    path = pages / f"{name}.html"
    tab.open(path, WIDE)
    assert tab.evaluate("document.scripts.length") == (1 if name == "hostile" else 0)
    assert tab.evaluate("document.images.length") == 0
    assert tab.evaluate("document.querySelectorAll('[onload]').length") == 0
    assert "<script>alert(1)</script>" in tab.evaluate("document.body.textContent")
    assert name == "notebook" or "alert(1)" in tab.evaluate(
        "document.querySelector('h2').textContent"
    )
    assert_no_messages_or_requests(tab, path)


def test_the_policy_blocks_injected_scripts_and_styles(tab, pages, tmp_path):
    page = (pages / "figures.html").read_text(encoding="utf-8")
    intruders = (
        "<script>document.title = 'in'</script><img src='x.png' onerror='document.title"
        " = 1'>"
    )
    intruders += "<style>body {color: red}</style>"
    path = tmp_path / "page.html"
    path.write_text(page.replace("</body>", f"{intruders}</body>"), encoding="utf-8")
    tab.open(path, WIDE)
    assert tab.evaluate("document.title") == "Delegation report"
    assert tab.evaluate("document.scripts.length") == 2
    assert tab.evaluate("getComputedStyle(document.body).color") != "rgb(255, 0, 0)"
    assert len(tab.said("Log.entryAdded")) >= 3
    assert len(boxes_of(tab, ".tools")) > 0
    assert EVIL not in page

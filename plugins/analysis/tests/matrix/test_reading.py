"""Rows are read: tables of any width, Markdown, CSV, a page, and what became better or
worse.
"""

import copy
import csv
import io
import re
import xml.dom.minidom
from xml.etree import ElementTree

import pytest
from delegraph_analysis.matrix import changes, page, refusals, tables
from delegraph_analysis.matrix.changes import BETTER, WORSE
from delegraph_analysis.matrix.rows import key_of, latest
from delegraph_analysis.matrix.store import is_row, read_rows

HOSTILE = "<img src=x onerror=alert(1)>\x1b[31m|`$x`[a](javascript:b)\n=cmd()\u202e"


@pytest.fixture
def rows(finished):
    found = latest(read_rows(finished))
    for row in found:
        row["measured"]["load"] = 0.5  # whatever else runs beside the tests
    return found


def find_row(rows, name, target="tosa", kind="float"):
    return next(row for row in rows if key_of(row) == (name, target, kind))


@pytest.mark.parametrize("width", [None, 200, 120, 80, 40, 20, 3])
def test_a_table_is_as_wide_as_its_terminal(rows, width):
    lines = tables.terminal_table(rows, width).split("\n")
    assert len(lines) > len(rows)
    if width is not None:
        assert max(map(len, lines)) <= width
    if width is None or width >= 40:
        assert lines[0].startswith("MODEL")
        assert "DELEGATED" in lines[0] or width == 40
        assert any("failed" in line for line in lines)
        assert any("input-invalid" in line for line in lines), (
            "the reason, in its column or below"
        )


def test_hostile_names_are_text(rows):
    row = find_row(rows, "small")
    row |= {"name": HOSTILE, "target": HOSTILE, "quantize": HOSTILE, "not_run": HOSTILE}
    row["causes"] = [
        dict(
            method="m",
            backend=HOSTILE,
            operator=HOSTILE,
            reason=HOSTILE,
            count=1,
            hint=HOSTILE,
        )
    ]
    row["error"] = dict(
        code=HOSTILE, message=HOSTILE, source=HOSTILE, hint=HOSTILE, raised_by=None
    )
    shown = (
        tables.terminal_table([row])
        + refusals.refusals_text([row])
        + tables.summary([row], 1)
    )
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    text = page.page([row], HOSTILE, "")
    body = ElementTree.fromstring(
        text.partition("<body>")[2].partition("</body>")[0].join(["<body>", "</body>"])
    )
    assert not list(body.iter("img"))
    assert not list(body.iter("script"))
    assert all(a.get("href").startswith("artifacts/") for a in body.iter("a"))
    table = tables.markdown([row]).split("\n\n")
    assert "<img" not in "".join(table)
    assert all(line.count("|") == 4 for line in table[2].splitlines())
    assert "](" not in "".join(table)
    read = list(csv.reader(io.StringIO(tables.comma_separated([row]))))
    assert len(read) == 2
    assert len(read[0]) == len(read[1])
    row["name"] = "=1+1"
    assert "\n'=1+1," in tables.comma_separated([row])
    xml.dom.minidom.parseString(changes.junit_of_rows([row]))


def test_damaged_rows_are_not_accepted(rows):
    row = find_row(rows, "small")
    assert is_row(row)
    damaged = [
        {**row, "schema": "other"},
        {**row, "files": [3]},
        {**row, "measured": None},
        7,
    ]
    damaged += [
        {name: value for name, value in row.items() if name != lost}
        for lost in ("cell", "measured", "error")
    ]
    assert not any(map(is_row, damaged))


@pytest.mark.parametrize(
    ("share", "shown"),
    [
        (1.0, "100%"),
        (0.9999, "99.9%"),
        (0.994, "99%"),
        (0.0, "0%"),
        (1e-5, "0.1%"),
        (0.5, "50%"),
    ],
)
def test_only_all_is_all_and_nothing_nothing(share, shown):
    assert tables.percent(share) == shown


def test_a_page_needs_nothing_else(rows, finished):
    text = page.page(rows, "Matrix", "store/")
    assert "http:" not in text
    assert "https:" not in text
    assert "src=" not in text
    assert "default-src 'none'" in text
    links = [
        a.get("href")
        for a in ElementTree.fromstring(
            f"<body>{text.partition('<body>')[2]}"[:-8]
        ).iter("a")
    ]
    assert links
    assert all((finished.parent / link).exists() for link in links)
    assert (finished / "index.html").read_text().count("<table>") == 3
    assert 'data-value="1.0" class="number">100%<' in text
    assert "input-invalid in load" in text


def test_csv_has_numbers_in_full(rows):
    read = list(csv.DictReader(io.StringIO(tables.comma_separated(rows))))
    small = next(
        r
        for r in read
        if (r["model"], r["backends"], r["type"]) == ("small", "tosa", "float")
    )
    assert float(small["ms"]) == tables.milliseconds(find_row(rows, "small"), "latency")
    assert small["delegated"] == "1.0"
    assert next(r for r in read if r["model"] == "wrong")["ms"] == ""


def test_markdown_can_omit_times_and_memory(rows):
    text = tables.markdown(rows, times=False)
    assert " ms" not in text
    assert "peak MB" not in text
    assert re.search(r"\| 100%, (\de-0\d|equal) \|", text)
    assert "| 0%, equal |" in text
    assert "&#38;#" not in text
    slow = changes_after(rows, make_slower(50.0))[1]
    assert tables.markdown(slow, times=False) == text != tables.markdown(rows)


def test_refusals_of_all_models(rows):
    found = next(
        r
        for r in refusals.refusals_of(rows)
        if r.backend == "tosa" and "inv_ex" in r.operator
    )
    assert found.operator == "aten.linalg_inv_ex.default"
    assert found.count == 1
    assert found.models == ["inverse"]
    twice = [
        *rows,
        {**find_row(rows, "inverse"), "quantize": "int8"},
        {**find_row(rows, "inverse"), "name": "other"},
    ]
    found = next(
        r
        for r in refusals.refusals_of(twice)
        if r.backend == "tosa" and "inv_ex" in r.operator
    )
    assert found.count == 2, "a model counts once"
    assert found.models == ["inverse", "other"]


def test_the_latest_measurement_of_a_row_is_used(rows):
    old = copy.deepcopy(find_row(rows, "small"))
    old["measured"]["ended"], old["cell"] = "2020-01-01T00:00:00+00:00", "earlier"
    assert [key_of(r) for r in latest([*rows, old])] == [key_of(r) for r in rows]
    assert "earlier" not in {r["cell"] for r in latest([old, *rows])}


# --- changes --------------------------------------------------------------------------


def changes_after(rows, change, name="small", target="tosa", noise=changes.NOISE):
    """What is told when one cell is changed."""
    after = copy.deepcopy(rows)
    change(find_row(after, name, target))
    return changes.changes(rows, after, noise), after


def make_slower(factor, eager=1.0):
    def change(row):
        for name, by in (("latency", factor), ("eager", eager)):
            row["measured"][name]["seconds"] = [
                by * s for s in row["measured"][name]["seconds"]
            ]

    return change


def make_fail(row):
    row["error"] = dict(
        code="internal", message="it fell over", source=None, hint=None, raised_by=None
    )


def make_disagree(row):
    row["methods"]["forward"] = {"agrees": False, "relative_error": 0.3, "snr": 9.0}


@pytest.mark.parametrize(
    ("change", "kind", "gated"),
    [
        (make_fail, "failed", True),
        (make_disagree, "agreement", True),
        (lambda row: row.update(delegated=1), "delegated", True),
        (
            lambda row: row["methods"]["forward"].update(relative_error=0.01),
            "error",
            False,
        ),
        (lambda row: row.update(delegates=3), "delegates", False),
        (
            lambda row: row["files"][0].update(bytes=row["files"][0]["bytes"] + 5000),
            "size",
            False,
        ),
        (make_slower(50.0), "latency", False),
        (lambda row: row["measured"]["cpu"].update(lower=9.0), "lowering", False),
        (lambda row: row["measured"].update(peak_bytes=9 << 30), "memory", False),
    ],
)
def test_each_kind_for_the_worse_and_for_the_better(rows, change, kind, gated):
    (found,), after = changes_after(rows, change)
    assert found.kind == kind
    assert found.way == WORSE
    assert found.model == "small"
    assert bool(changes.gate([found], changes.ALWAYS)) is gated
    assert changes.gate([found], [kind]) == [found]
    (back,) = changes.changes(after, rows)
    assert back.kind == kind
    assert back.way == BETTER
    assert not changes.gate([back], changes.GATES)


def test_noise_is_no_change(rows):
    assert changes.changes(rows, rows) == []
    assert changes_after(rows, make_slower(1.05))[0] == []
    assert changes_after(rows, make_slower(50.0, eager=50.0))[0] == [], (
        "all of the machine is slower"
    )

    def overlapping(row):
        seconds = row["measured"]["latency"]["seconds"]
        row["measured"]["latency"]["seconds"] = [
            min(seconds),
            *[50 * s for s in seconds],
        ]

    assert changes_after(rows, overlapping)[0] == []
    found, after = changes_after(
        rows, lambda row: (make_slower(50.0)(row), row["measured"].update(load=12.0))
    )
    assert found == []
    assert changes.busy(rows, after) == 1
    assert changes.busy(rows, rows) == 0
    few = copy.deepcopy(rows)
    find_row(few, "small")["measured"]["latency"]["seconds"] = [1e-9, 2e-9]
    assert changes.changes(few, rows) == [], "two calls say nothing"
    found, after = changes_after(
        rows,
        lambda row: (
            make_slower(50.0)(row),
            row["measured"]["machine"].update(cpu="another"),
        ),
    )
    assert found == []
    assert changes.other_machines(rows, after) == 1
    assert (
        changes_after(
            rows, lambda row: row["methods"]["forward"].update(relative_error=1e-7)
        )[0]
        == []
    )


def test_rows_come_and_go(rows):
    few = [row for row in rows if row["name"] != "small"]
    gone = changes.changes(rows, few)
    assert {(c.kind, c.way) for c in gone} == {("missing", WORSE)}
    assert changes.gate(gone, changes.ALWAYS)
    assert {(c.kind, c.way) for c in changes.changes(few, rows)} == {
        ("new", changes.OTHER)
    }


def test_junit_names_the_failed_cell(rows):
    found, after = changes_after(rows, make_fail)
    root = ElementTree.fromstring(changes.junit(after, found, changes.ALWAYS))
    failing = [
        (c.get("classname"), c.get("name"))
        for c in root.iter("testcase")
        if c.find("failure") is not None
    ]
    assert failing == [("small", "tosa, float")]
    assert len(list(root.iter("testcase"))) == len(rows)
    assert "it fell over" in next(root.iter("failure")).text

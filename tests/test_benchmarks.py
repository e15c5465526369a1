"""Published benchmark figures: how runs are stored, merged and shown on pages."""

import argparse
import importlib
import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "benchmarks"
NO_TABLES = {
    "__main__.py",
    "graphs.py",
    "measuring.py",
    "page.py",
    "publishing.py",
    "matrix_models.py",
    "trained_models.py",
}
NO_TABLES |= {"damaged_files.py"}  # what it prints is what it found, case by case
sys.path.insert(0, str(FOLDER))
page, publishing = (importlib.import_module(name) for name in ("page", "publishing"))
sys.path.remove(str(FOLDER))
RUN = {
    "command": "python benchmarks/b.py",
    "date": "2026-11-22",
    "versions": ["a 1"],
    "machine": "m",
    "load": "",
    "remark": "",
}
LATER = {**RUN, "date": "2026-11-25"}


def test_pages_show_the_published_figures():
    assert page.stale() == [], "run python -m benchmarks page"


@pytest.mark.parametrize(
    "path", sorted((FOLDER / "results").glob("*.json")), ids=lambda p: p.stem
)
def test_published_tables_have_runs_columns_and_keys(path):
    published = json.loads(path.read_text())
    assert {row[0] for table in published["tables"] for row in table["rows"]} == {
        *range(len(published["runs"]))
    }
    for table in published["tables"]:
        assert len({*table["columns"]}) == len(table["columns"])
        assert {len(row) - 1 for row in table["rows"]} <= {len(table["columns"])}
        keys = [tuple(row[1 : 1 + table["keys"]]) for row in table["rows"]]
        assert len({*keys}) == len(keys)
    for run in published["runs"]:
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", run["date"])
        assert not re.search(r"(^|[\s=])/\w", run["command"]), "a folder of one machine"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda p: p.stem)
def test_each_script_publishes_its_tables(path):
    text = path.read_text()
    if path.name not in NO_TABLES:
        questions = re.findall(r"publishing\.report\(\s*\w+,\s*\"(\w+)\"", text)
        assert questions
        assert "publishing.parser(" in text
        assert not re.search(r"print\(.*\| ", text)
        shown = (FOLDER / "templates/results.md").read_text()
        assert [q for q in questions if f"{{{{data {q}}}}}" not in shown] == []


def publish_rows(*rows, whole=False, before=None, run=RUN, columns=("model", "us")):
    table = publishing.Table(columns, rows)
    return publishing.merged(
        before or {"runs": [], "tables": []}, run, [table], whole=whole
    )


def test_newest_run_of_a_row_is_shown():
    first = publish_rows(["a", "1"], ["b", "2"])
    second = publish_rows(["b", "3"], ["c", "4"], before=first, run=LATER)
    assert first == publish_rows(["a", "1"], ["b", "2"])
    assert second["tables"][0]["rows"] == [[0, "a", "1"], [1, "b", "3"], [1, "c", "4"]]
    assert second["runs"] == [RUN, LATER]


def test_a_run_without_rows_left_is_removed():
    again = publish_rows(["a", "3"], before=publish_rows(["a", "1"]), run=LATER)
    assert again == publish_rows(["a", "3"], run=LATER)


def test_a_whole_table_replaces_the_rows_of_other_runs():
    again = publish_rows(
        ["b", "3"], before=publish_rows(["a", "1"], ["b", "2"]), run=LATER, whole=True
    )
    assert again == publish_rows(["b", "3"], run=LATER)


def test_tables_with_other_columns_are_not_merged():
    with pytest.raises(ValueError, match="other columns"):
        publish_rows(
            ["b", "3"], before=publish_rows(["a", "1"]), columns=("model", "ms")
        )
    assert publish_rows(
        ["a", "3"], before=publish_rows(["a", "1"]), columns=("model", "ms")
    )["runs"] == [RUN]
    with pytest.raises(ValueError, match="two columns"):
        publish_rows(["a", "1"], columns=("us", "us"))


def test_a_new_table_keeps_other_tables_of_its_question():
    other = publishing.merged(
        publish_rows(["a", "1"]),
        LATER,
        [publishing.Table(["m"], [["z"]], "other")],
        whole=True,
    )

    assert [(t["name"], t["rows"]) for t in other["tables"]] == [
        ("", [[0, "a", "1"]]),
        ("other", [[1, "z"]]),
    ]


def test_a_failed_write_keeps_the_published_file(tmp_path):
    path = tmp_path / "results" / "q.json"
    publishing.write(path, publish_rows(["a", "µ | 1"]))
    assert json.loads(path.read_text("utf-8")) == publish_rows(["a", "µ | 1"])
    with pytest.raises(TypeError):
        publishing.write(path, publish_rows(["a", object()]))
    assert json.loads(path.read_text("utf-8")) == publish_rows(["a", "µ | 1"])
    assert [p.name for p in path.parent.iterdir()] == ["q.json"]


def test_published_commands_have_no_folders_or_publishing_options():
    words = [
        "/x/benchmarks/b.py",
        "--publish",
        "--vela",
        "/x/bin/vela",
        "--to=/tmp/y",
        "--remark",
        "busy",
        "U-Net, small",
    ]

    assert (
        publishing.command(words)
        == "python benchmarks/b.py --vela vela --to=y 'U-Net, small'"
    )
    assert (
        publishing.command(["b.py", "--publish-whole", "--remark=busy"])
        == "python benchmarks/b.py"
    )


def test_a_script_publishes_only_with_the_option(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(publishing, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["b.py"])
    table = publishing.Table(["model", "us"], [("a", "1")])
    publishing.report(publishing.parser(None).parse_args([]), "q", ["python 3"], table)
    assert "| a | 1 |" in capsys.readouterr().out
    assert not [*tmp_path.iterdir()]

    publishing.report(
        publishing.parser(None).parse_args(["--publish", "--remark", "r"]),
        "q",
        ["python 3"],
        table,
    )
    [run] = json.loads((tmp_path / "q.json").read_text())["runs"]
    assert run["command"] == "python benchmarks/b.py"
    assert run["versions"] == ["python 3"]
    assert run["remark"] == "r"
    assert isinstance(publishing.parser("about"), argparse.ArgumentParser)


@pytest.fixture
def fill_template(tmp_path):
    rows = [["a", "x", "1,234.5 s"], ["a", "y", "2"], ["b", "x", "-"]]
    table = publishing.Table(["model", "type", "us"], rows, keys=2)
    publishing.write(
        tmp_path / "q.json",
        publishing.merged({"runs": [], "tables": []}, RUN, [table], whole=False),
    )
    return page.Template(tmp_path).fill


@pytest.mark.parametrize(
    "place, text",
    [
        ("cell q | a / x | us", "1,234.5 s"),
        ("cell q | b | us", "-"),
        ("cell q | a / x | us | .0f", "1234"),
        ("count q", "3"),
        ("count q | where type = x", "2"),
        ("range q | us | .1f", "2.0 to 1234.5"),
        ("range q | us | .0f | where type = y", "2"),
        ("data q", "[q](results/q.json), 2026-11-22"),
        (
            "table q | only b; a / y",
            "| model | type | us |\n|---|---:|---:|\n| b | x | - |\n| a | y | 2 |",
        ),
        (
            "table q | where type = y | columns us; model",
            "| us | model |\n|---|---:|\n| 2 | a |",
        ),
    ],
)
def test_placeholders_of_a_page_are_filled(fill_template, place, text):
    assert fill_template("{{" + place + "}}") == text


@pytest.mark.parametrize(
    "place, why",
    [
        ("cell q | c | us", "no rows"),
        ("cell q | a | us", "too many values"),
        ("cell q | b | ms", "ms"),
        ("cell q | b | us | .1f", "no number"),
        ("cell r | b | us", "FileNotFound"),
        ("cell q/t | b | us", "no table"),
        ("table q | some", "not only"),
        ("table q | columns ms", "ms"),
        ("range q | us | .1f | only b", "empty"),
        ("data r", "FileNotFound"),
        ("tables q", "a place begins with"),
    ],
)
def test_placeholders_without_data_are_named_in_the_error(fill_template, place, why):
    with pytest.raises(ValueError, match=re.escape("{{" + place + "}}") + ".*" + why):
        fill_template("{{" + place + "}}")


def test_a_link_has_the_day_of_the_newest_run(tmp_path):
    before = publish_rows(["a", "1"], ["b", "2"])
    publishing.write(
        tmp_path / "q.json", publish_rows(["b", "3"], before=before, run=LATER)
    )
    assert (
        page.Template(tmp_path).fill("{{data q}}") == "[q](results/q.json), 2026-11-25"
    )


def test_stale_pages_and_questions_without_link_are_found(tmp_path):
    (tmp_path / "docs/guide").mkdir(parents=True)
    templates = tmp_path / "benchmarks" / "templates"
    templates.mkdir(parents=True)
    publishing.write(tmp_path / "benchmarks/results/q.json", publish_rows(["a", "1"]))
    (templates / "results.md").write_text("{{data q}}\n")
    (templates / "quote.md").write_text("It takes {{cell q | a | us}} us.\n")
    guide = tmp_path / "docs/guide/speed.md"
    guide.write_text(
        "Text.\n<!-- figures: quote -->\nIt takes 2 us.\n<!-- end of figures"
        " -->\nMore.\n"
    )
    assert {p.name for p in page.stale(tmp_path)} == {"RESULTS.md", "speed.md"}

    for path, text in page.written(tmp_path).items():
        path.write_text(text)
    assert page.stale(tmp_path) == []
    assert "\nIt takes 1 us.\n" in guide.read_text()

    publishing.write(
        tmp_path / "benchmarks/results/unused.json", publish_rows(["a", "1"])
    )
    with pytest.raises(ValueError, match="unused"):
        page.stale(tmp_path)


def test_the_matrix_lists_every_architecture():
    sys.path.insert(0, str(FOLDER))
    try:
        architectures = importlib.import_module("architectures")
    finally:
        sys.path.remove(str(FOLDER))
    listed = re.findall(
        r"architectures.py:(\w+)\", name = \"(.+?)\"",
        (FOLDER / "architectures.toml").read_text(),
    )

    assert listed == [
        (architectures.function_of(name), name) for name in architectures.ARCHITECTURES
    ]
    assert all(callable(getattr(architectures, function)) for function, _ in listed)

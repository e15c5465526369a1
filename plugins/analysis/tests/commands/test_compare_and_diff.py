"""``delegraph compare``, ``delegraph diff``, and ``delegraph lower --report`` where it
writes a page.
"""

import json

import delegraph
import pytest

from core.tests.support.command_line import (
    LOWER,
    run_command,
    run_failing,
    run_for_json,
)


@pytest.mark.parametrize(
    "command, name, error",
    [
        ("compare", "c.html", "usage-invalid"),
        ("accuracy", "a.nothing", "format-not-found"),
        ("profile", "p.nothing", "format-not-found"),
    ],
)
def test_unknown_report_suffixes_are_refused_before_lowering(
    command, name, error, model, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(delegraph, "lower", None)
    report = tmp_path / name
    said = run_failing(
        capsys,
        command,
        model,
        "--backend",
        "echo",
        "--report",
        report,
        code=2,
        error=error,
    )
    assert name.rpartition(".")[2] in said
    assert not report.exists()


def test_compare_shows_candidates_and_refuses_unknown_backends(model, tmp_path, capsys):
    code, found = run_for_json(
        capsys, "compare", model, "--backend", "echo", "--report", tmp_path / "c.txt"
    )
    (row,) = found["candidates"]
    assert code == 0
    assert row["backends"] == ["echo"]
    assert row["relative_error"] == 0
    assert found["only"] == {}
    assert (tmp_path / "c.txt").read_text().startswith("BACKENDS")
    message = run_failing(
        capsys,
        "compare",
        model,
        "--backend",
        "nobody",
        code=2,
        error="backend-not-found",
    )
    assert "Backend nobody was not found" in message


def test_diff_shows_changed_rows_of_two_reports(model, tmp_path, capsys):
    reports = []
    for k, options in enumerate(([], ["--option", "echo.all=1"], [])):
        reports.append(tmp_path / f"{k}.json")
        exit_code, _, _ = run_command(
            capsys, "lower", model, *LOWER, *options, "--report", reports[-1]
        )
        assert exit_code == 0
    code, out, _ = run_command(capsys, "diff", reports[0], reports[1])
    assert code == 0
    assert "all: delegated operators  1 -> 2" in out
    assert "forward: on the host aten.sin.default  1 -> -" in out
    assert "forward: kept from echo because echo has no sin  1 -> -" in out
    assert "second" not in out
    _, printed, _ = run_command(capsys, "diff", reports[0], reports[2])
    assert printed == "no changes\n"
    _, found = run_for_json(capsys, "diff", reports[0], reports[1])
    assert not found["same"]
    message = run_failing(capsys, "diff", reports[0], model, error="format-invalid")
    assert "is no report" in message


def test_diffs_show_the_largest_changes_and_fit_one_screen(tmp_path, capsys):
    def report(host, inside, size):
        delegate = {
            "method": "forward",
            "backend": "echo",
            "bytes": size,
            "operators": inside,
        }
        totals = {
            "delegated_operators": sum(inside.values()),
            "host_operators": sum(host.values()),
        }
        rows = {"delegates": [delegate], "host": {"forward": host}, "causes": []}
        return {"schema": "delegraph.report/1", **totals, **rows}

    before = report(
        {"aten.sort.default": 1}, {f"aten.op{k}.default": 1 for k in range(40)}, 1000
    )
    after = report(
        {"aten.topk.default": 1, "aten.sort.default": 6}, {"aten.op0.default": 3}, 1001
    )
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for file, content in zip(files, (before, after), strict=True):
        file.write_text(json.dumps(content))
    lines = run_command(capsys, "diff", *files)[1].splitlines()
    assert lines[:4] == [
        "all: delegated operators  40 -> 3", "all: host operators  1 -> 7",
        "forward: on the host aten.sort.default  1 -> 6", "forward: on the host aten.topk.default  - -> 1",
    ]  # fmt: skip
    assert lines[4] == "forward: bytes of echo  1000 -> 1001"
    assert lines[5] == "forward: in echo aten.op0.default  1 -> 3"
    assert len(lines) == 20
    assert lines[-1] == "and 26 smaller changes: --all prints them, --json contains all"
    _, out, _ = run_command(capsys, "diff", *files, "--all")
    assert len(out.splitlines()) == 45
    _, data = run_for_json(capsys, "diff", *files)
    assert len(data["changes"]) == 45


@pytest.mark.parametrize("name", ["r.html", "r.htm"])
def test_html_suffixes_write_the_report_as_a_page(model, tmp_path, capsys, name):
    code, _, _ = run_command(
        capsys, "lower", model, *LOWER, "--report", tmp_path / name
    )
    assert code == 0
    written = (tmp_path / name).read_text()
    assert written.startswith("<!DOCTYPE html>")
    assert written.endswith("\n")
    assert "echo has no sin" in written

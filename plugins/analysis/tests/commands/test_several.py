"""``delegraph lower`` with several MODELs, and with ``--rows``."""

import json
import os

import jsonschema

from core.tests.cli.test_lowering import LOWER, SCHEMA, as_data, more
from core.tests.cli.test_main import echo, fails, model, run
from core.tests.conftest import site
from core.tests.support.processes import python

__all__ = ["echo", "model", "more", "site"]


def test_several_models(more, model, tmp_path, capsys):
    rows = tmp_path / "rows.jsonl"
    models = [model, f"{more}:methods", f"{more}:three"]
    given = ("lower", *models, *LOWER, "--rows", rows, "--report", tmp_path / "{}.txt", "--verify")
    code, out, _ = run(capsys, *given)
    head, *lines = out.splitlines()
    assert code == 1 and len(lines) == 3 and head.startswith("MODEL")
    assert lines[0].split()[1:4] == ["1", "of", "2"] and "returned a tuple of 3" in lines[2]
    assert sorted(p.name for p in tmp_path.glob("*.txt")) == ["methods.txt", "net.txt"]
    written = [json.loads(line) for line in rows.read_text().splitlines()]
    for row in written:
        jsonschema.validate(row, SCHEMA)
    assert [row["model"] for row in written] == list(map(str, models))

    before = model.stat()
    model.write_text("raise SystemExit".ljust(before.st_size))
    os.utime(model, ns=(before.st_atime_ns, before.st_mtime_ns))  # as if it were the same: it is not run again
    rows.write_text(rows.read_text().rpartition('{"schema"')[0] + '{"sch')  # as if the process had been ended
    code, found = as_data(capsys, *given)
    assert (code, found["failed"]) == (1, 1) and found["models"][0]["error"] is None
    assert len(rows.read_text().splitlines()) == 3, "the torn line is gone, and the missing row is added"
    code, found = as_data(capsys, *given, "--option", "echo.all=1")
    assert found.get("failed") == 2, found.get("message", "rows of other options do not count")


def test_rows_of_another_task_do_not_count(model, tmp_path, capsys):
    rows = tmp_path / "rows.jsonl"
    given = ("lower", model, *LOWER, "--rows", rows)
    assert run(capsys, *given)[0] == 0
    gates = ("--min-delegated", "0.9", "--max-delegates", "0")
    for _ in range(2):  # the second time from the row
        assert run(capsys, *given, *gates)[0] == 1
        first, second = map(json.loads, rows.read_text().splitlines())
        assert (first["gates"], second["gates"]) == ({}, {"min-delegated": False, "max-delegates": False})
    assert run(capsys, *given, "--max-delegates", "0")[0] == 1, "0 is a limit too"
    assert run(capsys, *given, "--report", tmp_path / "report.txt")[0] == 0 and (tmp_path / "report.txt").exists()
    model.write_text("raise SystemExit")
    assert run(capsys, *given)[0] == 1, "another file"


def test_several_models_need_several_files(more, model, tmp_path, capsys):
    given = ("lower", model, f"{more}:whole", *LOWER)
    wrong = fails(capsys, *given, "-o", "net.echo", code=2, error="usage-invalid")
    assert "needs {} in its name" in wrong and "{}.echo" in wrong
    (tmp_path / "rows").write_text("text")
    assert "not lowered" not in fails(capsys, *given, "--rows", tmp_path / "rows", error="input-invalid")
    assert "no regular file" in fails(capsys, *given, "--rows", "/dev/full", code=2, error="usage-invalid")


def test_without_this_distribution_an_error_says_what_to_install(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.py").touch()
    program = "import sys; sys.modules['delegraph_analysis'] = None; from delegraph.cli import main; main()"
    shown = python("-c", program, "lower", "a.py", "b.py", cwd=tmp_path, DELEGRAPH_DISABLE_PLUGINS="analysis")
    assert "a table of several MODELs comes with delegraph-analysis" in shown.stderr

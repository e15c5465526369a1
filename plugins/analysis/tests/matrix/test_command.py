"""``delegraph matrix``, as users call it."""

import json
import shutil

import pytest

from core.tests.support.command_line import run_command, run_failing
from core.tests.support.processes import run_python
from tests.support.schema import validate


def run_matrix_for_json(capsys, *words):
    code, out, _ = run_command(capsys, "matrix", *words, "--json")
    return code, json.loads(out)


def test_matrices_of_files_are_listed_run_and_shown(folder, finished, capsys):
    shutil.copytree(finished, folder / "store")
    (folder / "m.toml").write_text(
        'models = ["zoo.py:small"]\nbackends = ["tosa", []]\nsettings.runs = 3\n'
    )
    code, listed = run_matrix_for_json(capsys, "m.toml", "--store", "store", "--list")
    validate(listed, "matrix-list")
    assert code == 0
    assert [cell["row"] for cell in listed["cells"]] == [True, True]
    reports = [
        folder / f"made.{suffix}"
        for suffix in ("md", "csv", "html", "json", "junit.xml")
    ]
    given = [word for path in reports for word in ("--report", path)]
    code, found = run_matrix_for_json(
        capsys, "m.toml", "--store", "store", "--executor", "json:loads", *given
    )
    assert found.get("code") == "option-invalid", (
        "an executor is made before it is needed"
    )
    code, found = run_matrix_for_json(capsys, "m.toml", "--store", "store", *given)
    validate(found, "matrix")
    assert code == 0
    assert found["cells"] == 2
    assert found["failed"] == 0
    assert all(path.stat().st_size > 100 for path in reports)
    validate(json.loads((folder / "made.json").read_text()), "matrix")
    assert 'href="store/artifacts/' in (folder / "made.html").read_text()
    code, shown, _ = run_command(capsys, "matrix", "show", "store")
    assert code == 0
    assert "13 cells: " in shown
    assert "aten.linalg_inv_ex.default  tosa" in shown


def test_failed_cells_are_the_exit_code(folder, finished, capsys):
    shutil.copytree(finished, folder / "store")
    given = ["zoo.py:wrong", "--backends", "tosa", "--runs", "3", "--store", "store"]
    code, out, _ = run_command(capsys, "matrix", *given)
    assert code == 1
    assert "1 failed" in out
    assert "input-invalid in load" in out
    exit_code, _, _ = run_command(capsys, "matrix", *given, "--exit-zero")
    assert exit_code == 0


def test_a_difference_fails_its_gates(folder, finished, capsys):
    shutil.copytree(finished, folder / "new")
    rows = [
        json.loads(line) for line in (finished / "rows.jsonl").read_text().splitlines()
    ]
    for row in rows:
        if (row["name"], row["target"], row["quantize"]) == ("small", "tosa", "float"):
            row["delegated"] = 1
    (folder / "new/rows.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows)
    )
    code, found = run_matrix_for_json(
        capsys, "diff", finished, "new", "--report", "d.junit.xml"
    )
    validate(found, "matrix-diff")
    assert code == 1
    assert [c["kind"] for c in found["failing"]] == ["delegated"]
    assert "2 of 2 -&gt; 1 of 2" in (folder / "d.junit.xml").read_text()
    code, out, _ = run_command(
        capsys, "matrix", "diff", finished, "new", "--gate", "latency"
    )
    assert code == 0
    assert out.startswith("worse  small, tosa, float: delegated 2 of 2 -> 1 of 2")
    exit_code, _, _ = run_command(
        capsys, "matrix", "diff", "new", finished / "rows.jsonl"
    )
    assert exit_code == 0


def test_stores_are_joined_and_shown(folder, finished, capsys):
    code, found = run_matrix_for_json(capsys, "join", "all", finished)
    assert code == 0
    assert found["cells"] == 13
    code, _, _ = run_command(capsys, "matrix", "join", "all", finished)
    assert code == 0
    assert len((folder / "all/rows.jsonl").read_text().splitlines()) == 13
    assert 'href="artifacts/' in (folder / "all/index.html").read_text()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["missing.py", "--backends", "tosa"], "usage-invalid"),
        (["zoo.py:small", "--backends", "nothing"], "backend-not-found"),
        (["zoo.py:small", "--backends", "tosa", "--quantize", "int4"], "usage-invalid"),
        (["zoo.py:small", "--backends", "tosa", "tosa"], "usage-invalid"),
        (["zoo.py:small", "--backends", "demo+tosa+demo"], "usage-invalid"),
        (["zoo.py:small", "--backends", "tosa", "--files", "pte"], "format-not-found"),
        (
            [
                "zoo.py:small",
                "--backends",
                "tosa",
                "--quantize",
                "int8",
                "--quantizer",
                "nothing",
            ],
            "backend-not-found",
        ),
        (["zoo.py:small", "--backends", "tosa", "--report", "x.docx"], "usage-invalid"),
        (
            ["zoo.py:small", "--backends", "tosa", "--option", "tosa.nothing=1"],
            "option-invalid",
        ),
        (
            ["zoo.py:small", "--backends", "tosa", "--time-limit", "nan"],
            "usage-invalid",
        ),
        (
            ["zoo.py:small", "--backends", "tosa", "--executor", "nothing"],
            "option-invalid",
        ),
        (
            [
                "zoo.py:small",
                "zoo.py:wrong",
                "--backends",
                "tosa",
                "--calibration",
                "x.npz",
            ],
            "usage-invalid",
        ),
        (["diff", "a"], "usage-invalid"),
        (["join", "a"], "usage-invalid"),
        (["show", "a", "b"], "usage-invalid"),
    ],
)
def test_wrong_usage_is_refused_before_any_work(words, error, folder, capsys):
    run_failing(capsys, "matrix", *words, code=2, error=error)


def test_files_that_are_no_matrix_are_refused(folder, capsys):
    run_failing(capsys, "matrix", "show", "nowhere", code=1, error="input-invalid")
    (folder / "rows.jsonl").write_text("text\n")
    run_failing(capsys, "matrix", "show", folder, code=1, error="input-invalid")
    (folder / "m.toml").write_text("models = 3")
    run_failing(capsys, "matrix", "m.toml", code=1, error="input-invalid")
    (folder / "m.toml").write_text('models = ["zoo.py:small"]\nbackends = ["tosa"]')
    run_failing(
        capsys, "matrix", "m.toml", "--backends", "tosa", code=2, error="usage-invalid"
    )


def test_gates_of_a_run(folder, capsys):
    words = [
        "zoo.py:inverse",
        "--backends",
        "tosa",
        "--runs",
        "0",
        "--files",
        "--require-full",
        "--max-delegates",
        "0",
    ]
    code, found = run_matrix_for_json(
        capsys, *words, "--min-delegated", "0.4", "--require-agreement"
    )
    (row,) = found["rows"]
    assert code == 1
    assert row["error"]["code"] == "not-fully-delegated"
    assert row["methods"]
    assert row["files"] == []
    verdicts = {
        "agreement": True,
        "require-full": False,
        "min-delegated": True,
        "max-delegates": False,
    }
    assert row["gates"] == verdicts
    assert row["measured"]["page"]


def test_help_imports_no_torch(capsys):

    program = (
        "import sys; from delegraph.cli import main; main(['matrix', '--help']); assert"
        " 'torch' not in sys.modules"
    )
    completed = run_python("-c", program)
    assert completed.returncode == 0, completed.stderr
    assert "--executor NAME" in completed.stdout, completed.stderr


def test_systems_without_forks_are_refused(folder, finished, capsys, monkeypatch):
    monkeypatch.delattr("os.pidfd_open")
    message = run_failing(
        capsys, "matrix", "zoo.py:small", "--backends", "tosa", error="matrix/no-forks"
    )
    assert "which this system does not have" in message
    code, _, _ = run_command(capsys, "matrix", "diff", finished, finished)
    assert code == 0

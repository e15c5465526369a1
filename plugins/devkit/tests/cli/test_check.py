"""``delegraph check``: the same checks on the command line."""

import json

import delegraph_devkit as devkit
import pytest
from delegraph.cli import main


def test_one_operator_on_the_command_line(installed, capsys):
    installed()
    assert main(["check", "good", "--operator", "aten.relu.default", "--operator", "sin", "--verbose"]) == 0
    out = capsys.readouterr().out
    assert "ok      nn_functional_relu, float32, sample 0" in out
    assert "ok      special values: torch.relu(x)" in out and "special values: torch.tanh(x)" not in out
    assert "-       sin, float64, sample" in out and "only float32 tensors are computed" in out
    assert "good: 2 passed; " in out and "2 of 2 operators delegated at least once" in out


def test_the_command_line_runs_the_same_checks(installed, capsys, monkeypatch):
    installed()
    monkeypatch.setattr(devkit, "QUICK_GATE", 0)
    assert main(["check", "good", "--quick", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "delegraph.check/1" and found["passed"] and found["backend"] == "good"
    assert [c["name"] for c in found["checks"]] == list(devkit.CHECKS)
    assert {c["name"]: c["status"] for c in found["checks"] if c["status"] != "passed"} == {"options_run": "skipped"}


def test_the_command_line_shows_a_table_and_fails(installed, capsys):
    installed("import numpy")
    assert main(["check", "good", "--only", "light_declaration", "--only", "options_validated"]) == 1
    out = capsys.readouterr().out
    assert "light_declaration  failed   reading the declarations of good-plugin imports numpy" in out
    assert "good: 1 passed, 1 failed" in out


def test_the_command_line_takes_an_example(installed, capsys, tmp_path):
    installed()
    model = tmp_path / "model.py"
    model.write_text("import torch\ndef model():\n    return torch.nn.Linear(2, 2).eval(), (torch.ones(1, 2),)\n")
    code = main(["check", "good", "--only", "deterministic", "--example", str(model), "--json"])
    [result] = json.loads(capsys.readouterr().out)["checks"]
    assert code == 0, result
    assert result["figures"]["programs"] == 23


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["nothing"], "no installed plugin offers a backend 'nothing'"),
        (["good", "--operator", "no_such"], "torch's table of operators has no 'no_such'"),
        (["good", "--only", "luck"], "there is no check 'luck'; checks: light_declaration"),
        (["good", "--option", "size=1"], "has no option 'size'"),
        (["good", "--example", "missing.py"], "there is no file missing.py"),
    ],
)
def test_wrong_usage(arguments, said, installed, capsys):
    installed()
    assert main(["check", *arguments]) == 2
    assert said in capsys.readouterr().err

"""``delegraph check`` runs the checks on the command line."""

import json

import delegraph_devkit as devkit
import pytest
import torch
from delegraph.cli import main
from delegraph_devkit.cli.check import _ModelFile
from delegraph_devkit.model_file import load_example


def test_chosen_operators_are_checked_alone(installed, capsys):
    installed()
    operators = ["--operator", "aten.relu.default", "--operator", "sin"]

    code = main(["check", "good", *operators, "--verbose"])

    out = capsys.readouterr().out
    assert code == 0
    assert "ok      nn_functional_relu, float32, sample 0" in out
    assert "ok      special values: torch.relu(x)" in out
    assert "special values: torch.tanh(x)" not in out
    assert "-       sin, float64, sample" in out
    assert "only float32 tensors are computed" in out
    assert "good: 2 passed; " in out
    assert "2 of 2 operators delegated at least once" in out


@pytest.mark.slow  # 20 s
def test_the_command_line_runs_the_same_checks(installed, capsys, monkeypatch):
    installed()
    monkeypatch.setattr(devkit, "QUICK_GATE", 0)
    monkeypatch.setattr("delegraph_devkit.cli.check.QUICK_SECONDS", 3600)
    assert main(["check", "good", "--quick", "--json"]) == 0
    captured = capsys.readouterr()
    reported = [
        line.partition(":")[0]
        for line in captured.err.splitlines()
        if not line.startswith(" ")
    ]
    # one line for each check, although stderr is no terminal
    assert reported == list(devkit.CHECKS)
    found = json.loads(captured.out)
    assert found["schema"] == "delegraph.check/1"
    assert found["passed"]
    assert found["backend"] == "good"
    assert [c["name"] for c in found["checks"]] == list(devkit.CHECKS)
    # the backend has neither options nor these methods
    optional = ("options_run", "profiled_times", "compatibility_answered")
    expected = dict.fromkeys(optional, "skipped")
    assert {
        c["name"]: c["status"] for c in found["checks"] if c["status"] != "passed"
    } == expected


def test_failed_checks_are_in_the_table_and_exit_code(installed, capsys):
    installed("import numpy")
    checks = ["--only", "light_declaration", "--only", "options_validated"]

    code = main(["check", "good", *checks])

    out = capsys.readouterr().out
    assert code == 1
    assert (
        "light_declaration  failed   reading the declarations of good-plugin imports"
        " numpy" in out
    )
    assert "good: 1 passed, 1 failed" in out


def test_the_command_line_takes_an_example(installed, capsys, tmp_path):
    installed()
    model = tmp_path / "model.py"
    model.write_text(
        "import torch\ndef model():\n    return torch.nn.Linear(2, 2).eval(),"
        " (torch.ones(1, 2),)\n"
    )
    code = main(
        ["check", "good", "--only", "deterministic", "--example", str(model), "--json"]
    )
    [result] = json.loads(capsys.readouterr().out)["checks"]
    assert code == 0, result
    assert result["figures"]["programs"] == 23


@pytest.mark.parametrize(
    "arguments, text",
    [
        (["nothing"], "Backend nothing was not found"),
        (
            ["good", "--operator", "no_such"],
            "torch's table of operators has no 'no_such'",
        ),
        (
            ["good", "--only", "luck"],
            "there is no check 'luck'; checks: light_declaration",
        ),
        (["good", "--option", "size=1"], "has no option 'size'"),
        (["good", "--example", "missing.py"], "there is no file missing.py"),
    ],
)
def test_wrong_arguments_exit_with_code_2(arguments, text, installed, capsys):
    installed()
    assert main(["check", *arguments]) == 2
    assert text in capsys.readouterr().err


TRANSFORMED = """
import torch

def doubled(program):
    return torch.export.export(Doubled(program.module(check_guards=False)), (torch.ones(3, 2, dtype=torch.int8),))

class Doubled(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, input):
        return self.inner(input.float()) * 2

def model():
    return {"model": torch.nn.ReLU(), "args": (torch.ones(3, 2),), "transforms": [doubled]}

def exported():
    return torch.export.export(torch.nn.ReLU(), (torch.ones(1, 2),))

def refused():
    from delegraph.errors import Unsupported
    raise Unsupported("unsupported", "nothing to quantize")

def unexported():
    return torch.jit.script(torch.nn.ReLU()), (torch.ones(1, 2),)
"""


@pytest.mark.parametrize(
    "function, dtype", [("model", torch.int8), ("exported", torch.float32)]
)
def test_examples_may_be_exported_programs_with_transforms(
    function, dtype, installed, tmp_path
):
    installed()
    path = tmp_path / "model.py"
    path.write_text(TRANSFORMED)
    model, inputs = load_example(f"{path}:{function}")
    assert inputs[0].dtype == dtype
    expected = inputs[0].float().relu() * (2 if function == "model" else 1)
    torch.testing.assert_close(model.module()(*inputs), expected)
    scope = {}
    exec(_ModelFile(f"{path}:{function}").source, scope)
    assert scope["inputs"][0].shape == inputs[0].shape
    backend = devkit.BackendUnderTest("good", example=_ModelFile(f"{path}:{function}"))
    assert backend.attempt(backend.programs[0]).lowered.delegates


@pytest.mark.parametrize(
    "function, text",
    [("refused", "nothing to quantize"), ("unexported", "cannot export")],
)
def test_examples_that_cannot_be_exported_are_an_error(
    function, text, installed, tmp_path, capsys
):
    installed()
    path = tmp_path / "model.py"
    path.write_text(TRANSFORMED)
    example = f"{path}:{function}"

    code = main(["check", "good", "--only", "debug_handles", "--example", example])

    assert code == 1
    assert text in capsys.readouterr().err

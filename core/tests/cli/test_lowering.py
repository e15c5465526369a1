"""``delegraph lower`` where something fails, with gates, and with what a model file may
return.
"""

import json
import math
import re
import textwrap
from pathlib import Path

import delegraph
import jsonschema
import numpy as np
import pytest

from ..support.command_line import LOWER, SCHEMA, run_command, run_failing, run_for_json

MORE = """
import torch
from torch.export import Dim, export

class Net(torch.nn.Module):
    def forward(self, x, scale=None):
        y = torch.relu(torch.sin(x))
        return y if scale is None else y * scale

x = torch.ones(2, 3)

def whole():
    return {"model": Net().eval(), "args": (x,), "kwargs": {"scale": torch.tensor(2.0)}}

def dynamic():
    return {"model": Net().eval(), "args": (x,), "dynamic_shapes": ({0: Dim("n")},), "transforms": [turn]}

def turn(program):
    for node in program.graph.nodes:
        if node.target is torch.ops.aten.sin.default:
            node.target = torch.ops.aten.cos.default
    return program

def methods():
    return {"methods": {"one": (Net().eval(), (x,)), "two": {"model": Net().eval(), "args": (x + 1,)}}}

def exported():
    return export(Net().eval(), (x,))

def nothing():
    pass

def alone():
    return Net().eval()

def three():
    return Net().eval(), (x,), None

def keywords():
    return Net().eval(), (x,), {"scale": torch.tensor(2.0)}

def misspelt():
    return {"model": Net().eval(), "arguments": (x,)}

def tensor():
    return Net().eval(), x

class Branch(torch.nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x
        return -x

def branch():
    return Branch().eval(), (x,)
"""


@pytest.fixture
def model_path(tmp_path, echo):
    path = tmp_path / "more.py"
    path.write_text(textwrap.dedent(MORE))
    return path


def test_failed_gates_still_write_report_and_verification(
    model, tmp_path, capsys, monkeypatch
):
    report = tmp_path / "r.json"
    text = tmp_path / "r.txt"
    given = ("lower", model, *LOWER, "--report", report, "--report", text, "--verify")
    for gate, code in (
        (["--require-full"], "not-fully-delegated"),
        (["--min-delegated", "0.95"], "gate-failed"),
        (["--max-delegates", "0"], "gate-failed"),
        (["-o", tmp_path / "net.echo"], "not-fully-delegated"),
        (["--tolerance=-1"], "verification-failed"),
    ):
        report.unlink(missing_ok=True)
        actual, found = run_for_json(capsys, *given, *gate)
        assert actual == 1
        assert found["code"] == code
        assert found["report"]["host_operators"] == 1
        assert found["verification"]["relative_error"] == 0
        written = json.loads(report.read_text())
        jsonschema.validate(written, SCHEMA)
        assert written["causes"] == found["report"]["causes"]
        assert written["verification"] == found["verification"]
        assert "compared with eager" in text.read_text()
        text.unlink()
    assert not (tmp_path / "net.echo").exists()


def test_gates_that_are_passed(model, tmp_path, capsys):
    gates = ("--min-delegated", "0.5", "--max-delegates", "1")
    code, found = run_for_json(capsys, "lower", model, *LOWER, *gates)
    assert code == 0
    assert found["gates"] == {"min-delegated": True, "max-delegates": True}
    wrong = run_failing(
        capsys,
        "lower",
        model,
        *LOWER,
        "--min-delegated",
        "95",
        code=2,
        error="usage-invalid",
    )
    assert "--min-delegated" in wrong


def test_model_files_may_return_several_forms(model_path, capsys):
    for function, methods in (
        ("whole", 1),
        ("keywords", 1),
        ("dynamic", 1),
        ("methods", 2),
        ("exported", 1),
    ):
        code, found = run_for_json(
            capsys, "lower", f"{model_path}:{function}", *LOWER, "--verify"
        )
        assert found.get("code") in (None, "verification-failed"), found
        assert len(found["report"]["host"]) == methods
        assert code == (function == "dynamic"), (
            "the transform makes another function of it, and so eager disagrees"
        )
    assert found["report"]["host"] == {"forward": {"aten.sin.default": 1}}
    _, found = run_for_json(capsys, "lower", f"{model_path}:dynamic", *LOWER)
    assert found["report"]["host_operators"] == 0, (
        "echo takes the cos that the transform put there"
    )


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("nothing", "returned None;"),
        ("alone", "returned a Net;"),
        ("three", "returned a tuple of 3 (Net, tuple, NoneType);"),
        ("misspelt", "the dict has 'arguments'; its keys can be model, args"),
        ("tensor", "example inputs are a tuple, not a Tensor"),
    ],
)
def test_a_wrong_return_value_is_described(model_path, capsys, function, said):
    message = run_failing(
        capsys, "lower", f"{model_path}:{function}", *LOWER, error="input-invalid"
    )
    assert said in message


def test_an_export_that_fails_has_the_line(model_path, capsys):
    _, found = run_for_json(capsys, "lower", f"{model_path}:branch", *LOWER)
    assert found["code"] == "export-failed"
    assert "in forward: if x.sum() > 0:" in found["source"]
    assert "torch.cond" in found["hint"]


def test_outputs_never_overwrite_inputs_or_each_other(model, tmp_path, capsys):
    source = Path(model).read_bytes()
    (tmp_path / "link").symlink_to(tmp_path / "net.echo")
    (tmp_path / "hard.echo").hardlink_to(model)
    given = ("lower", model, *LOWER)
    net = tmp_path / "net.echo"
    hard = ["-o", tmp_path / "hard.echo"]
    for flags in (
        ["--report", model],
        ["-o", net, "--report", net],
        ["-o", net, "--report", tmp_path / "link"],
        hard,
    ):
        wrong = run_failing(capsys, *given, *flags, code=2, error="usage-invalid")
        assert "write to another file" in wrong
        assert not net.exists()
        assert Path(model).read_bytes() == source


def test_figures_of_several_methods_have_their_names(model_path, tmp_path, capsys):
    report = tmp_path / "r.txt"
    code, out, _ = run_command(
        capsys, "lower", f"{model_path}:methods", *LOWER, "--verify", "--report", report
    )
    assert code == 0
    for shown in (out, report.read_text()):
        assert re.findall(
            r"^method (\w+), compared with eager:$", shown, re.MULTILINE
        ) == ["one", "two"]
    _, printed, _ = run_command(
        capsys, "lower", f"{model_path}:whole", *LOWER, "--verify"
    )
    assert "\ncompared with eager:\n" in printed


def test_inputs_of_ones_own(model_path, tmp_path, capsys):
    files = [tmp_path / f"{k}.npz" for k in range(2)]
    for k, path in enumerate(files):
        np.savez(
            path,
            **{
                ("x", "arr_0")[k]: np.full((2, 3), 1 - k, np.float32),
                "scale": np.float32(3),
            },
        )
    given = ("lower", f"{model_path}:whole", *LOWER, "--verify")
    code, found = run_for_json(capsys, *given, "--input", files[0], "--input", files[1])
    assert code == 0
    assert found["verification"]["outputs"][0]["max_abs_value"] == pytest.approx(
        3 * math.sin(1)
    ), "of the first file"
    np.savez(files[0], y=np.zeros(1))
    for wrong, message in (
        (files[0], "no array for the input x of method forward; it has y"),
        (model_path, "readable .npz"),
    ):
        code, found = run_for_json(capsys, *given, "--input", wrong)
        assert code == 1
        assert found["code"] == "input-invalid"
        assert message in found["message"]
    error_text = run_failing(
        capsys, *given, "--input", "none.npz", code=2, error="usage-invalid"
    )
    assert "there is no file" in error_text


def test_without_a_named_backend(model, tmp_path, capsys):
    """As in Python: the one that options or the output are for, or the only one; the
    report says which.
    """
    usable = [backend for backend in delegraph.backends() if backend.usable]
    clear = len(usable) == 1 or sum(b.spec.default for b in usable) == 1
    exit_code, _, _ = run_command(capsys, "lower", model)
    assert exit_code == (0 if clear else 2)
    exit_code, _ = run_for_json(
        capsys, "lower", model, "-o", tmp_path / "m.echo", "--option", "all=1"
    )
    assert exit_code == 0
    code, found = run_for_json(capsys, "lower", model, "--option", "echo.all=1")
    assert code == 0
    assert found["report"]["notes"] == [
        "no backend was named; the options are for echo"
    ]
    code, found = run_for_json(capsys, "lower", model, "--host-only")
    assert code == 0
    assert found["report"]["delegates"] == []
    assert found["report"]["notes"] == []
    both = "--host-only", "--backend", "echo"
    message = run_failing(capsys, "lower", model, *both, code=2, error="usage-invalid")
    assert "exclude each other" in message


@pytest.mark.parametrize("command", [("backends",), ("completion", "bash")])
def test_schema_describes_the_json_of_other_commands(echo, capsys, command):
    code, _ = run_for_json(capsys, *command)
    assert code == 0

"""``delegraph lower``: gates, returned models, output paths and input files."""

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


@pytest.mark.parametrize(
    ("gate", "error"),
    [
        (["--require-full"], "not-fully-delegated"),
        (["--min-delegated", "0.95"], "gate-failed"),
        (["--max-delegates", "0"], "gate-failed"),
        (["-o", "net.echo"], "not-fully-delegated"),
        (["--tolerance=-1"], "verification-failed"),
    ],
)
def test_failed_gates_still_write_report_and_verification(
    model, tmp_path, capsys, monkeypatch, gate, error
):
    monkeypatch.chdir(tmp_path)
    report = tmp_path / "r.json"
    text = tmp_path / "r.txt"
    given = ("lower", model, *LOWER, "--report", report, "--report", text, "--verify")

    code, found = run_for_json(capsys, *given, *gate)

    assert code == 1
    assert found["code"] == error
    assert found["report"]["host_operators"] == 1
    assert found["verification"]["relative_error"] == 0

    written = json.loads(report.read_text())
    jsonschema.validate(written, SCHEMA)
    assert written["causes"] == found["report"]["causes"]
    assert written["verification"] == found["verification"]
    assert "compared with eager" in text.read_text()
    assert not (tmp_path / "net.echo").exists()


def test_json_lists_the_gates_that_passed(model, capsys):
    gates = ("--min-delegated", "0.5", "--max-delegates", "1")
    code, found = run_for_json(capsys, "lower", model, *LOWER, *gates)
    assert code == 0
    assert found["gates"] == {"min-delegated": True, "max-delegates": True}


def test_min_delegated_is_a_share_of_at_most_one(model, capsys):
    lower = ("lower", model, *LOWER, "--min-delegated", "95")
    message = run_failing(capsys, *lower, code=2, error="usage-invalid")
    assert "--min-delegated" in message


@pytest.mark.parametrize(
    ("function", "methods"),
    [
        ("whole", ["forward"]),
        ("keywords", ["forward"]),
        ("methods", ["one", "two"]),
        ("exported", ["forward"]),
    ],
)
def test_model_files_may_return_several_forms(model_path, capsys, function, methods):
    path = f"{model_path}:{function}"
    code, found = run_for_json(capsys, "lower", path, *LOWER, "--verify")
    assert code == 0
    host = found["report"]["host"]
    assert host == {method: {"aten.sin.default": 1} for method in methods}


def test_model_files_may_return_transforms(model_path, capsys):
    lower = ("lower", f"{model_path}:dynamic", *LOWER)

    code, found = run_for_json(capsys, *lower)
    assert code == 0
    assert found["report"]["host_operators"] == 0, (
        "echo supports cos, which replaces sin"
    )

    code, found = run_for_json(capsys, *lower, "--verify")
    assert code == 1
    assert found["code"] == "verification-failed", "eager computes sin"


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
def test_a_wrong_return_value_of_a_model_file_is_described(
    model_path, capsys, function, said
):
    message = run_failing(
        capsys, "lower", f"{model_path}:{function}", *LOWER, error="input-invalid"
    )
    assert said in message


def test_a_failed_export_names_the_line_of_the_model(model_path, capsys):
    _, found = run_for_json(capsys, "lower", f"{model_path}:branch", *LOWER)
    assert found["code"] == "export-failed"
    assert "in forward: if x.sum() > 0:" in found["source"]
    assert "torch.cond" in found["hint"]


def test_outputs_never_overwrite_inputs_or_each_other(model, tmp_path, capsys):
    source = Path(model).read_bytes()
    net = tmp_path / "net.echo"
    link_to_net = tmp_path / "link"
    link_to_net.symlink_to(net)
    link_to_model = tmp_path / "hard.echo"
    link_to_model.hardlink_to(model)
    for flags in (
        ["--report", model],
        ["-o", link_to_model],
        ["-o", net, "--report", net],
        ["-o", net, "--report", link_to_net],
    ):
        lower = ("lower", model, *LOWER, *flags)
        message = run_failing(capsys, *lower, code=2, error="usage-invalid")
        assert "write to another file" in message
        assert not net.exists()
        assert Path(model).read_bytes() == source


def test_verification_is_printed_by_method(model_path, tmp_path, capsys):
    report = tmp_path / "r.txt"
    code, out, _ = run_command(
        capsys, "lower", f"{model_path}:methods", *LOWER, "--verify", "--report", report
    )
    assert code == 0

    heading = re.compile(r"^method (\w+), compared with eager:$", re.MULTILINE)
    assert heading.findall(out) == ["one", "two"]
    assert heading.findall(report.read_text()) == ["one", "two"]

    _, printed, _ = run_command(
        capsys, "lower", f"{model_path}:whole", *LOWER, "--verify"
    )
    assert "\ncompared with eager:\n" in printed


def test_verification_uses_the_given_input_files(model_path, tmp_path, capsys):
    named = tmp_path / "named.npz"
    np.savez(named, x=np.ones((2, 3), np.float32), scale=np.float32(3))
    by_position = tmp_path / "by_position.npz"
    np.savez(by_position, arr_0=np.zeros((2, 3), np.float32), scale=np.float32(3))

    lower = ("lower", f"{model_path}:whole", *LOWER, "--verify")
    code, found = run_for_json(capsys, *lower, "--input", named, "--input", by_position)

    assert code == 0

    largest = found["verification"]["outputs"][0]["max_abs_value"]
    assert largest == pytest.approx(3 * math.sin(1)), "the first file has ones"


def test_wrong_input_files_are_refused(model_path, tmp_path, capsys):
    lower = ("lower", f"{model_path}:whole", *LOWER, "--verify")
    without_x = tmp_path / "without_x.npz"
    np.savez(without_x, y=np.zeros(1))

    for path, text in (
        (without_x, "no array for the input x of method forward; it has y"),
        (model_path, "readable .npz"),
    ):
        code, found = run_for_json(capsys, *lower, "--input", path)
        assert code == 1
        assert found["code"] == "input-invalid"
        assert text in found["message"]

    absent = ("--input", "none.npz")
    message = run_failing(capsys, *lower, *absent, code=2, error="usage-invalid")
    assert "there is no file" in message


def test_the_backend_follows_from_options_or_output(model, tmp_path, capsys):
    output = ("-o", tmp_path / "m.echo", "--option", "all=1")
    code, _ = run_for_json(capsys, "lower", model, *output)
    assert code == 0

    code, found = run_for_json(capsys, "lower", model, "--option", "echo.all=1")
    assert code == 0

    notes = found["report"]["notes"]
    assert notes == ["no backend was named; the options are for echo"]


def test_without_a_backend_there_must_be_one_default(model, capsys):
    usable = [backend for backend in delegraph.backends() if backend.usable]
    defaults = [backend for backend in usable if backend.spec.default]
    is_clear = len(usable) == 1 or len(defaults) == 1

    code, _, _ = run_command(capsys, "lower", model)

    assert code == (0 if is_clear else 2)


def test_host_only_lowers_without_a_backend(model, capsys):
    code, found = run_for_json(capsys, "lower", model, "--host-only")
    assert code == 0
    assert found["report"]["delegates"] == []
    assert found["report"]["notes"] == []


def test_host_only_and_a_backend_exclude_each_other(model, capsys):
    both = ("--host-only", "--backend", "echo")
    message = run_failing(capsys, "lower", model, *both, code=2, error="usage-invalid")
    assert "exclude each other" in message


@pytest.mark.parametrize("command", [("backends",), ("completion", "bash")])
def test_json_of_other_commands_fits_the_schema(echo, capsys, command):
    code, _ = run_for_json(capsys, *command)
    assert code == 0

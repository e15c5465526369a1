"""Native code may print to descriptor 1, and Python code may exit: both stay visible."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from delegraph.cli import main
from delegraph.cli.native_output import stdout_kept

PLUGIN = """
import ctypes, os, signal
from delegraph.backend import BackendDetails, PreprocessResult
from delegraph.partitioner import CapabilityPartitioner
from delegraph.plugin import BackendSpec, CommandSpec, PartitionerSpec, hookimpl

C = ctypes.CDLL(None)

def act():
    exec(os.environ["ACT"])

class RoughBackend(BackendDetails):
    @staticmethod
    def preprocess(edge_program, compile_specs):
        act()
        return PreprocessResult(b"rough")

class RoughPartitioner(CapabilityPartitioner):
    def __init__(self):
        super().__init__(lambda node: None, "RoughBackend")

class Rough:
    @staticmethod
    def add_arguments(parser):
        pass

    @staticmethod
    def run(args):
        act()

@hookimpl
def delegraph_backends():
    target = "acme_rough:RoughBackend"
    return [BackendSpec("rough", target, "RoughBackend", 1)]

@hookimpl
def delegraph_partitioners():
    return [PartitionerSpec("rough", "rough", "acme_rough:RoughPartitioner", default=True)]

@hookimpl
def delegraph_commands():
    return [CommandSpec("rough", "acme_rough:Rough")]
"""
MODEL = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)

def model():
    return Model().eval(), (torch.ones(3),)
"""
PLACE = (
    "preprocess of RoughBackend (acme-rough 1.5), at partition RoughBackend_0 of method"
    " forward"
)


@pytest.fixture
def run_delegraph(site, tmp_path):
    """Return a function that runs the command line in a process, with a plugin that
    executes ``act``.
    """
    site.plugin("acme-rough", PLUGIN, version="1.5")
    (tmp_path / "net.py").write_text(MODEL)
    path = os.pathsep.join([str(site.folder), *filter(None, sys.path)])

    def run(act, *arguments):
        words = [sys.executable, "-m", "delegraph", *arguments]
        variables = {**os.environ, "ACT": act, "PYTHONPATH": path}
        return subprocess.run(
            words,
            cwd=tmp_path,
            env=variables,
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run


LOWER = ("lower", "net.py", "--backend", "rough")


def test_json_survives_native_prints(run_delegraph):
    """C keeps ``printf`` in a buffer until the process ends."""
    act = (
        "C.printf(b'from a buffer\\n'); os.write(1, b'at once\\n'); print('from"
        " Python'); os.system('echo a child')"
    )
    completed = run_delegraph(act, *LOWER, "--json")

    assert json.loads(completed.stdout)["schema"] == "delegraph.lower/1"
    assert completed.returncode == 0
    for text in ("from a buffer", "at once", "from Python", "a child"):
        assert text in completed.stderr


def test_an_exit_in_a_command_is_a_failure(run_delegraph):
    completed = run_delegraph("raise SystemExit(0)", "rough", "--json")
    found = json.loads(completed.stdout)
    assert completed.returncode == 1
    assert found["code"] == "plugin-failed"
    assert found["raised_by"] == "run of Rough (acme-rough 1.5)"


def test_an_exit_in_preprocess_is_a_failure_with_its_line(run_delegraph):
    completed = run_delegraph("raise SystemExit(0)", *LOWER)
    assert completed.returncode == 1
    assert "plugin-crashed" not in completed.stderr
    assert f"error [plugin-failed]: {PLACE}, raised SystemExit: 0" in completed.stderr
    assert "net.py:6, in forward: return torch.relu(x)" in completed.stderr


def test_an_exit_in_delegraph_is_a_failure(capsys, monkeypatch):
    def leave(*_):
        raise SystemExit(0)

    monkeypatch.setattr("delegraph.cli._run", leave)
    assert main(["backends"]) == 1
    assert "SystemExit" in capsys.readouterr().err


def test_stdout_is_restored_after_nested_redirections(capfd):
    os.write(1, b"before\n")
    with stdout_kept():
        os.write(1, b"inside\n")
        with stdout_kept():
            os.write(1, b"deeper\n")
    os.write(1, b"after\n")
    assert capfd.readouterr() == ("before\nafter\n", "inside\ndeeper\n")

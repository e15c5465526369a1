"""Run commands in this process, with an echo backend that supports all but sines."""

import json
import textwrap
from pathlib import Path

import delegraph
import jsonschema
import pytest
from delegraph.cli import main
from delegraph.formats import DelegateFormat
from delegraph.partitioner import CapabilityPartitioner
from delegraph.plugin import BackendSpec, FormatSpec, OptionSpec, hookimpl

from ..conftest import COMPILED, EchoBackend, EchoRuntime

SCHEMA = json.loads((Path(__file__).parents[3] / "docs/schema.json").read_text("utf-8"))
MODEL = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(torch.sin(x)) if not self.training else x

def model():
    return Model().eval(), (torch.linspace(-1, 2, 6).reshape(2, 3),)

def training():
    return Model(), (torch.linspace(-1, 2, 6).reshape(2, 3),)

def failing():
    raise ValueError("no weights here")

def wrong():
    return 7
"""


class EchoPartitioner(CapabilityPartitioner):
    """Takes every call except sin. With ``all``, it takes sin as well."""

    def __init__(self, all=False, level=1):
        super().__init__(
            lambda n: None if all or "sin" not in str(n.target) else "echo has no sin",
            "EchoBackend",
        )


class EchoFormat(DelegateFormat):
    backend_id = "EchoBackend"


class EchoFormats:
    @hookimpl
    def delegraph_formats(self):
        return [FormatSpec(".echo", f"{__name__}:EchoFormat")]


OPTIONS = (OptionSpec("all", bool, False), OptionSpec("level", int, 1, choices=(1, 2)))


@pytest.fixture
def echo(site):
    """Register the echo backend and its .echo files in the registry of the process."""
    target = f"{EchoBackend.__module__}:EchoBackend"
    spec = BackendSpec("echo", target, "EchoBackend", 1, options=OPTIONS)
    with (
        delegraph.register(spec, partitioner=EchoPartitioner, runtime=EchoRuntime),
        delegraph.register(EchoFormats()),
    ):
        yield
    COMPILED.clear()


@pytest.fixture
def model(tmp_path, echo):
    path = tmp_path / "net.py"
    path.write_text(textwrap.dedent(MODEL))
    return path


def run_command(capsys, *arguments):
    code = main([str(a) for a in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def run_failing(capsys, *arguments, code=1, error):
    """Run a command that must fail, and return its error text.

    The error is one paragraph on stderr, and has the same code as JSON.
    """
    actual, out, err = run_command(capsys, *arguments)
    assert actual == code
    assert out == ""
    assert err.startswith(f"error [{error}]: ")
    assert "Traceback" not in err
    actual, out, _ = run_command(capsys, *arguments, "--json")
    found = json.loads(out)
    assert actual == code
    assert found["schema"] == "delegraph.error/1"
    assert found["code"] == error
    return err


LOWER = ("--backend", "echo")


def run_for_json(capsys, *arguments):
    """Return the exit code and the parsed output of ``--json``, which fits
    docs/schema.json.
    """
    code, out, _ = run_command(capsys, *arguments, "--json")
    found = json.loads(out)
    jsonschema.validate(found, SCHEMA)
    return code, found

"""docs/schema.json describes every JSON document that commands print."""

import contextlib
import io
import json
import re
from pathlib import Path

import jsonschema
import pytest
import torch
from delegraph import default_registry
from delegraph.cli import main
from delegraph_executorch.buckets import lower_buckets

from tests.support.schema import SCHEMA, validate

ROOT = Path(__file__).parent.parent
MODEL = """
import torch

class Net(torch.nn.Module):
    def forward(self, x):
        return torch.linalg.inv_ex(x + 1)[0], torch.relu(x)

def net():
    return Net().eval(), (2 * torch.eye(3),)

def small():
    return torch.nn.ReLU().eval(), (torch.ones(2, 3),)
"""


def printed_json(*words, code=0):
    """Return the ``--json`` output of a command, after checking its exit code."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        assert main([*map(str, words), "--json"]) == code
    return json.loads(out.getvalue())


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return a folder with a model, its lowered files and two reports."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "m.py").write_text(MODEL)
    model = f"{folder / 'm.py'}:small"
    for suffix in (".tosa", ".pte"):
        found = printed_json(
            "lower",
            model,
            "--backend=tosa",
            "-o",
            folder / f"m{suffix}",
            "--report",
            folder / "a.json",
        )
        validate(found, "lower")
    kept = f"--cache={folder / 'kept'}"
    found = printed_json(
        "lower",
        f"{folder / 'm.py'}:net",
        "--backend=tosa",
        "--verify-operators",
        kept,
        "--report",
        folder / "b.json",
    )
    validate(found, "lower")
    return folder


def test_the_schema_has_every_form_in_the_sources():
    sources = [
        *ROOT.glob("programs/src/**/*.py"),
        *ROOT.glob("core/src/**/*.py"),
        *ROOT.glob("plugins/*/src/**/*.py"),
    ]
    named = set()
    for path in sources:
        text = path.read_text("utf-8")
        named.update(re.findall(r'"(delegraph\.[a-z-]+/\d+)"', text))
    described = {
        d["properties"]["schema"]["const"]
        for d in SCHEMA["$defs"].values()
        if "schema" in d.get("properties", {})
    }

    assert named == described
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


FORMS = {
    "backends": ("backends", ["backends"]),
    "completion": ("completion", ["completion", "bash"]),
    "diff": ("diff", ["diff", "a.json", "b.json"]),
    "cache": ("cache", ["cache", "--cache", "kept"]),
    "run": ("run", ["run", "m.tosa"]),
    "tosa": ("inspect .tosa", ["inspect", "m.tosa", "--verify"]),
    "pte": ("inspect .pte", ["inspect", "m.pte"]),
    "summary": ("inspect", ["inspect", "m.pte", "--summary"]),
    "can-run": ("inspect", ["inspect", "m.tosa", "--can-run"]),
    "profile": ("profile", ["profile", "m.py:small", "--backend=tosa", "--repeats=1"]),
    "compare": ("compare", ["compare", "m.py:small", "--backend=tosa", "--backend=demo"]),
    "accuracy": ("accuracy", ["accuracy", "m.py:small", "--backend=tosa"]),
    "check": ("check", ["check", "demo", "--only=light_declaration"]),
    "coverage": ("coverage", ["coverage", "demo", "--operator=relu"]),
    "new-backend": ("new-backend", ["new-backend", "my-npu", "npu"]),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_printed_json_matches_the_schema(name, files, monkeypatch):
    monkeypatch.chdir(files)
    definition, words = FORMS[name]
    found = printed_json(*words)
    validate(found, definition)
    jsonschema.Draft202012Validator(SCHEMA).validate(found)
    if definition.startswith("inspect"):
        assert found["summary"]["methods"][0]["inputs"][0]["shape"] == [2, 3]


def test_inspect_prints_sizes_and_infinite_padding_as_json(files):
    """JSON has no number for the padding of -inf."""
    sizes = [(torch.ones(2, n),) for n in (3, 5)]
    lowered = lower_buckets(
        torch.nn.ReLU().eval(), sizes, padding=-float("inf"), backends=["tosa"]
    )
    lowered.save(files / "sizes.pte")
    found = printed_json("inspect", files / "sizes.pte")
    validate(found, "inspect .pte")

    assert found["buckets"]["padding"] == "-inf"
    assert len(found["buckets"]["inputs"]) == 2
    held = (
        default_registry()
        .get_format("sizes.pte")
        .named_data(files / "sizes.pte")["delegraph.buckets"]
    )
    validate(json.loads(bytes(held), parse_constant=pytest.fail), "buckets")


def test_an_error_matches_only_the_form_of_errors(files):
    found = printed_json("inspect", files / "absent.tosa", code=2)
    validate(found, "error")
    for definition in ("backends", "doctor", "inspect", "run", "diff", "check"):
        with pytest.raises(jsonschema.ValidationError):
            validate(found, definition)

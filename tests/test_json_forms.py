"""docs/schema.json is what is really printed: it has each form that the sources name,
and commands print of these.
"""

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
    """What a command prints with ``--json``, which has exactly this exit code."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        assert main([*map(str, words), "--json"]) == code
    return json.loads(out.getvalue())


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with a model, what was lowered from it, and two reports."""
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


def test_every_form_is_described():
    sources = [
        p
        for folder in ("programs/src", "core/src", "plugins")
        for p in (ROOT / folder).rglob(
            "src/**/*.py" if folder == "plugins" else "**/*.py"
        )
    ]
    named = {
        name
        for p in sources
        for name in re.findall(r'"(delegraph\.[a-z-]+/\d+)"', p.read_text("utf-8"))
    }
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


def test_sizes_of_one_model_in_a_file(files):
    """What the file holds, and what is printed of it; a padding of -inf is no number in
    JSON.
    """
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

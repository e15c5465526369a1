"""``delegraph inspect`` and ``delegraph run`` on the files of any plugin's format."""

import json
import subprocess
import sys

import delegraph
import pytest
import torch
from delegraph.cli import main
from delegraph.discovery.registry import Registry
from delegraph.errors import FormatError
from delegraph.formats import Verdict

from core.tests.support.command_line import run_failing
from core.tests.support.hostile_plugin import EVIL, HOSTILE, LONG, PROGRESS_BAR
from core.tests.support.processes import run_python


def test_the_command_line_lowers_inspects_and_runs_it(zipped, site, tmp_path):
    """``run`` reads the file and calls it, since the format has no ``run`` of its own."""
    import numpy

    model = (
        "import torch\ndef net():\n    return torch.nn.Linear(4, 2).eval(),"
        " (torch.ones(3, 4),)\n"
    )
    (tmp_path / "net.py").write_text(model)
    numpy.save(tmp_path / "x.npy", numpy.ones((3, 4), numpy.float32))

    def run(*words):
        path = {"PYTHONPATH": ":".join([str(site.folder), *filter(None, sys.path)])}
        command = [sys.executable, "-m", "delegraph", *words, "--json"]
        return subprocess.run(
            command, env=path, cwd=tmp_path, capture_output=True, text=True
        )

    assert (
        run("lower", "net.py", "--backend", "self", "-o", "net.zipped").returncode == 0
    )
    shown = json.loads(run("inspect", "net.zipped").stdout)
    assert shown["methods"] == ["forward"]
    assert shown["delegates"][0]["backend_id"] == "SelfContainedBackend"
    ran = json.loads(run("run", "net.zipped", "--input", "x.npy").stdout)
    assert ran["outputs"][0]["shape"] == [3, 2]
    refused = run("run", "net.zipped")
    assert refused.returncode == 2
    assert "--input FILE.npy" in refused.stderr


def test_output_paths_must_differ_from_the_input(echo, tmp_path, capsys):
    net = tmp_path / "net.echo"
    net.write_bytes(b"blob")
    message = run_failing(
        capsys, "inspect", net, "--html", net, code=2, error="usage-invalid"
    )
    assert "net.echo is read" in message
    assert net.read_bytes() == b"blob"


def test_inspect_shows_whether_a_file_can_run_here(tmp_path, capsys):
    lowered = delegraph.lower(
        torch.nn.Linear(4, 4).eval(), (torch.ones(1, 4),), backends=["compiler-demo"]
    )
    path = tmp_path / "m.pte"
    lowered.save(path)
    assert main(["inspect", str(path), "--can-run"]) == 0
    made = lowered.delegates[0].producer
    shown = (
        "can run here: runs\n  forward  BackendWithCompilerDemo ({})  runs: it has version"
        " 1 of the format\n"
    )
    assert capsys.readouterr().out == shown.format(made)
    assert main(["inspect", str(path), "--can-run", "--device", "npu", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["compatible"]["verdict"] == "cannot"
    assert "'npu'" in found["compatible"]["delegates"][0]["reason"]
    assert set(found) == {"schema", "file", "summary", "compatible"}
    message = run_failing(
        capsys, "inspect", path, "--device", "npu", code=2, error="usage-invalid"
    )
    assert "--can-run" in message
    blob = bytearray(path.read_bytes())
    place = blob.index(b"DGCD")
    blob[place + 4] = 9  # the version
    path.write_bytes(blob)
    assert main(["inspect", str(path), "--can-run"]) == 1
    assert (
        "cannot: this blob of BackendWithCompilerDemo was written by version 9"
        in capsys.readouterr().out
    )
    with pytest.raises(
        FormatError,
        match=(
            "cannot run: this blob of BackendWithCompilerDemo was written by version 9"
        ),
    ):
        delegraph.load(path)(torch.ones(1, 4))


@pytest.mark.parametrize("command", ["inspect", "run"])
def test_missing_distributions_are_named_in_the_error(command, tmp_path):
    completed = run_python(
        "-m",
        "delegraph",
        command,
        "net.tosa",
        cwd=tmp_path,
        DELEGRAPH_DISABLE_PLUGINS="analysis",
    )
    assert completed.returncode == 2
    assert "delegraph-analysis" in completed.stderr


# --- what files hold, and what formats do ---------------------------------------------


@pytest.fixture
def hostile(site, tmp_path, monkeypatch):
    """A format and a file whose every text is hostile; gives what the file is called."""
    site.plugin("evil", HOSTILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("delegraph.discovery.registry._default", Registry())
    monkeypatch.setenv("DELEGRAPH_PLUGINS", "evil,analysis")
    # what a file can be called
    name = EVIL.replace("\x00", "").replace("\ud800", "\udcff")
    (tmp_path / f"{name}.npu").write_text("")
    return f"{name}.npu"


@pytest.mark.parametrize("json", [[], ["--json"]], ids=["text", "json"])
@pytest.mark.parametrize(
    ("command", "works"),
    [
        (["inspect", "FILE"], True),
        (["run", "FILE"], True),
        (["inspect", "FILE", "--html", "page.html"], False),
        (["inspect", "FILE", "--verify"], False),
        (["run", "FILE", "--input", "FILE"], False),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_control_characters_of_files_never_reach_the_terminal(
    command, works, json, hostile, capsys
):
    code = main([*(word.replace("FILE", hostile) for word in command), *json])
    captured = capsys.readouterr()
    told = captured.out + captured.err.replace(PROGRESS_BAR, "")
    assert not [c for c in told if not (c.isprintable() or c in "\n\t")]
    assert (code == 0) == works
    assert not works or "x1b" in told or "u001b" in told


def test_verdicts_are_shown_in_one_line(hostile, monkeypatch, capsys):
    """It quotes names of the file, which would otherwise write verdicts of their own."""
    said = f"no rule for n{EVIL}\n\naccepted by judge: all of it\x85{'x' * 100_000}"
    judged = [Verdict("judge", False, said)]
    monkeypatch.setattr(
        "delegraph.host.FileFormat.verify", lambda file, path: judged, raising=False
    )
    assert main(["inspect", hostile, "--verify"]) == 1
    stdout = capsys.readouterr().out
    assert stdout.count("\nrefused by judge: no rule") == 1
    assert "\naccepted" not in stdout
    assert len(stdout) < 3000


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_every_encoding_of_the_terminal_will_do(hostile, site, encoding):
    for command in ("inspect", "run"):
        plugins = {"DELEGRAPH_PLUGINS": "evil,analysis"}
        completed = run_python(
            "-m",
            "delegraph",
            command,
            hostile,
            path=site.folder,
            PYTHONIOENCODING=encoding,
            **plugins,
        )
        assert completed.returncode == 0
        assert completed.stderr.split() == (["50%", "100%"] if command == "run" else [])
        assert completed.stdout.strip()


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["inspect", f"{LONG}.npu"], 2),
        (["inspect", "net.npu", "--html", LONG], 1),
        (["run", f"{LONG}.npu"], 2),
        (["run", "absent.npu"], 2),
        (["run", "net.npu", "--input", LONG], 2),
        (["run", "net.npu", "--output", LONG], 1),
        (["run", "net.npu", "--seed", "-1"], 2),
    ],
    ids=lambda value: (
        " ".join(value).replace(LONG, "LONG") if isinstance(value, list) else None
    ),
)
def test_long_paths_and_negative_seeds_are_user_errors(
    site, tmp_path, command, code, capsys, monkeypatch
):
    site.plugin(
        "evil",
        HOSTILE.replace(
            "def page(path): raise ValueError(EVIL)", "def page(path): return ''"
        ),
    )
    monkeypatch.setattr("delegraph.discovery.registry._default", Registry())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.npu").touch()
    assert main(command) == code
    told = capsys.readouterr().err.replace(PROGRESS_BAR, "")
    assert "error [internal]" not in told
    assert told.count("error [") == 1


def test_a_format_that_exits_has_failed(site, tmp_path, capsys, monkeypatch):
    site.plugin(
        "evil",
        HOSTILE.replace("return Inspection()", "raise SystemExit(0)"),
        version="1.5",
    )
    monkeypatch.setattr("delegraph.discovery.registry._default", Registry())
    (tmp_path / "net.npu").touch()
    assert main(["inspect", str(tmp_path / "net.npu"), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["code"] == "plugin-failed"
    assert (
        found["raised_by"] == f"inspect of Format (evil 1.5), at {tmp_path / 'net.npu'}"
    )


FAILING = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(4, 3)

    def forward(self, i):
        return torch.relu(self.table(i))

def net():
    return Net().eval(), (torch.tensor([1, 9]),)
"""


@pytest.mark.parametrize(
    "command",
    [("lower", "--verify"), ("profile",), ("accuracy",), ("compare",)],
    ids="".join,
)
def test_errors_of_the_model_are_blamed_on_the_model(command, tmp_path, capsys):
    (tmp_path / "net.py").write_text(FAILING)
    name, *flags = command
    assert main([name, str(tmp_path / "net.py"), "--backend", "demo", *flags]) == (
        name != "compare"
    )
    shown = "".join(capsys.readouterr())
    assert (
        "the model's method 'forward' raises IndexError on these inputs: index out of"
        " range" in shown
    )
    assert "authors" not in shown
    assert "defect" not in shown

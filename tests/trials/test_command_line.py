"""The command line with models that change folders or streams, and with wrong settings."""

import os
import subprocess
import sys
import warnings

import delegraph
import pytest
import torch
from delegraph.cli import main
from delegraph.errors import DelegraphWarning, InputError
from delegraph_devkit import scaffold
from delegraph_workers import config
from torch.nested import nested_tensor

ELSEWHERE = """
import os, torch
{at_import}
class Net(torch.nn.Module):
    def forward(self, x):
        {in_forward}
        return x + 1
def model():
    {in_function}
    return Net(), (torch.ones(2),)
"""
PLACES = ("at_import", "in_function", "in_forward")


def write_model(folder, place, line):
    """Write a model file that runs ``line`` at ``place``: import, model function or
    forward.
    """
    lines = dict.fromkeys(PLACES, "pass") | {place: line}
    path = folder / "model.py"
    path.write_text(ELSEWHERE.format(**lines))
    return path


@pytest.fixture
def working_directory(tmp_path, monkeypatch):
    """Return the working directory of the command. Models change to the folder next to
    it.
    """
    folder = tmp_path / "there"
    folder.mkdir()
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(folder)
    return folder


ON_TOSA = ["model.py", "--backend", "tosa", "--report", "r.json"]
COMMANDS = {
    "lower": ["lower", *ON_TOSA, "--verify", "-o", "net.tosa"],
    "accuracy": ["accuracy", *ON_TOSA],
    "compare": ["compare", *ON_TOSA],
    "profile": ["profile", *ON_TOSA],
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", COMMANDS)
def test_output_paths_are_relative_to_the_starting_folder(
    name, place, working_directory, capsys
):
    write_model(
        working_directory,
        place,
        f"os.chdir({str(working_directory.parent / 'other')!r})",
    )
    words = COMMANDS[name]
    assert main(words) == 0, capsys.readouterr().err

    written = {"r.json", "net.tosa"} & set(words)
    assert written <= set(os.listdir(working_directory))
    assert os.listdir(working_directory.parent / "other") == []
    assert os.getcwd() == str(working_directory)


def test_input_paths_are_relative_to_the_starting_folder(working_directory, capsys):
    import numpy as np

    write_model(
        working_directory,
        "at_import",
        f"os.chdir({str(working_directory.parent / 'other')!r})",
    )
    np.savez("in.npz", x=np.zeros(2, np.float32))

    assert main(["lower", "model.py", "--backend", "tosa", "--input", "in.npz"]) == 0, (
        capsys.readouterr().err
    )


def test_quantized_output_paths_are_relative_to_the_starting_folder(
    working_directory, capsys
):
    import numpy as np

    pytest.importorskip("torchao")
    write_model(
        working_directory,
        "in_function",
        f"os.chdir({str(working_directory.parent / 'other')!r})",
    )
    np.savez("data.npz", x=np.zeros((2, 2), np.float32))
    words = [
        "quantize",
        "model.py",
        "--backend",
        "tosa",
        "--calibration",
        "data.npz",
        "-o",
        "q.pt2",
    ]

    assert main(words) == 0, capsys.readouterr().err
    assert "q.pt2" in os.listdir(working_directory)


CLOSING = ["sys.stdout.close()", "sys.stderr.close()", "sys.stdout.detach()"]
SURVIVING = [
    "sys.stdout = None",
    "sys.stderr = open(os.devnull, 'w')",
    "sys.__stdout__.close()",
    "sys.__stderr__.close()",
    "os.close(2)",
    "os.close(1)",
]


def run_delegraph(*words, folder):
    return subprocess.run(
        [sys.executable, "-m", "delegraph", *words],
        cwd=folder,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("line", CLOSING)
@pytest.mark.parametrize("place", PLACES)
def test_models_that_close_a_stream_are_refused(line, place, working_directory, capsys):
    write_model(working_directory, place, f"import sys; {line}")
    assert main(["lower", "model.py", "--host-only", "--verify"]) == 1
    stderr = capsys.readouterr().err
    assert "the model closes sys." in stderr
    assert line in stderr


def test_a_model_that_closes_stdout_gets_a_json_error(working_directory):
    write_model(working_directory, "at_import", "import sys; sys.stdout.close()")
    completed = run_delegraph(
        "lower", "model.py", "--host-only", "--json", folder=working_directory
    )
    assert completed.returncode == 1
    assert "the model closes sys.stdout" in completed.stderr
    assert '"code": "input-invalid"' in completed.stdout


@pytest.mark.parametrize(
    "line", [SURVIVING[0], "sys.__stderr__.close()", "os.close(2)"]
)
def test_errors_are_shown_after_a_model_changes_the_streams(line, working_directory):
    write_model(
        working_directory,
        "at_import",
        f"import sys; {line}; raise ValueError('this is why')",
    )
    completed = run_delegraph(
        "lower", "model.py", "--host-only", folder=working_directory
    )

    assert completed.returncode == 1
    assert "this is why" in completed.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "line", [line for line in SURVIVING if line != "sys.__stderr__.close()"]
)
def test_results_are_shown_after_a_model_changes_the_streams(line, working_directory):
    write_model(working_directory, "at_import", f"import sys; {line}")
    completed = run_delegraph(
        "lower", "model.py", "--host-only", folder=working_directory
    )
    assert completed.returncode == 0, completed.stderr
    assert "0 of 1 operator delegated" in completed.stdout, completed.stderr


# --- settings

GOOD = f'[backends.good]\npython = "{sys.executable}"\n'
TABLES = [
    ("[backends.'a b']\npython = '/usr/bin/python3'\n", "'a b'"),
    ("[other]\nx = 1\n", "'other'"),
    ("top = 1\n", "'top'"),
]


@pytest.mark.parametrize(("text", "named"), TABLES)
def test_unknown_tables_are_warned_about_and_skipped(text, named, tmp_path):
    path = tmp_path / "delegraph.toml"
    with pytest.warns(DelegraphWarning) as found:
        settings = config.read_settings(f"{text}\n{GOOD}", path)
    assert [table.name for table in settings] == ["good"]
    assert str(path) in str(found[0].message)
    assert named in str(found[0].message)


@pytest.mark.parametrize(
    "table",
    ["python = 3", 'python = "relative"', 'python = "/usr/bin/python3"\nmore = 1'],
)
def test_an_error_of_a_table_names_the_file(table, tmp_path):
    path = tmp_path / "delegraph.toml"
    good, wrong = config.read_settings(f"{GOOD}\n[backends.wrong]\n{table}\n", path)
    assert good.fault == ""
    assert str(path) in wrong.fault
    with pytest.raises(config.BadSettings, match=str(path)):
        config.description_of(wrong)


@pytest.fixture
def settings_at(monkeypatch):
    def name(path):
        monkeypatch.setenv(config.CONFIG, str(path))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return config.settings()

    return name


def test_settings_are_read_from_regular_files_only(tmp_path, settings_at):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "pipe", tmp_path / "folder", "/dev/zero", "/dev/null"):
        with pytest.raises(config.BadSettings, match="is no regular file"):
            settings_at(path)


def test_settings_have_at_most_a_megabyte(tmp_path, settings_at):
    path = tmp_path / "delegraph.toml"
    path.write_text("#" * 999_999 + "\n")
    assert settings_at(path) == []
    path.write_text("#" * 1_000_000 + "\n")
    with pytest.raises(config.BadSettings, match="larger than 1 MB"):
        settings_at(path)


def test_settings_files_of_other_users_are_refused(tmp_path, settings_at, monkeypatch):
    path = tmp_path / "delegraph.toml"
    path.write_text(GOOD)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    if os.getuid() == 0:  # files of root are accepted
        os.chown(path, 54321, -1)
    with pytest.raises(config.BadSettings, match="other users own it"):
        settings_at(path)


def test_settings_that_are_not_utf8_name_the_file(tmp_path, settings_at):
    path = tmp_path / "delegraph.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(
        config.BadSettings, match=f"{path} cannot be read: it is not UTF-8 at byte 0"
    ):
        settings_at(path)


# --- arguments of a call


class Scaled(torch.nn.Module):
    def forward(self, x, a):
        return x * 2 if a != a else x / (a or 1.0)


X = torch.ones(3)
FIXED = [
    (float("nan"), float("nan"), True),
    (float("nan"), 1.0, False),
    (1.0, float("nan"), False),
    (0.0, 0.0, True),
    (0.0, -0.0, False),
    (2.0, 2, True),
    (2, 3, False),
    (float("inf"), float("inf"), True),
    (float("inf"), -float("inf"), False),
]


@pytest.mark.parametrize(("exported", "given", "fits"), FIXED)
@pytest.mark.parametrize("form", ["memory", "file", "executorch"])
def test_fixed_inputs_must_equal_the_exported_values(
    exported, given, fits, form, tmp_path
):
    program = delegraph.lower(Scaled(), (X, exported), backends=[])
    expected = Scaled()(X, exported)
    path = tmp_path / "net.pte"
    if form == "file":
        program.save(path)
        program = delegraph.load(path)
    if form == "executorch":
        pytest.importorskip("executorch")
        program.save(path)
        program = delegraph.load(path, runtime="executorch")

    if fits:
        assert torch.equal(program(X, given), expected)
    else:
        with pytest.raises(InputError, match="was exported as"):
            program(X, given)


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.parametrize("form", ["memory", ".pte", ".tosa", "executorch"])
@pytest.mark.filterwarnings("ignore")
def test_nested_tensors_are_refused_as_inputs(layout, form, tmp_path):
    program = delegraph.lower(
        torch.nn.ReLU(), (X,), backends=[] if form != ".tosa" else ["tosa"]
    )
    if form != "memory":
        path = tmp_path / f"net{'.pte' if form == 'executorch' else form}"
        if form == "executorch":
            pytest.importorskip("executorch")
        program.save(path)
        program = delegraph.load(
            path, runtime="executorch" if form == "executorch" else None
        )

    with pytest.raises(InputError, match="nested"):
        program(nested_tensor([torch.ones(2), torch.ones(3)], layout=layout))


# --- names of a new backend


@pytest.mark.parametrize(
    "name",
    [
        "CON",
        "nul",
        "Com1",
        "lpt9",
        "None",
        "true",
        "class",
        "conftest",
        "pytest",
        "json",
    ],
)
def test_no_backend_has_the_name_of_a_keyword_or_module(
    name, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert scaffold.why_not(name)
    assert main(["new-backend", name]) == 2
    assert f"no backend can be called {name!r}" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["my-npu", "console", "nulls", "com10", "nonesuch"])
def test_names_similar_to_reserved_ones_are_allowed(name):
    assert scaffold.why_not(name) is None


@pytest.mark.parametrize("name", ["con", "None", "src"])
def test_new_backend_cannot_have_a_reserved_name(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["new-backend", "my-npu", "--backend", name]) == 2
    assert f"no backend can be called {name!r}" in capsys.readouterr().err

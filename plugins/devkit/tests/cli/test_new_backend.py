"""``delegraph new-backend``: its output and its refusals."""

import json
import subprocess
import sys

import pytest
from delegraph.cli import main

from ..support.kit import contents_of_files


def run_command(capsys, *arguments):
    code = main(["new-backend", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_command_lists_files_and_next_steps(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, out, err = run_command(capsys, "My_NPU")
    assert code == 0
    assert err == ""
    assert "wrote my-npu, a package with the backend my-npu (MyNpuBackend)" in out
    next_commands = [line.strip() for line in out.partition("next:\n")[2].splitlines()]
    assert next_commands == [
        "pip install -e ./my-npu",
        "delegraph lower my-npu/example.py --backend my-npu --verify",
        "delegraph check my-npu",
    ]


def test_device_packages_have_a_cpp_half(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, out, err = run_command(capsys, "my-npu", "--device", "--json")
    found = json.loads(out)
    assert code == 0
    assert err == ""
    assert set(found["files"]) == set(contents_of_files(tmp_path / "my-npu"))
    assert "src/my_npu/device/my_npu.cpp" in found["files"]
    assert found["next"] == [
        "pip install -e './my-npu[device]'",
        "delegraph lower my-npu/example.py --backend my-npu --verify",
        "delegraph check my-npu",
        "delegraph lower my-npu/example.py --backend my-npu -o model.pte",
        "delegraph run model.pte --runtime executorch",
    ]


def test_tosa_packages_have_no_blob_format(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, out, err = run_command(capsys, "my-npu", "--tosa", "--json")
    found = json.loads(out)
    assert code == 0
    assert err == ""
    assert set(found["files"]) == set(contents_of_files(tmp_path / "my-npu"))
    assert "src/my_npu/blob.py" not in found["files"]


def test_tosa_device_packages_have_both_halves(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, out, err = run_command(capsys, "my-npu", "--tosa", "--device", "--json")
    found = json.loads(out)
    assert code == 0
    assert err == ""
    assert set(found["files"]) == set(contents_of_files(tmp_path / "my-npu"))
    assert {
        "src/my_npu/blob.py",
        "src/my_npu/device/my_npu.cpp",
        "tests/test_device.py",
    } <= {*found["files"]}
    assert found["next"][0] == "pip install -e './my-npu[device]'"
    assert found["next"][-1] == "delegraph run model.pte --runtime executorch"


def test_json_contains_names_files_and_commands(tmp_path, capsys):
    folder = tmp_path / "a folder"
    code, out, _ = run_command(capsys, "my-npu", folder, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["schema"] == "delegraph.new-backend/1"
    assert found["name"] == "my-npu"
    assert found["distribution"] == "my-npu"
    assert found["package"] == "my_npu"
    assert found["backend_id"] == "MyNpuBackend"
    assert found["folder"] == str(folder)
    assert set(found["files"]) == set(contents_of_files(folder))
    assert found["next"][0] == f"pip install -e '{folder}'"


def test_a_backend_may_have_the_name_of_an_installed_module(
    tmp_path, monkeypatch, capsys
):
    """Only the package needs a name that is free."""
    monkeypatch.chdir(tmp_path)
    code, out, err = run_command(capsys, "torch")
    assert code == 2
    assert "such as: delegraph new-backend delegraph-torch --backend torch" in err
    code, out, err = run_command(
        capsys, "delegraph-torch", "--backend", "torch", "--json"
    )
    assert code == 0
    assert err == ""
    found = json.loads(out)
    assert found["name"] == "torch"
    assert found["distribution"] == "delegraph-torch"
    assert found["package"] == "delegraph_torch"
    assert found["backend_id"] == "TorchBackend"
    assert found["folder"] == "delegraph-torch"
    written = contents_of_files(tmp_path / "delegraph-torch")
    assert 'name = "delegraph-torch"' in written["pyproject.toml"]
    assert 'name="torch"' in written["src/delegraph_torch/plugin.py"]
    assert "delegraph check torch" in found["next"]


@pytest.mark.parametrize(
    ("backend", "message"),
    [("2fast", "no backend can be called '2fast'"), ("host", "reserved")],
)
def test_backend_names_are_checked(backend, message, capsys):
    code, _, err = run_command(capsys, "delegraph-npu", "--backend", backend)
    assert code == 2
    assert message in err


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        (
            "2fast",
            2,
            (
                "error [usage-invalid]: no backend can be called '2fast': a name"
                " consists of letters"
            ),
        ),
        (
            "torch",
            2,
            "error [usage-invalid]: the name 'torch' is taken: the distribution torch",
        ),
        ("npu", 1, "error [write-failed]: cannot write npu: the folder is not empty"),
    ],
)
def test_refusals_leave_the_folder_unchanged(
    name, code, message, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "npu").mkdir()
    (tmp_path / "npu" / "mine").touch()
    actual, out, err = run_command(capsys, name)
    assert actual == code
    assert out == ""
    assert message in err
    assert [p.name for p in tmp_path.rglob("*")] == ["npu", "mine"]


def test_the_command_imports_no_torch(tmp_path):
    code = (
        "import sys; from delegraph.cli import main; main(['new-backend', 'my-npu']);"
        " print('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code]
    completed = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert completed.stdout.splitlines()[-1] == "False"

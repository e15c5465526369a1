"""``load`` and ``run`` name delegates of native code, and refuse them on request."""

import json
import subprocess
import sys

import delegraph
import numpy as np
import pytest
import torch
from delegraph.errors import InputError
from delegraph.plugin import BackendSpec, RuntimeSpec

MODEL = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval()
X = torch.ones(2, 4)
NATIVE = {
    "iree": ("IREEBackend", "machine code"),
    "openvino": ("OpenVINOBackend", "a program for OpenVINO's compiler"),
    "xnnpack": ("XnnpackBackend", "a program for XNNPACK, which does not check it"),
}
FILES = [("iree", "m.vmfb"), *((backend, "m.pte") for backend in NATIVE)]
HARMLESS = [
    ("tosa", "m.tosa"),
    ("tosa", "m.pte"),
    ("compiler-demo", "m.pte"),
    (None, "m.pte"),
]


def save_for(backend, path):
    backends = [] if backend is None else [backend]
    delegraph.lower(MODEL, (X,), backends=backends).save(path)
    return path


def run_python(folder, *arguments):
    np.save(folder / "x.npy", X.numpy())
    command = [sys.executable, "-m", "delegraph", "run", *arguments, "--input", "x.npy"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


@pytest.mark.parametrize("backend, name", FILES)
def test_load_names_native_code(backend, name, tmp_path):
    loaded = delegraph.load(save_for(backend, tmp_path / name))
    assert loaded.native_blobs == dict([NATIVE[backend]])
    assert loaded(X)[0] is not None


@pytest.mark.parametrize("backend, name", FILES)
def test_load_refuses_native_code_on_request(backend, name, tmp_path):
    path = save_for(backend, tmp_path / name)
    with pytest.raises(
        InputError,
        match=f"native code, which is not allowed: a delegate of {NATIVE[backend][0]}",
    ):
        delegraph.load(path, allow_native=False)


@pytest.mark.parametrize("backend, name", HARMLESS)
def test_load_takes_files_without_native_code(backend, name, tmp_path):
    loaded = delegraph.load(save_for(backend, tmp_path / name), allow_native=False)
    assert loaded.native_blobs == {}
    torch.testing.assert_close(
        torch.as_tensor(loaded(X)[0]).reshape(-1)[:4], MODEL(X)[0]
    )


@pytest.mark.parametrize(
    "backend, name", [("xnnpack", "m.pte"), ("compiler-demo", "m.pte")]
)
def test_delegates_of_a_whole_file_runtime_are_its_native_code(backend, name, tmp_path):
    path = save_for(backend, tmp_path / name)
    with pytest.raises(InputError, match="native code, which is not allowed"):
        delegraph.load(path, runtime="executorch", allow_native=False)


def test_a_file_without_delegates_runs_in_each_runtime(tmp_path):
    loaded = delegraph.load(
        save_for(None, tmp_path / "m.pte"), runtime="executorch", allow_native=False
    )
    torch.testing.assert_close(loaded(X), MODEL(X))


def test_the_command_names_native_code(tmp_path):
    save_for("iree", tmp_path / "m.vmfb")
    completed = run_python(tmp_path, "m.vmfb")
    assert completed.returncode == 0
    assert "native code: a delegate of IREEBackend is machine code" in completed.stdout
    told = json.loads(run_python(tmp_path, "m.vmfb", "--json").stdout)
    assert told["native"] == {"IREEBackend": "machine code"}


def test_the_command_refuses_native_code_on_request(tmp_path):
    save_for("iree", tmp_path / "m.vmfb")
    completed = run_python(tmp_path, "m.vmfb", "--no-native")
    assert completed.returncode == 1
    assert "m.vmfb has native code, which is not allowed" in completed.stderr
    save_for("tosa", tmp_path / "m.tosa")
    assert run_python(tmp_path, "m.tosa", "--no-native").returncode == 0


def test_a_plugin_declares_its_native_code():
    registry = delegraph.Registry(discover=False)
    registry.register(BackendSpec("acme", "acme:Backend", "AcmeBackend", api=1))
    assert registry.native_code("acme") == ""
    assert registry.native_code("unknown") == ""
    assert (
        RuntimeSpec("acme", "acme:Runtime", native="machine code").native
        == "machine code"
    )

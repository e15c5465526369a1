"""Weights of a file replace those of a module, or an error names the difference."""

import pytest
import torch
from delegraph_programs import load_weights
from delegraph_programs.errors import InputError
from torch import nn


class Tied(nn.Module):
    """A weight with two names, which safetensors stores once."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.first(x))


def save(module, path):
    if path.suffix == ".safetensors":
        pytest.importorskip("safetensors.torch").save_model(module, path)
    else:
        torch.save(module.state_dict(), path)


@pytest.mark.parametrize("name", ["w.safetensors", "w.pt"])
def test_modules_get_the_weights_of_the_file(name, tmp_path):
    wanted = Tied()
    save(wanted, tmp_path / name)
    modules = [Tied(), Tied()]
    load_weights(modules, tmp_path / name)
    for module in modules:
        torch.testing.assert_close(module.state_dict(), wanted.state_dict())


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
@pytest.mark.parametrize(
    "module, reasons",
    [
        (nn.Sequential(nn.Linear(3, 3)), ["Missing key", "0.bias", "Unexpected key"]),
        (nn.Linear(3, 4), ["size mismatch for bias"]),
    ],
)
def test_weights_of_another_model_are_named(module, reasons, suffix, tmp_path):
    file = tmp_path / f"w{suffix}"
    save(nn.Linear(3, 3), file)
    with pytest.raises(InputError, match="weights of this model: Runtime") as found:
        load_weights([module], file)
    assert all(reason in found.value.message for reason in reasons)


@pytest.mark.parametrize("name", ["w.safetensors", "w.pt"])
def test_damaged_files_are_refused(name, tmp_path):
    (tmp_path / name).write_bytes(b"PK\x03\x04 but no more")
    with pytest.raises(InputError, match=f"{name}' does not contain weights"):
        load_weights([nn.Linear(3, 3)], tmp_path / name)


class Malicious:
    def __reduce__(self):
        return print, ("executed",)


def test_files_run_no_code(tmp_path, capsys):
    torch.save({"weight": Malicious()}, tmp_path / "w.pt")
    with pytest.raises(InputError, match="does not contain weights"):
        load_weights([nn.Linear(3, 3)], tmp_path / "w.pt")
    assert "executed" not in capsys.readouterr().out


def test_programs_keep_their_own_weights(tmp_path):
    linear = nn.Linear(3, 3).eval()
    save(linear, tmp_path / "w.pt")
    program = torch.export.export(linear, (torch.ones(1, 3),))
    with pytest.raises(InputError, match="ExportedProgram has its own weights"):
        load_weights([program], tmp_path / "w.pt")


def test_missing_files_and_libraries_are_named(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="does not exist"):
        load_weights([nn.Linear(3, 3)], tmp_path / "none.pt")
    (tmp_path / "w.safetensors").write_bytes(b"")
    monkeypatch.setitem(__import__("sys").modules, "safetensors.torch", None)
    with pytest.raises(InputError, match="cannot be read") as found:
        load_weights([nn.Linear(3, 3)], tmp_path / "w.safetensors")
    assert found.value.hint == "pip install safetensors"

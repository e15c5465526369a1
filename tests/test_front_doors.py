"""A trained classifier gives the same answers from each kind of model file."""

import delegraph
import pytest
import torch
from delegraph.cli import main
from delegraph.command import read_model
from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
MODEL = """
from pathlib import Path

import torch
from torch import nn


class Spiral(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 3))

    def forward(self, x):
        return self.layers(x)


def untrained():
    return Spiral().eval(), (torch.zeros(1, 2),)


def script():
    return torch.jit.load(Path(__file__).parent / "net.ts"), (torch.zeros(1, 2),)


def program():
    return torch.export.export(*untrained())


def methods():
    return {"methods": {"one": untrained(), "two": untrained()}}
"""


def points():
    """Return points on three arms of a spiral, and the number of the arm."""
    generator = torch.Generator().manual_seed(0)
    arm = torch.arange(3).repeat_interleave(100)
    radius = torch.linspace(0.1, 1, 100).repeat(3)
    angle = 2.1 * arm + 3 * radius + 0.1 * torch.randn(300, generator=generator)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1), arm


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with the model file, and the trained model in each format."""
    folder = tmp_path_factory.mktemp("doors")
    (folder / "net.py").write_text(MODEL)
    torch.manual_seed(0)
    model = read_model(f"{folder / 'net.py'}:untrained").programs["forward"]
    x, arm = points()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(200):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), arm).backward()
        optimizer.step()
    assert (model(x).argmax(1) == arm).float().mean() > 0.9
    torch.save(model.state_dict(), folder / "net.pt")
    example = (torch.zeros(1, 2),)
    torch.export.save(torch.export.export(model, example), folder / "net.pt2")
    torch.jit.script(model).save(folder / "net.ts")
    if safetensors := pytest.importorskip("safetensors.torch"):
        safetensors.save_model(model, folder / "net.safetensors")
    return folder


def accuracy(text):
    """Return the share of right answers of the lowered model at ``text``."""
    lowered = delegraph.lower(**read_model(text).arguments(), backends=["tosa"])
    assert lowered.report.host_operators == 0
    given, wanted = points()
    answers = [int(lowered(row[None]).argmax()) for row in given[::5]]
    return (torch.tensor(answers) == wanted[::5]).float().mean()


@pytest.mark.parametrize(
    "text",
    [
        "net.pt2",
        "net.py:script",
        "net.py:untrained@net.safetensors",
        "net.py:untrained@net.pt",
    ],
)
def test_trained_models_keep_their_answers(text, folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert accuracy(text) > 0.9
    assert accuracy("net.py:untrained") < 0.7


def test_torchscript_is_verified_after_calls_with_gradients(folder):
    script = torch.jit.load(folder / "net.ts")
    given, _ = points()
    lowered = delegraph.lower(script, (given,), backends=["tosa"])
    for _ in range(2):  # then TorchScript computes gradients also under no_grad
        script(given)
    with torch.no_grad():
        assert script(given).requires_grad

    assert lowered.verify(given).agrees()


def test_the_command_takes_weights_beside_a_model_file(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    words = ["lower", "net.py:methods@net.safetensors", "--backend", "tosa"]
    assert main([*words, "--verify"]) == 0
    assert capsys.readouterr().out.count("agrees") == 2


@pytest.mark.parametrize(
    "text, reason",
    [
        ("net.py:untrained@none.pt", "'none.pt' does not exist"),
        ("net.py:untrained@net.pt2", "does not contain weights of this model"),
        ("net.py:program@net.pt", "ExportedProgram has its own weights"),
        ("net.ts", "MODEL is a .pt2 file or path.py[:function][@weights], not"),
        ("none.py@net.pt", "none.py"),
    ],
)
def test_other_files_are_refused(text, reason, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    assert main(["lower", text, "--backend", "tosa"]) in (1, 2)
    assert reason in capsys.readouterr().err

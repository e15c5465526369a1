"""``delegraph accuracy --data``: samples from files, and a metric of the user."""

import textwrap

import jsonschema
import numpy as np
import pytest

from core.tests.support.command_line import (
    SCHEMA,
    run_command,
    run_failing,
    run_for_json,
)
from plugins.analysis.tests.support.bars import pictures

MODEL = """
import torch

class Bars(torch.nn.Module):
    def forward(self, x):
        lying = x.mean(-1).amax((1, 2))
        upright = x.mean(-2).amax((1, 2))
        return torch.stack([upright, lying], -1)

def bars():
    return Bars().eval(), (torch.rand(1, 1, 8, 8),)

def is_right(outputs, label):
    return float(outputs.argmax() == label)

def dataset():
    for label in (0, 1):
        x = torch.zeros(1, 1, 8, 8)
        if label:
            x[..., 3, :] = 1
        else:
            x[..., 3] = 1
        yield x, label

def broken():
    yield from dataset()
    raise ValueError("no more pictures")

samples = [*dataset()]
"""


@pytest.fixture
def bars(tmp_path, echo, monkeypatch):
    (tmp_path / "bars.py").write_text(textwrap.dedent(MODEL))
    monkeypatch.chdir(tmp_path)
    return ["accuracy", "bars.py", "--backend", "echo"]


@pytest.mark.parametrize("name", ["dataset", "samples"])
def test_samples_of_a_python_file(name, bars, capsys, tmp_path):
    words = ["--data", f"bars.py:{name}", "--metric", "bars.py:is_right"]
    code, found = run_for_json(capsys, *bars, *words, "--report", "page.html")
    assert code == 0 and found["metric"] == "is_right"
    assert [column["name"] for column in found["columns"]] == ["eager", "echo"]
    assert [column["mean"] for column in found["columns"]] == [1, 1]
    jsonschema.Draft202012Validator(SCHEMA).validate(found)
    assert "No sample loses." in (tmp_path / "page.html").read_text()


def test_rows_of_an_npz_file(bars, capsys):
    data = pictures(6, 3)
    labels = np.array([int(label) for _, label in data])
    inputs = np.stack([picture[0].numpy() for picture, _ in data])
    np.savez("data.npz", x=inputs, label=labels)
    _, found = run_for_json(capsys, *bars, "--data", "data.npz", "--metric", "top1")
    assert [column["mean"] for column in found["columns"]] == [1, 1]
    np.savez("wrong.npz", y=inputs)
    assert "wrong.npz has the arrays y" in run_failing(
        capsys, *bars, "--data", "wrong.npz", error="input-invalid"
    )


def test_pictures_in_folders_of_classes(bars, capsys, tmp_path):
    Image = pytest.importorskip("PIL.Image")
    for number, (picture, label) in enumerate(pictures(6, 3)):
        folder = tmp_path / "photos" / ("lying" if int(label) else "a-upright")
        folder.mkdir(parents=True, exist_ok=True)
        pixels = (picture[0, 0] * 255).clamp(0, 255).byte().numpy()
        Image.fromarray(pixels).resize((16, 16), 0).save(folder / f"{number}.png")
    _, found = run_for_json(capsys, *bars, "--data", "photos", "--metric", "top1")
    assert [column["mean"] for column in found["columns"]] == [1, 1]
    (tmp_path / "empty").mkdir()
    assert "it has neither" in run_failing(
        capsys, *bars, "--data", "empty", error="input-invalid"
    )


def test_a_folder_of_npz_files_has_a_sample_each(bars, capsys, tmp_path):
    (tmp_path / "waves").mkdir()
    for number, (picture, label) in enumerate(pictures(3, 3)):
        np.savez(f"waves/{number}.npz", x=picture.numpy(), label=label.numpy())
    _, found = run_for_json(capsys, *bars, "--data", "waves", "--metric", "top1")
    assert len(found["samples"]) == 3 and found["columns"][1]["mean"] == 1


def test_a_loss_above_the_limit_fails(bars, capsys):
    words = ["--data", "bars.py:dataset", "--metric", "bars.py:is_right"]
    code, out, _ = run_command(capsys, *bars, *words, "--max-loss", "-0.5")
    assert code == 1 and "echo loses 0, and --max-loss accepts -0.5" in out
    assert run_command(capsys, *bars, *words, "--max-loss", "0")[0] == 0


def test_scores_are_kept_for_the_next_run(bars, capsys, tmp_path):
    # each blob of echo is another one
    bars[-1] = "tosa"
    words = ["--data", "bars.py:dataset", "--resume", "scores.jsonl"]
    first = run_command(capsys, *bars, *words)
    stored = (tmp_path / "scores.jsonl").read_text()
    assert stored.count("key") == 2
    assert run_command(capsys, *bars, *words) == first
    assert (tmp_path / "scores.jsonl").read_text() == stored


@pytest.mark.parametrize(
    "words, message",
    [
        (["--metric", "top1"], "--metric needs --data"),
        (["--data", "bars.txt"], "--data is a folder, an .npz file or path.py:NAME"),
        (["--data", "none.npz"], "there is no file none.npz"),
        (["--data", "bars.py:samples", "--ties"], "--input and --ties compare"),
        (["--data", "bars.py:nothing"], "bars.py has no 'nothing'"),
        (
            ["--data", "bars.py:samples", "--metric", "bars.py:samples"],
            "is a list, not a function",
        ),
        (["--data", "bars.py:samples", "--report", "x.pdf"], "not 'x.pdf'"),
    ],
)
def test_wrong_usage(words, message, bars, capsys):
    said = run_failing(capsys, *bars, *words, code=2, error="usage-invalid")
    assert message in said


def test_a_data_set_that_raises_is_named(bars, capsys):
    said = run_failing(capsys, *bars, "--data", "bars.py:broken", error="input-invalid")
    assert "bars.py:broken failed: ValueError: no more pictures" in said

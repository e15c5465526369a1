"""``delegraph accuracy --data``: samples from files, and a metric of the user."""

import math
import textwrap

import jsonschema
import numpy as np
import pytest
from delegraph_analysis.commands.over_data import _outcome
from delegraph_analysis.over_data.files import _picture
from delegraph_analysis.over_data.scores import SampleScores, VerificationOverData

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

class Coloured(Bars):
    def forward(self, x):
        return super().forward(x.mean(1, keepdim=True))

def coloured_bars():
    return Coloured().eval(), (torch.rand(1, 3, 8, 8),)

def batch_of_bars():
    return Bars().eval(), (torch.rand(2, 1, 8, 8),)

class Nested(torch.nn.Module):
    def forward(self, pair, count, *, scale):
        return (pair[0] + pair[1] * count) * scale

def nested():
    x = torch.ones(3)
    kwargs = {"scale": x.clone()}
    return Nested().eval(), ((x, x.clone()), 2), kwargs

def is_right(outputs, label):
    return float(outputs.argmax() == label)

def brightest(outputs, label):
    return float(outputs.max())

def total(outputs, label):
    return float(outputs.sum())

class MapStyle:
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return list(dataset())[index % 2]

map_style = MapStyle()

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


@pytest.mark.parametrize("name", ["dataset", "samples", "map_style"])
def test_samples_of_a_python_file(name, bars, capsys, tmp_path):
    words = ["--data", f"bars.py:{name}", "--metric", "bars.py:is_right"]
    code, found = run_for_json(capsys, *bars, *words, "--report", "page.html")
    assert code == 0 and found["metric"] == "is_right"
    assert [column["name"] for column in found["columns"]] == ["eager", "echo"]
    assert [column["mean"] for column in found["columns"]] == [1, 1]
    jsonschema.Draft202012Validator(SCHEMA).validate(found)
    assert "No sample loses." in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    "names", [("x", "label"), ("X", "y"), ("arr_0", "labels")], ids="-".join
)
def test_rows_of_an_npz_file(names, bars, capsys):
    data = pictures(6, 3)
    labels = np.array([int(label) for _, label in data])
    inputs = np.stack([picture[0].numpy() for picture, _ in data])
    np.savez("data.npz", **dict(zip(names, (inputs, labels), strict=True)))
    _, found = run_for_json(capsys, *bars, "--data", "data.npz", "--metric", "top1")
    assert [column["mean"] for column in found["columns"]] == [1, 1]
    assert len(found["samples"]) == 6


@pytest.mark.parametrize(
    "arrays, message",
    [
        ({"y": [1.0]}, "data.npz has the arrays y; the inputs and the optional label"),
        ({"x": [1.0], "lable": [1]}, "data.npz has the arrays x, lable; the inputs"),
        ({"x": [1.0], "label": ["cat"]}, "data.npz does not contain numbers"),
        ({"x": [[1.0]], "label": [1, 2]}, "all arrays need one row for each sample"),
    ],
)
def test_arrays_that_do_not_fit_are_named(arrays, message, bars, capsys):
    np.savez("data.npz", **{name: np.array(array) for name, array in arrays.items()})
    said = run_failing(capsys, *bars, "--data", "data.npz", error="input-invalid")
    assert message in said


def test_a_damaged_npz_file_is_named(bars, capsys, tmp_path):
    np.savez_compressed("data.npz", x=np.arange(5000) % 97)
    content = bytearray((tmp_path / "data.npz").read_bytes())
    content[300:310] = bytes(10)
    (tmp_path / "data.npz").write_bytes(content)
    said = run_failing(capsys, *bars, "--data", "data.npz", error="input-invalid")
    assert "data.npz is not a readable .npz file" in said


def test_rows_of_nested_and_keyword_inputs(bars, capsys):
    bars[1] = "bars.py:nested"
    rows = {name: np.ones((2, 3), "float32") for name in ("pair_0", "pair_1")}
    np.savez("data.npz", **rows, scale=np.array([[1, 1, 1], [3, 3, 3]], "float32"))
    words = ["--data", "data.npz", "--metric", "bars.py:total"]
    _, found = run_for_json(capsys, *bars, *words)
    assert [sample["scores"] for sample in found["samples"]] == [[9, 9], [27, 27]]


@pytest.fixture
def save_picture(tmp_path):
    """Write a picture of a bar to a path in the folder ``photos``."""
    Image = pytest.importorskip("PIL.Image")

    def save(path, is_lying, mode="L"):
        pixels = np.full((16, 16), 40, np.uint8)
        row = pixels if is_lying else pixels.T
        row[6:8] = 200
        picture = Image.fromarray(pixels)
        if mode == "I;16":
            picture = Image.fromarray(pixels.astype(np.uint16) * 257)
        file = tmp_path / "photos" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        (picture if mode == "I;16" else picture.convert(mode)).save(file)

    return save


def test_pictures_in_folders_of_classes(bars, capsys, tmp_path, save_picture):
    for number in range(3):
        save_picture(f"a-upright/{number}.png", False)
        # of a class, however deep
        save_picture(f"lying/indoors/{number}/picture.JPG", True)
    save_picture("lying/._0.png", False)
    save_picture(".trash/0.png", False)
    save_picture("__MACOSX/lying/0.png", False)
    (tmp_path / "photos" / "readme.txt").write_text("bars")
    words = ["--data", "photos", "--metric", "top1"]
    _, found = run_for_json(capsys, *bars, *words)
    assert len(found["samples"]) == 6
    assert [column["mean"] for column in found["columns"]] == [1, 1]
    # a class without pictures has a number
    (tmp_path / "photos" / "b-empty").mkdir()
    _, found = run_for_json(capsys, *bars, *words)
    assert [column["mean"] for column in found["columns"]] == [0.5, 0.5]


def test_pictures_without_folders_have_no_label(bars, capsys, save_picture):
    save_picture("0.png", False)
    save_picture("1.png", True)
    _, found = run_for_json(capsys, *bars, "--data", "photos", "--metric", "top1")
    assert [column["mean"] for column in found["columns"]] == [1, 1]
    save_picture("lying/1.png", True)
    said = run_failing(capsys, *bars, "--data", "photos", error="input-invalid")
    assert "0.png has no class, because it is in no subfolder of photos" in said


@pytest.mark.parametrize(
    "mode, suffix",
    [
        ("I;16", "png"),
        ("I;16", "tif"),
        ("P", "png"),
        ("LA", "png"),
        ("RGBA", "png"),
        ("CMYK", "jpg"),
    ],
)
@pytest.mark.parametrize("function", ["bars", "coloured_bars"])
def test_pixels_have_numbers_from_0_to_1(
    mode, suffix, function, bars, capsys, save_picture
):
    bars[1] = f"bars.py:{function}"
    save_picture(f"0.{suffix}", True, mode)
    words = ["--data", "photos", "--metric", "bars.py:brightest"]
    _, found = run_for_json(capsys, *bars, *words)
    # the model returns the mean of the bar's row
    for score in found["samples"][0]["scores"]:
        assert score == pytest.approx(200 / 255, abs=0.1)


def test_resized_pixels_of_16_bits_stay_in_range(tmp_path):
    Image = pytest.importorskip("PIL.Image")
    black_and_white = np.indices((5, 5)).sum(0).astype(np.uint16) % 2 * 65535
    Image.fromarray(black_and_white).save(tmp_path / "0.png")
    picture = _picture(tmp_path / "0.png", (1, 8, 8))
    assert (picture.min(), picture.max()) == (0, 1)


def test_pictures_that_do_not_fit_are_named(bars, capsys, tmp_path, save_picture):
    (tmp_path / "photos").mkdir()
    said = run_failing(capsys, *bars, "--data", "photos", error="input-invalid")
    assert "it has neither" in said
    (tmp_path / "photos" / "0.png").write_bytes(b"no picture")
    said = run_failing(capsys, *bars, "--data", "photos", error="input-invalid")
    assert "sample 0: photos/0.png is not a readable picture" in said
    save_picture("0.tif", True, "F")
    (tmp_path / "photos" / "0.png").unlink()
    said = run_failing(capsys, *bars, "--data", "photos", error="input-invalid")
    assert "its pixels are floats" in said
    bars[1] = "bars.py:batch_of_bars"
    said = run_failing(capsys, *bars, "--data", "photos", error="input-invalid")
    assert "the model has [2, 1, 8, 8]" in said
    bars[1] = "bars.py:nested"
    said = run_failing(capsys, *bars, "--data", "photos", error="input-invalid")
    assert "the model has [3], [3], [], [3]" in said


def test_a_folder_of_npz_files_has_a_sample_each(bars, capsys, tmp_path):
    (tmp_path / "waves").mkdir()
    for number, (picture, label) in enumerate(pictures(3, 3)):
        np.savez(f"waves/{number}.npz", x=picture.numpy(), label=label.numpy())
    _, found = run_for_json(capsys, *bars, "--data", "waves", "--metric", "top1")
    assert len(found["samples"]) == 3
    assert found["columns"][1]["mean"] == 1


def test_a_loss_above_the_limit_fails(bars, capsys):
    words = ["--data", "bars.py:dataset", "--metric", "bars.py:is_right"]
    code, out, _ = run_command(capsys, *bars, *words, "--max-loss", "-0.5")
    assert code == 1 and "echo loses 0, and --max-loss accepts -0.5" in out
    assert run_command(capsys, *bars, *words, "--max-loss", "0")[0] == 0


def test_a_loss_of_nan_fails():
    found = VerificationOverData(("eager", "echo"), "is_right")
    for index, score in enumerate((math.nan, math.inf)):
        found.add(SampleScores(index, (1.0, score)), lambda: "")
    assert math.isnan(found.summary()[1].loss)
    assert _outcome(found, 0.5, "").code == 1


def test_outputs_are_kept_for_the_next_run(bars, capsys, tmp_path):
    # each blob of echo is another one
    bars[-1] = "tosa"
    words = ["--data", "bars.py:dataset", "--resume", "outputs.db"]
    first = run_command(capsys, *bars, *words)
    stored = (tmp_path / "outputs.db").read_bytes()
    assert run_command(capsys, *bars, *words) == first
    assert (tmp_path / "outputs.db").read_bytes() == stored


@pytest.mark.parametrize("flag", ["--resume", "--report"])
def test_files_that_are_read_are_not_written(flag, bars, capsys, tmp_path):
    np.savez("data.npz", x=np.zeros((1, 1, 8, 8), "float32"))
    (tmp_path / "data.html").hardlink_to(tmp_path / "data.npz")
    before = (tmp_path / "data.npz").read_bytes()
    words = ["--data", "data.npz", flag, "data.html"]
    said = run_failing(capsys, *bars, *words, code=2, error="usage-invalid")
    assert "data.html is read; write to another file" in said
    assert (tmp_path / "data.npz").read_bytes() == before
    (tmp_path / "metric.html").hardlink_to(tmp_path / "bars.py")
    words = ["--data", "data.npz", "--metric", "bars.py:total", flag, "metric.html"]
    run_failing(capsys, *bars, *words, code=2, error="usage-invalid")


def test_resume_refuses_another_file(bars, capsys, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    words = ["--data", "bars.py:dataset", "--resume", "notes.txt"]
    said = run_failing(capsys, *bars, *words, error="write-failed")
    assert "the outputs of samples cannot be kept in notes.txt" in said
    assert (tmp_path / "notes.txt").read_text() == "mine"


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
    assert "sample 2: bars.py:broken failed: ValueError: no more pictures" in said

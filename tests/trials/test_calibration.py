"""Calibration data without variation get a warning. Wrong files and flags get one
error.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import delegraph
import numpy as np
import pytest
import torch
from delegraph.cli import main
from torch import Tensor, nn

pytest.importorskip("torchao")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

NOISE = [
    torch.randn(2, 4, generator=torch.Generator().manual_seed(k)) for k in range(4)
]


class Sum(nn.Module):
    """A layer with a second input, which is added."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor, offset: Tensor) -> Tensor:
        return self.layer(x) + offset


class Embedded(nn.Module):
    """An embedding of integers, and a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 4)
        self.layer = nn.Linear(4, 4)

    def forward(self, ids: Tensor) -> Tensor:
        return self.layer(self.table(ids))


class InAList(nn.Module):
    """Two inputs in a list."""

    def forward(self, pair: list[Tensor]) -> Tensor:
        return pair[0] * pair[1]


def quantize_and_get_warnings(
    model: nn.Module, batches: Any, *, as_program: bool = False
) -> list[str]:
    """Quantize and return the texts of delegraph's warnings."""
    program: Any = model.eval()
    if as_program:
        first = batches[0]
        args = tuple(first.values()) if isinstance(first, dict) else first
        program = torch.export.export(program, args)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        delegraph.quantize(program, batches, backend="tosa")
    return [
        str(w.message)
        for w in caught
        if issubclass(w.category, delegraph.DelegraphWarning)
    ]


ZEROS = torch.zeros(2, 4)
ROWS: dict[str, tuple[nn.Module, Any, list[str]]] = {
    "good data": (Sum(), [(x, -x) for x in NOISE], []),
    "one good batch": (Sum(), [(NOISE[0], NOISE[1])], []),
    "all zeros": (
        Sum(),
        [(x, ZEROS) for x in NOISE],
        ["input offset is 0 in all 4 calibration batches"],
    ),
    "one batch of zeros": (
        Sum(),
        [(NOISE[0], ZEROS)],
        ["input offset is 0 in the calibration batch"],
    ),
    "both constant": (
        Sum(),
        [(ZEROS, ZEROS + 2.5)] * 3,
        ["input x is 0 in all 3", "input offset is 2.5 in all 3"],
    ),
    "zeros, then others": (
        Sum(),
        [(ZEROS, x) for x in NOISE[:1]] + [(x, x) for x in NOISE],
        [],
    ),
    "equal batches": (
        Sum(),
        [(NOISE[0], NOISE[1])] * 3,
        ["inputs x, offset are the same in all 3 calibration batches"],
    ),
    "one input repeats": (
        Sum(),
        [(x, NOISE[0]) for x in NOISE],
        ["input offset is the same in all 4"],
    ),
    "by name": (
        Sum(),
        [{"x": x, "offset": ZEROS} for x in NOISE],
        ["input offset is 0 in all 4"],
    ),
    "equal integers": (
        Embedded(),
        [(torch.arange(4),)] * 2,
        ["input ids is the same in all 2"],
    ),
    "one batch of zero integers": (Embedded(), [(torch.zeros(4).long(),)], []),
    "in a list": (
        InAList(),
        [([x, ZEROS],) for x in NOISE],
        ["input pair[1] is 0 in all 4"],
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_inputs_that_never_vary_are_named(name: str) -> None:
    model, batches, expected = ROWS[name]
    texts = quantize_and_get_warnings(model, batches)
    assert len(texts) == len(expected), texts
    for text, beginning in zip(texts, expected, strict=True):
        assert text.startswith(beginning)


def test_inputs_of_a_program_are_named() -> None:
    [text] = quantize_and_get_warnings(
        Sum(), [(x, ZEROS) for x in NOISE], as_program=True
    )
    assert text.startswith("input offset is 0")


def test_a_loader_may_reuse_the_memory_of_batches() -> None:
    def batches() -> Any:
        memory = torch.empty(2, 4)
        for x in NOISE:
            yield memory.copy_(x), memory * 2

    assert quantize_and_get_warnings(Sum(), batches()) == []


MODEL = """
import torch


def model():
    return torch.nn.Linear(4, 4).eval(), (torch.ones(2, 4),)
"""


def run_quantize(folder: Path, data: Any, *more: str) -> int:
    """Run ``delegraph quantize`` with ``data``: an array, the bytes of a file, or None
    for no file.
    """
    (folder / "model.py").write_text(MODEL)
    file = folder / "data.npz"
    if isinstance(data, bytes):
        file.write_bytes(data)
    elif data is not None:
        np.savez(file, **(data if isinstance(data, dict) else {"input": data}))
    output = folder / "model.pt2"
    arguments = [
        "--backend",
        "tosa",
        "--calibration",
        str(file),
        "-o",
        str(output),
        *more,
    ]
    return main(["quantize", f"{folder}/model.py:model", *arguments])


VARIED = torch.stack(NOISE).numpy()


def test_the_command_notes_constant_inputs(tmp_path: Path, capsys: Any) -> None:
    assert run_quantize(tmp_path, np.zeros((3, 2, 4), np.float32)) == 0
    captured = capsys.readouterr()
    assert (
        "input input is 0 in all 3 calibration batches" in captured.out + captured.err
    )


def test_the_command_has_no_note_for_varying_inputs(
    tmp_path: Path, capsys: Any
) -> None:
    assert run_quantize(tmp_path, VARIED) == 0
    captured = capsys.readouterr()
    assert "warning" not in captured.out + captured.err


MISTAKES: dict[str, tuple[Any, tuple[str, ...], str]] = {
    "no file": (None, (), "there is no file"),
    "another suffix": (
        VARIED,
        ("--calibration", "data.txt"),
        "--calibration must name an .npz file; got 'data.txt'",
    ),
    "no name": (VARIED, ("--calibration", ""), "--calibration must name an .npz file"),
    "no archive": (b"nonsense", (), "is not an .npz file with numbers"),
    "an empty file": (b"", (), "is not an .npz file with numbers"),
    "no arrays": ({}, (), "all arrays need the same number of batches"),
    "no batches": (VARIED[:0], (), "there are no calibration batches"),
    "float64": (
        VARIED.astype(np.float64),
        (),
        "input 0 is float64, and the model's example is float32",
    ),
    "integers": (
        VARIED.astype(np.int32),
        (),
        "input 0 is int32, and the model's example is float32",
    ),
    "no axis of batches": (VARIED[0], (), "a batch has inputs of the shapes"),
    "another size": (
        np.ones((3, 2, 5), np.float32),
        (),
        "a batch has inputs of the shapes [[2, 5]]",
    ),
    "two arrays": (
        {"input": VARIED, "labels": VARIED},
        (),
        "has the arrays input, labels",
    ),
    "texts": (np.array(["a", "b"]), (), "is not an .npz file with numbers"),
    "NaN": (VARIED * np.nan, (), "NaN or infinite"),
    "another backend": (
        VARIED,
        ("--backend", "nosuch"),
        "Backend nosuch was not found",
    ),
    "no backend": (VARIED, ("--backend", ""), "--backend"),
    "another output": (VARIED, ("-o", "model.tosa"), "-o must name a .pt2 file"),
    "a folder that is missing": (VARIED, ("-o", "nosuch/model.pt2"), "nosuch"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_wrong_calibration_flags_get_one_error(
    name: str, tmp_path: Path, capfd: Any, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    data, more, expected = MISTAKES[name]
    assert run_quantize(tmp_path, data, *more) != 0

    stderr = capfd.readouterr().err
    assert expected in stderr
    assert stderr.count("error [") == 1
    assert "Traceback" not in stderr
    assert not (tmp_path / "model.pt2").exists()

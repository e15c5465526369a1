"""Networks on images and sequences, written small, are one delegate each, also of what the reference tools say."""

from __future__ import annotations

import pytest
import torch

from ..support.whole_models import check_whole, check_with_reference_tools
from . import sequences, vision

torch.set_num_threads(1)
QUICK = {"YOLO head", "GRU with attention"}
"""They have most kinds of operators between them; the others run with the sweeps."""


def rows(names):
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", rows([*vision.MODELS, *sequences.MODELS]))
@pytest.mark.filterwarnings("ignore:The tensor attributes self")  # torch.export says so of every recurrent layer
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_one_delegate(name, monkeypatch):
    model, inputs = (vision if name in vision.MODELS else sequences).built(name)
    program = torch.export.export(model, inputs)
    lowered = check_whole(program, *inputs)
    check_with_reference_tools(monkeypatch, lowered, program, *inputs)

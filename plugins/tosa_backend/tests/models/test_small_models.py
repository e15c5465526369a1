"""Small networks on images and sequences become one delegate that the reference tools
accept.
"""

from __future__ import annotations

import pytest
import torch

from ..support.whole_models import TARGETS, check_whole, check_with_reference_tools
from . import sequences, vision

torch.set_num_threads(1)
QUICK = {("GRU with attention", TARGETS[1])}
"""The one with most kinds of operators; the others run with the sweeps."""
FP_LEAVES_A_PART = {"Conformer"}
"""Its lengths are integers that arrive at run time, which PRO-FP does not compute with.
"""


def rows():
    for name in [*vision.MODELS, *sequences.MODELS]:
        for target in TARGETS[: 1 if name in FP_LEAVES_A_PART else 2]:
            yield pytest.param(
                name, target, marks=[] if (name, target) in QUICK else pytest.mark.slow
            )


@pytest.mark.parametrize(("name", "target"), list(rows()))
# torch.export says so of every recurrent layer
@pytest.mark.filterwarnings("ignore:The tensor attributes self")
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_small_models_are_one_legal_delegate(name, target, monkeypatch):
    model, inputs = (vision if name in vision.MODELS else sequences).built(name)
    program = torch.export.export(model, inputs)
    lowered = check_whole(program, *inputs, target=target)
    check_with_reference_tools(monkeypatch, lowered, program, *inputs, target=target)

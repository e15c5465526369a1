"""What the files in ``tests/fixtures``, which ExecuTorch wrote
(tools/write_fixtures.py), were made from.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import Dim

from . import programs as p

FOLDER = Path(__file__).parents[1] / "fixtures"


def _net() -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    for k, tensor in enumerate(net.parameters()):
        tensor.data = torch.linspace(-1, 1, tensor.numel()).roll(k).view(tensor.shape)
    return net


ROWS = torch.linspace(-1, 2, 12).view(3, 4)
BATCH = ({0: Dim("batch", min=2, max=16)},)
FIXTURES: dict[str, tuple[nn.Module, list[tuple[Any, ...]], Any]] = {
    "net": (_net(), [(ROWS,)], None),
    "branch": (p.Function(p.branch), [(ROWS,), (-ROWS,)], None),
    "rows": (p.Function(p.rows), [(ROWS, ROWS[0].clone())] * 2, None),
    "resized": (p.Function(p.resized), [(ROWS,), (ROWS[:2],)], (BATCH,)),
    "xnnpack": (_net(), [(ROWS,)], None),
}

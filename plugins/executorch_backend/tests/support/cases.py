"""Modules and their calls, for whatever runs program files."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.export import Dim

from . import programs as p

BATCH = Dim("batch", min=2, max=16)


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


ROWS = randn(3, 4)
POSITIVE = torch.ones(3, 4)
NEGATIVE = -torch.ones(3, 4)
ODD = torch.tensor(
    [
        [0.0, -0.0, float("nan"), 2],
        [2, float("inf"), 2, 1],
        [float("nan"), 0, -float("inf"), 0],
    ]
)
INDEX = torch.tensor([0, 2])
STATIC: dict[str, tuple[nn.Module, list[tuple[Any, ...]]]] = {
    "mlp": (
        nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3), nn.Softmax(-1)),
        [(ROWS,)],
    ),
    "convolution": (
        nn.Sequential(
            nn.Conv2d(3, 4, 3),
            nn.BatchNorm2d(4),
            nn.Hardswish(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        ),
        [(randn(1, 3, 8, 8),)],
    ),
    "channels last": (
        nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last),
        [(randn(1, 3, 8, 8),)],
    ),
    "encoder": (
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
        [(randn(2, 3, 8),)],
    ),
    "lstm": (nn.LSTM(4, 5, 2, batch_first=True), [(randn(2, 3, 4),)]),
    "gru": (nn.GRU(4, 5, 1), [(randn(2, 3, 4),)]),
    "counter": (p.Counter(), [(randn(3),)] * 3),
    "copy in odd memory": (
        p.Function(p.copied, n=torch.zeros(1).long()),
        [(randn(3),)] * 2,
    ),
    "cropped": (p.Function(p.cropped), [(ROWS,)]),
    "shifted": (
        p.Function(p.shifted),
        [(torch.tensor([1, -2, 100]), torch.tensor([1, 0, 3]))],
    ),
    "maxima and places": (
        p.Function(lambda x: nn.functional.adaptive_max_pool2d(x, 2, True)),
        [(randn(1, 2, 4, 4),)],
    ),
    "exchange": (p.Exchange(), [(randn(3),)] * 3),
    "cache": (p.Cache(), [(randn(1, 2, 1, 4), torch.tensor([k])) for k in range(3)]),
    "passed through": (
        p.Function(lambda x, y: (x, y + 1, x, torch.ones(2), y.view(-1))),
        [(randn(3), randn(2, 2))],
    ),
    "constant results": (
        p.Function(lambda x, w: (w, w.t() + 1, x), w=randn(2, 3)),
        [(randn(3),)],
    ),
    "views": (p.Function(p.views), [(randn(1, 4),)]),
    "tree": (p.Function(p.tree), [(randn(3), {"k": [randn(3), randn(2)]})]),
    "types": (
        p.Function(p.types),
        [
            (
                randn(3),
                torch.tensor([1, 2, 3]),
                torch.tensor([True, False, True]),
                randn(3).half(),
            )
        ],
    ),
    "numbers": (p.Function(p.numbers), [(ROWS,)]),
    "several": (p.Function(p.several), [(randn(4, 6),)]),
    "indexed": (p.Function(p.indexed), [(randn(4, 6), INDEX)]),
    "images": (p.Function(p.images), [(randn(1, 4, 6, 6),)]),
    "embedding": (
        p.Function(
            lambda i, w: (nn.functional.embedding(i, w), nn.functional.one_hot(i, 10)),
            w=randn(10, 4),
        ),
        [(torch.tensor([[1, 2], [3, 4]]),)],
    ),
    "nothing in it": (
        p.Function(lambda x: (x + 1, torch.cat([x, x]))),
        [(torch.zeros(0, 4),)],
    ),
    "not finite": (
        p.Function(lambda x: (x * -0.0, x.exp(), x - x)),
        [(torch.tensor([0.0, float("inf"), float("nan")]),)],
    ),
    "non-zero": (p.Function(lambda x: x.nonzero()), [(ROWS,), (POSITIVE,)]),
    "item": (
        p.Function(lambda x, i: x * i.item()),
        [(ROWS, torch.tensor(3)), (ROWS, torch.tensor(-1))],
    ),
    "formulas": (p.Function(p.formulas), [(ROWS, randn(3, 4).flip(0)), (ODD, ROWS)]),
    "rest of integers": (
        p.Function(p.rests),
        [(torch.arange(-4, 5), torch.tensor([3, -3, 2, -2, 5, -5, 4, 1, -1]))],
    ),
    "branch": (p.Function(p.branch), [(ROWS,), (NEGATIVE,), (POSITIVE,)]),
    "loop": (p.Function(p.loop), [(ROWS,)] * 2),
    "exchanging loop": (p.Function(p.exchanging_loop), [(ROWS, POSITIVE)] * 2),
    "branch in loop": (
        p.Function(p.branch_in_loop),
        [(ROWS,), (NEGATIVE,), (POSITIVE,)],
    ),
    "running": (p.Function(p.running), [(ROWS, randn(4))] * 2),
    "rows": (p.Function(p.rows), [(ROWS, randn(4))] * 2),
}


DYNAMIC: dict[str, tuple[nn.Module, Any]] = {
    "mlp": (
        nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3), nn.Softmax(-1)),
        ({0: BATCH},),
    ),
    "resized": (p.Function(p.resized), (({0: BATCH},),)),
    "resized-parts": (p.Function(p.resized_parts), (({0: BATCH},),)),
    "branch": (p.Function(p.branch), (({0: BATCH},),)),
    "loop": (p.Function(p.loop), (({0: BATCH},),)),
}

"""Lowering rules for operators that change shapes give the results of eager torch."""

from __future__ import annotations

import torch

from ...support.rule_cases import (
    Family,
    randn,
    random_bools,
    random_halves,
    random_integers,
)

aten = torch.ops.aten

FAMILY = Family()


UNEQUAL = ("stack", "unbind")
"""Computed with, as truth values cannot be."""


x = randn(2, 3, 4, 5)
moves = {
    "view": lambda x: x.view(2, -1, 10),
    "reshape": lambda x: x.reshape(6, 20),
    "unsafe-view": lambda x: aten._unsafe_view(x, [2, 60]),
    "flatten": lambda x: x.flatten(1, -2),
    "flatten-all": lambda x: x.flatten(),
    "unflatten": lambda x: x.unflatten(2, (2, -1)),
    "unsqueeze": lambda x: x.unsqueeze(-1).unsqueeze(0),
    "squeeze": lambda x: (
        x[:1, :, :1].squeeze()
        + x[:1, :, :1].squeeze(0).squeeze(-2)
        + x[:1, :, :1].squeeze((0, 2))
    ),
    "squeeze-nothing": lambda x: x.squeeze(1),
    "permute": lambda x: x.permute(0, -2, 3, 1),
    "transpose": lambda x: x.transpose(1, -1).swapaxes(0, 2),
    "mT": lambda x: torch.cat([x.mT, x.mH, x.adjoint()]),
    "movedim": lambda x: x.movedim(0, 2).movedim((0, 1), (-1, 0)),
    "moveaxis": lambda x: x.moveaxis(0, 2).moveaxis((0, 1), (-1, 0)).swapdims(1, -1),
    "stack": lambda x: torch.stack([x, x + 1], -1),
    "slice": lambda x: x[:, 1:, -3:-1],
    "slice-steps": lambda x: x[:, ::2, ::3, 1::2],
    "select": lambda x: x[:, 1, -1] + x.select(2, -2)[:, 1],
    "narrow": lambda x: x.narrow(-1, 1, 3),
    "split": lambda x: x.split(2, -1)[1] + x.split(2, -1)[0],
    "split-sizes": lambda x: (
        aten.split_with_sizes(x, [1, 4], 3)[1] + aten.split.sizes(x, [4, 1], 3)[0]
    ),
    "chunk": lambda x: x.chunk(3, 3)[2],
    "unbind": lambda x: x.unbind(1)[2] - x.unbind(1)[0],
    "expand": lambda x: x[:, :1].expand(-1, 6, -1, -1).expand(3, 2, 6, 4, 5),
    "broadcast-to": lambda x: x[:, :1].broadcast_to(2, 6, 4, 5),
    "repeat": lambda x: x.repeat(2, 1, 1, 3, 1),
    "tile": lambda x: x.tile((2, 1)),
    "view-copy": lambda x: aten.unsqueeze_copy(
        aten.permute_copy(aten.view_copy(x, [6, 4, 5]), [1, 0, 2]), 1
    ),
    "slice-copy": lambda x: aten.expand_copy(
        aten.squeeze_copy(aten.slice_copy(x, 1, 1, 2), [1]), [3, 2, 4, 5]
    ),
    "split-copy": lambda x: [
        y + 1
        for y in (*aten.split_copy(x, 2, 1), *aten.split_with_sizes_copy(x, [1, 2], 1))
    ],
    "unbind-copy": lambda x: aten.unbind_copy(x, 1)[2] * 2,
    "transpose-copy": lambda x: (
        aten.t_copy(aten.squeeze_copy(aten.transpose_copy(x[:1], 1, 2))[0]) * 2
    ),
    "squeeze-copy": lambda x: aten.squeeze_copy(x[:, :1], 1) * 2,
    "select-copy": lambda x: aten.select_copy(x, 1, -1),
}
for name, move in moves.items():
    FAMILY.cases(
        name,
        move,
        x,
        random_halves(2, 3, 4, 5),
        random_integers(2, 3, 4, 5),
        random_bools(2, 3, 4, 5) if name not in UNEQUAL else x,
    )
FAMILY.cases(
    "cat",
    lambda x, y: torch.cat([x, y, x], 1),
    (x, x[:, :1]),
    (random_integers(2, 3), random_integers(2, 1)),
)
FAMILY.cases(
    "cat-promoted",
    lambda x, y: torch.cat([x, y]),
    (randn(2, 3), random_integers(1, 3)),
    (random_halves(1, 3), randn(1, 3)),
)
FAMILY.cases(
    "cat-of-70", lambda x: torch.cat([x + k for k in range(70)], -1), randn(1, 2)
)
FAMILY.cases("view-as", lambda x, y: x.view_as(y) + y.expand_as(y), (x, randn(6, 20)))
FAMILY.cases("t", lambda x: x.t(), randn(2, 3), randn(4))
FAMILY.cases(
    "squeeze-number",
    lambda x: x.amax().squeeze((0,)) + x.amax().squeeze(0) + x.amax().squeeze(),
    randn(2, 3),
)
FAMILY.cases("matrix-H", lambda x: x.H, randn(2, 3))
FAMILY.cases(
    "concat", lambda x: torch.concatenate([torch.concat([x, x]), x]), randn(2, 3)
)
FAMILY.cases("numpy-T", lambda x: aten.numpy_T(x), randn(2, 3))


test_rows_call_every_rule = FAMILY.covers("shape")
test_equals_eager = FAMILY.equals_eager()
judged, test_equals_eager_through_the_reference_model = (
    FAMILY.equals_eager_through_the_reference_model()
)

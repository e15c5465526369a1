"""Lowering rules for operators that reorder elements give the results of eager
torch.
"""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F
from delegraph.errors import Unsupported
from delegraph_tosa.lowering import Tosa, lower_program

from ...support.rule_cases import (
    SPEC,
    Family,
    Function,
    randn,
    random_bools,
    random_halves,
    random_integers,
)

aten = torch.ops.aten

FAMILY = Family()
x = randn(2, 3, 4, 5)
moves = {
    "flip": lambda x: x.flip(1, -1),
    "flip-nothing": lambda x: torch.cat([x.flip(()), x]),
    "fliplr": lambda x: x.fliplr(),
    "flipud": lambda x: x.flipud(),
    "roll": lambda x: x.roll((1, -2), (1, -1)),
    "roll-all": lambda x: x.roll(-7),
    "roll-round": lambda x: torch.cat([x.roll(8, 2), x]),
    "diagonal": lambda x: x.diagonal(),
    "diagonal-above": lambda x: x.diagonal(2, 1, 3),
    "diagonal-below": lambda x: x.diagonal(-1, -1, 0),
    "diagonal-names": lambda x: torch.cat(
        [torch.linalg.diagonal(x), aten.diagonal_copy(x, 0, 2, 3)]
    ),
    "unfold": lambda x: x.unfold(1, 2, 1),
    "unfold-apart": lambda x: x.unfold(-1, 2, 2),
    "unfold-skipping": lambda x: aten.unfold_copy(x, 3, 2, 3),
    "pixel-unshuffle": lambda x: F.pixel_unshuffle(x[..., :4], 2),
    "as-strided": lambda x: x.as_strided((3, 2, 2), (1, 5, 20), 7),
    "as-strided-overlapping": lambda x: aten.as_strided_copy(x, [4, 4], [1, 1]),
    "resize": lambda x: aten.resize(x, [3, 7]),
    "slice-scatter": lambda x: aten.slice_scatter(
        x, x[:, :, :2] == x[:, :, 1:3], 2, 1, 3
    ),
    "slice-scatter-all": lambda x: aten.slice_scatter(x, x.flip(2), 2),
    "slice-scatter-first": lambda x: aten.slice_scatter(x, x[:, :, :2], 2, 0, 2),
    "slice-scatter-steps": lambda x: aten.slice_scatter(
        x, x[:, :, :, :3], -1, 0, 100, 2
    ),
    "select-scatter": lambda x: torch.select_scatter(x, x[:, :, 0], 2, -2),
    "diagonal-scatter": lambda x: torch.diagonal_scatter(
        x, x.diagonal(1, 1, 2).flip(0), 1, 1, 2
    ),
    "as-strided-scatter": lambda x: torch.as_strided_scatter(
        x, x[0, 0, :3, :2], (3, 2), (1, 30), 2
    ),
    "copy": lambda x: aten.copy(x, x[:, :, :1]),
}
for name, move in moves.items():
    # of integers and floats; truth values become numbers
    comparing = name == "slice-scatter"
    FAMILY.cases(
        name,
        move,
        x,
        random_halves(2, 3, 4, 5) if not comparing else x,
        random_bools(2, 3, 4, 5) if not comparing else x,
    )
FAMILY.cases(
    "ints",
    lambda x: x.flip(0).roll(1, 1).diagonal().unfold(0, 2, 1),
    random_integers(3, 4),
)
for k in (0, 1, 2, 3, -1):
    FAMILY.cases(f"rot90-{k}", lambda x, k=k: torch.rot90(x, k, (1, 3)), x)
FAMILY.cases(
    "rank-0",
    lambda x: x.flip(()) + x.roll(1, ()) + x.unfold(0, 1, 1)[0],
    torch.tensor(3.0),
)
for name, settings in {
    "plain": (2, 1, 0, 1),
    "dilated": ((3, 2), (1, 2), (1, 2), (2, 1)),
    "apart": (2, 1, 1, 2),
}.items():
    FAMILY.cases(f"im2col-{name}", lambda x, s=settings: F.unfold(x, *s), x, x[0])
    columns = F.unfold(x, *settings)
    FAMILY.cases(
        f"col2im-{name}",
        lambda x, s=settings: F.fold(x, (4, 5), *s),
        columns,
        columns[0],
    )


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda x: x.t().as_strided((2,), (1,)), "lies there with strides"),
        (lambda x: x[1:].as_strided((2,), (1,)), "and offset 3; TOSA has no strides"),
        (
            lambda x: aten.resize(x, [3, 3]),
            "resizing [2, 3] to [3, 3] leaves elements undefined",
        ),
    ],
)
def test_operators_that_depend_on_memory_layout_are_refused(function, text):
    program = torch.export.export(Function(function), (randn(2, 3),))

    with pytest.raises(Unsupported, match=re.escape(text)):
        lower_program(program, Tosa(SPEC))


test_rows_call_every_rule = FAMILY.covers("rearrange")
test_equals_eager = FAMILY.equals_eager()
judged, test_equals_eager_through_the_reference_model = (
    FAMILY.equals_eager_through_the_reference_model()
)

"""Lowering rules for pooling that also returns positions give the results of eager
torch.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from delegraph.errors import Unsupported
from delegraph_tosa.lowering import Tosa, lower_program
from delegraph_tosa.spec import TosaSpec
from torch.export import Dim, export

from ...support.rule_cases import FP, Family, inf, nan, randn, random_halves

aten = torch.ops.aten

FAMILY = Family()
signal = randn(2, 3, 11)
image = randn(2, 3, 7, 9)
volume = randn(2, 3, 5, 4, 6)
TIES = torch.tensor([[[1.0, 1.0, nan, 0.0, -inf, -inf, 2.0, 2.0, 2.0]]])

for axes, x in enumerate((signal, image, volume), start=1):
    pool = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[axes - 1]
    settings = {
        "plain": {"kernel_size": 2},
        "overlapping": {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
        "dilated": {"kernel_size": 2, "stride": 1, "dilation": 2},
    }
    for name, given in settings.items():
        FAMILY.cases(
            f"{axes}d-{name}",
            lambda x, p=pool, g=given: p(x, return_indices=True, **g),
            x,
            x[0],
        )
    adaptive = (F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d)[
        axes - 1
    ]
    for size in (1, 2, 3):
        FAMILY.cases(
            f"adaptive-{axes}d-{size}",
            lambda x, a=adaptive, s=size: a(x, s, return_indices=True),
            x,
            x[0],
        )
    back = (F.max_unpool1d, F.max_unpool2d, F.max_unpool3d)[axes - 1]
    given = {"kernel_size": 3, "stride": 2}
    given["output_size"] = x.shape[-axes:]
    FAMILY.cases(
        f"{axes}d-back",
        lambda x, p=pool, b=back, g=given: b(*p(x, 3, 2, return_indices=True), **g),
        x,
        x[0],
    )
    largest, places = pool(x, 3, 2, return_indices=True)
    FAMILY.case(
        f"{axes}d-back-alone",
        lambda x, i, b=back, g=given: b(x, i, **g),
        largest,
        places,
    )
FAMILY.cases(
    "ties",
    lambda x: F.max_pool1d(x, 3, 2, return_indices=True),
    TIES,
    random_halves(1, 2, 9),
)
FAMILY.cases(
    "values-only", lambda x: aten.max_pool2d_with_indices(x, [2, 2])[0], image, spec=FP
)


test_rows_call_every_rule = FAMILY.covers("pool_indices")
test_equals_eager = FAMILY.equals_eager()
judged, test_equals_eager_through_the_reference_model = (
    FAMILY.equals_eager_through_the_reference_model()
)


def test_pooling_positions_in_images_of_dynamic_size_are_refused():
    """Positions count through the whole image, so its size must be known."""
    module, inputs, *_ = FAMILY.rows["2d-back-0"]
    all_sizes_dynamic = dict.fromkeys(range(4), Dim.AUTO)
    program = export(module, inputs, dynamic_shapes={"args": (all_sizes_dynamic,)})
    builder = Tosa(TosaSpec.parse("TOSA-1.1+FP+INT+shape"))

    with pytest.raises(Unsupported, match="at compile time"):
        lower_program(program, builder)

"""Lowering rules for transposed convolutions give the results of eager torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from ...support.rule_cases import FP, Family, randn

aten = torch.ops.aten

FAMILY = Family()
signal = randn(2, 4, 11)
image = randn(2, 4, 5, 6)
volume = randn(2, 4, 5, 6, 5)


def transposed(axes, *args, **kwargs):
    torch.manual_seed(0)
    return (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[axes - 1](
        *args, **kwargs
    )


for axes, x in enumerate((signal, image, volume), start=1):
    settings = {
        "plain": {},
        "strided": {"stride": 2, "padding": 1, "output_padding": 1},
        "wide": {"stride": 3, "output_padding": 2},
        "padded-away": {"padding": 3, "bias": False},
        "dilated": {"dilation": 2, "stride": 3, "padding": 1, "output_padding": 2},
        "grouped": {"groups": 2, "stride": 2},
        "depthwise": {
            "groups": 4,
            "stride": 2,
            "padding": 2,
            "output_padding": 1,
            "dilation": 2,
        },
    }
    for name, given in settings.items():
        FAMILY.case(f"{axes}d-{name}", transposed(axes, 4, 8, 3, **given), x, spec=FP)
    FAMILY.case(f"{axes}d-unbatched", transposed(axes, 4, 6, 2, 2), x[0])
FAMILY.cases(
    "2d-mixed",
    transposed(2, 4, 6, (3, 2), (2, 3), (0, 1), (1, 2), dilation=(2, 1)),
    image,
)
FAMILY.cases("2d-half", transposed(2, 4, 6, 3).half(), image.half())
FAMILY.cases(
    "depthwise-run-time-weights",
    lambda x, w: F.conv_transpose2d(x, w, groups=4),
    (image, randn(4, 2, 3, 3)),
)
FAMILY.cases(
    "run-time-weights",
    lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2, dilation=2, padding=1),
    (image, randn(4, 6, 3, 3), randn(6)),
)
FAMILY.cases(
    "convolution",
    lambda x, w: aten.convolution(x, w, None, [2], [1], [1], False, [0], 1),
    (randn(1, 4, 9), randn(6, 4, 3)),
)
FAMILY.cases(
    "convolution2",
    lambda x, w: aten.convolution(x, w, None, [2, 1], [1, 1], [1, 1], False, [0, 0], 2),
    (image, randn(6, 2, 3, 3)),
)
FAMILY.cases(
    "convolution-transposed",
    lambda x, w: aten.convolution(x, w, None, [2], [1], [1], True, [1], 1),
    (signal, randn(4, 6, 3)),
)
FAMILY.cases(
    "convolution-transposed3",
    lambda x, w: aten.convolution(
        x, w, None, [2] * 3, [1] * 3, [1] * 3, True, [0] * 3, 1
    ),
    (volume, randn(4, 6, 2, 2, 2)),
)


test_rows_call_every_rule = FAMILY.covers("conv_transpose")
test_equals_eager = FAMILY.equals_eager()
judged, test_equals_eager_through_the_reference_model = (
    FAMILY.equals_eager_through_the_reference_model()
)

"""Lowering rules for convolutions give the results of eager torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ...support.rule_cases import FP, Family, randn

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")

aten = torch.ops.aten

FAMILY = Family()


def conv(*args, seed=0, **kwargs):
    torch.manual_seed(seed)
    return nn.Conv2d(*args, **kwargs)


image = randn(2, 4, 11, 9)
for stride in (1, 2, 3):
    for padding in (0, 1, 2):
        FAMILY.case(
            f"conv-s{stride}-p{padding}", conv(4, 6, 3, stride, padding), image, spec=FP
        )
FAMILY.cases("conv-cut", conv(4, 6, (1, 2), (2, 3)), image, spec=FP)
FAMILY.cases("conv-dilated", conv(4, 6, 3, 2, (2, 1), dilation=(2, 1)), image, spec=FP)
FAMILY.cases(
    "conv-mixed", conv(4, 6, (5, 1), (2, 3), (1, 0), bias=False), image, spec=FP
)
FAMILY.cases("conv-unbatched", conv(4, 6, 3, padding=1), image[0])
FAMILY.cases("conv-half", conv(4, 6, 3, padding=1).half(), image.half())
FAMILY.cases("conv-same", conv(4, 6, (4, 3), padding="same", dilation=(1, 2)), image)
FAMILY.cases("conv-valid", conv(4, 6, 3, padding="valid", stride=2), image, image[1])
FAMILY.cases("depthwise", conv(4, 4, 3, 2, 1, groups=4), image)
FAMILY.cases(
    "depthwise-multiplier", conv(4, 12, 3, padding=1, groups=4, bias=False), image
)
FAMILY.cases("grouped", conv(4, 6, 3, padding=1, groups=2), image)
FAMILY.cases("grouped-no-bias", conv(4, 6, 3, 2, groups=2, bias=False), image)
FAMILY.cases("conv1d", nn.Conv1d(4, 6, 3, 2, 1), randn(2, 4, 11), randn(4, 11))
FAMILY.cases(
    "conv1d-same", nn.Conv1d(4, 8, 4, padding="same", groups=2), randn(2, 4, 11)
)
FAMILY.cases("conv-of-run-time-weights", F.conv2d, (image, randn(6, 4, 3, 3), randn(6)))


def conv3(*args, seed=0, **kwargs):
    torch.manual_seed(seed)
    return nn.Conv3d(*args, **kwargs)


volume = randn(2, 4, 5, 7, 6)
FAMILY.cases("conv3d", conv3(4, 6, 3), volume, volume[0], spec=FP)
FAMILY.cases(
    "conv3d-cut",
    conv3(4, 6, (1, 2, 3), (2, 3, 1), (0, 1, 2), dilation=(1, 2, 1), bias=False),
    volume,
)
FAMILY.cases("conv3d-grouped", conv3(4, 6, 2, groups=2, padding=1), volume)
FAMILY.cases("conv3d-depthwise", conv3(4, 8, 2, groups=4), volume)
FAMILY.cases("conv3d-same", conv3(4, 6, (3, 2, 1), padding="same"), volume)
FAMILY.cases(
    "conv3d-run-time-weights", F.conv3d, (volume, randn(6, 4, 2, 2, 2), randn(6))
)


test_rows_call_every_rule = FAMILY.covers("conv")
test_equals_eager = FAMILY.equals_eager()
judged, test_equals_eager_through_the_reference_model = (
    FAMILY.equals_eager_through_the_reference_model()
)

"""Lowering rules for sampling at coordinates computed at run time give the results of eager
torch.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ...support.rule_cases import Family, nan, randn

aten = torch.ops.aten

FAMILY = Family()
image = randn(2, 3, 5, 6)
volume = randn(1, 2, 3, 4, 5)
grid = randn(2, 4, 3, 2) * 0.8
grid3 = randn(1, 2, 3, 4, 3) * 0.8
far = torch.tensor(
    [[[[-1.0, 1.0], [5.5, -7.25], [-1e9, 1e9], [nan, 0.0], [0.999, -0.999]]]]
)

for mode in ("bilinear", "nearest", "bicubic"):
    for padding in ("zeros", "border", "reflection"):
        for corners in (False, True):
            sample = lambda x, g, m=mode, p=padding, c=corners: F.grid_sample(
                x, g, m, p, c
            )
            name = f"{mode}-{padding}{'-corners' if corners else ''}"
            FAMILY.case(name, sample, image, grid)
            if mode != "bicubic":
                FAMILY.case(f"{name}-far", sample, image[:1], far[:, :, :2])
                FAMILY.case(f"{name}-3d", sample, volume, grid3)
for mode in ("bilinear", "nearest"):
    sample = lambda x, g, m=mode: F.grid_sample(x, g, m, "border", align_corners=False)
    FAMILY.case(f"{mode}-beyond", sample, image[:1], far)
FAMILY.case("inner", lambda x, g: aten.grid_sampler_2d(x, g, 0, 0, False), image, grid)
FAMILY.case(
    "inner-3d", lambda x, g: aten.grid_sampler_3d(x, g, 0, 0, True), volume, grid3
)


test_rows_call_every_rule = FAMILY.covers("grid_sample")
test_equals_eager = FAMILY.equals_eager()
judged, test_equals_eager_through_the_reference_model = (
    FAMILY.equals_eager_through_the_reference_model()
)

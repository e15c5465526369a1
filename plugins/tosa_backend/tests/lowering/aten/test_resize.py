"""Resizing of images, each rule against eager torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ...support.rule_cases import FP, Family, half, randn

aten = torch.ops.aten

FAMILY = Family()

image = randn(2, 3, 6, 5)
for size in ((12, 10), (3, 5), (6, 5), (9, 7), (1, 20), (13, 15)):
    FAMILY.cases(f"nearest{size}", lambda x, s=size: F.interpolate(x, s), image, half(1, 2, 3, 1), spec=FP)
    for corners in (False, True):
        FAMILY.cases(
            f"bilinear{size}{corners}",
            lambda x, s=size, c=corners: F.interpolate(x, s, mode="bilinear", align_corners=c),
            image,
            half(1, 2, 3, 1),
            spec=FP,
        )
for factor in (2, 3, 0.5, 1.5, (2, 3.5)):
    FAMILY.cases(f"nearest-x{factor}", lambda x, f=factor: F.interpolate(x, scale_factor=f), image)
    for corners in (False, True):
        FAMILY.cases(
            f"bilinear-x{factor}{corners}",
            lambda x, f=factor, c=corners: F.interpolate(x, scale_factor=f, mode="bilinear", align_corners=c),
            image,
        )
for factor in (0.05, 1.23456789):  # which RESIZE cannot express
    for mode in ("nearest", "bilinear"):
        resized = lambda x, f=factor, m=mode: F.interpolate(x, scale_factor=f, mode=m)  # noqa: E731
        FAMILY.cases(f"{mode}-x{factor}", resized, randn(1, 2, 41, 40))
FAMILY.cases("nearest-inner", lambda x: aten.upsample_nearest2d(x, [12, 10]), image)
FAMILY.cases("bilinear-inner", lambda x: aten.upsample_bilinear2d(x, [12, 10], False), image)


test_equals_eager = FAMILY.equals_eager()
judged, test_equals_eager_through_the_reference_model = FAMILY.equals_eager_through_the_reference_model()

"""Lowering rules for interpolation by weighted sums give the results of eager torch."""

from __future__ import annotations

import delegraph
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ...support.rule_cases import FP, Family, randn, random_halves

aten = torch.ops.aten

FAMILY = Family()
signal = randn(2, 3, 7)
image = randn(2, 3, 6, 5)
volume = randn(1, 2, 4, 5, 6)
SIZES = {
    "signal": ((14,), (3,), (10,), (1,)),
    "volume": ((8, 3, 6), (2, 7, 1)),
    "image": ((12, 7), (3, 5), (1, 9)),
}
MODES = {
    "signal": (signal, ("nearest", "nearest-exact", "linear")),
    "image": (image, ("nearest-exact", "bicubic")),
    "volume": (volume, ("nearest", "nearest-exact", "trilinear")),
}
for what, (x, modes) in MODES.items():
    for mode in modes:
        for size in SIZES[what]:
            FAMILY.case(
                f"{what}-{mode}-{size}",
                lambda x, m=mode, s=size: F.interpolate(x, s, mode=m),
                x,
                spec=FP,
            )
        for scale in (2, 0.6, 1.7):
            resized = lambda x, m=mode, s=scale: F.interpolate(
                x, scale_factor=s, mode=m
            )
            FAMILY.case(f"{what}-{mode}-x{scale}", resized, x)
        if mode.endswith(("linear", "cubic")):
            for size in SIZES[what]:
                aligned = lambda x, m=mode, s=size: F.interpolate(
                    x, s, mode=m, align_corners=True
                )
                FAMILY.case(f"{what}-{mode}-{size}-aligned", aligned, x)
for mode in ("bilinear", "bicubic"):
    for size in ((3, 2), (12, 3), (6, 5)):
        smooth = lambda x, m=mode, s=size: F.interpolate(x, s, mode=m, antialias=True)
        FAMILY.case(f"smooth-{mode}-{size}", smooth, image)
FAMILY.cases(
    "half", lambda x: F.interpolate(x, 9, mode="linear"), random_halves(1, 2, 5)
)
inner = {
    "upsample_nearest1d": (signal, ([9],)),
    "_upsample_nearest_exact1d": (signal, ([9],)),
    "upsample_linear1d": (signal, ([9], True)),
    "_upsample_nearest_exact2d": (image, ([9, 3],)),
    "upsample_bicubic2d": (image, ([9, 3], True)),
    "_upsample_bilinear2d_aa": (image, ([3, 3], False)),
    "_upsample_bicubic2d_aa": (image, ([3, 3], False)),
    "upsample_nearest3d": (volume, ([3, 8, 5],)),
    "_upsample_nearest_exact3d": (volume, ([3, 8, 5],)),
    "upsample_trilinear3d": (volume, ([3, 8, 5], False)),
}
for name, (x, given) in inner.items():
    FAMILY.case(
        f"inner-{name}", lambda x, n=name, g=given: getattr(aten, n).default(x, *g), x
    )


test_rows_call_every_rule = FAMILY.covers("interpolate")
test_equals_eager = FAMILY.equals_eager()
judged, test_equals_eager_through_the_reference_model = (
    FAMILY.equals_eager_through_the_reference_model()
)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(3, 4), (9, 20), (4, 11)])
def test_antialiasing_spreads_an_infinity_as_far_as_eager_does(mode, size):
    """Each output must read exactly the inputs that eager reads: a zero weight times
    infinity is NaN.
    """

    class Resized(nn.Module):
        def forward(self, x):
            return F.interpolate(x, size, mode=mode, antialias=True)

    model = Resized().eval()
    x = torch.randn(1, 2, 9, 11)
    lowered = delegraph.lower(model, (x,), backends=["tosa"], require_full=True)

    x[0, 0, 4, 5] = float("inf")

    assert torch.equal(lowered(x).isfinite(), model(x).isfinite())

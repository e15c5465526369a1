"""Resizing of images, each rule against eager torch."""

from __future__ import annotations

from collections.abc import Callable

import delegraph
import torch
import torch.nn.functional as F

from ...support.rule_cases import FP, Family, randn, random_halves

aten = torch.ops.aten

FAMILY = Family()

image = randn(2, 3, 6, 5)
for size in ((12, 10), (3, 5), (6, 5), (9, 7), (1, 20), (13, 15)):
    FAMILY.cases(
        f"nearest{size}",
        lambda x, s=size: F.interpolate(x, s),
        image,
        random_halves(1, 2, 3, 1),
        spec=FP,
    )
    for corners in (False, True):
        FAMILY.cases(
            f"bilinear{size}{corners}",
            lambda x, s=size, c=corners: F.interpolate(
                x, s, mode="bilinear", align_corners=c
            ),
            image,
            random_halves(1, 2, 3, 1),
            spec=FP,
        )
for factor in (2, 3, 0.5, 1.5, (2, 3.5)):
    FAMILY.cases(
        f"nearest-x{factor}",
        lambda x, f=factor: F.interpolate(x, scale_factor=f),
        image,
    )
    for corners in (False, True):
        FAMILY.cases(
            f"bilinear-x{factor}{corners}",
            lambda x, f=factor, c=corners: F.interpolate(
                x, scale_factor=f, mode="bilinear", align_corners=c
            ),
            image,
        )
for factor in (0.05, 1.23456789):  # which RESIZE cannot express
    for mode in ("nearest", "bilinear"):
        resized = lambda x, f=factor, m=mode: F.interpolate(x, scale_factor=f, mode=m)
        FAMILY.cases(f"{mode}-x{factor}", resized, randn(1, 2, 41, 40))
FAMILY.cases("nearest-inner", lambda x: aten.upsample_nearest2d(x, [12, 10]), image)
FAMILY.cases(
    "bilinear-inner", lambda x: aten.upsample_bilinear2d(x, [12, 10], False), image
)


test_rows_call_every_rule = FAMILY.covers("resize")
test_equals_eager = FAMILY.equals_eager()
judged, test_equals_eager_through_the_reference_model = (
    FAMILY.equals_eager_through_the_reference_model()
)


def test_resized_border_pixels_next_to_an_infinity_stay_finite() -> None:
    """RESIZE repeats the pixel at the border; eager weighs its neighbour with 0 there,
    which is NaN of an infinity.
    """
    function = lambda x: F.interpolate(x, scale_factor=2, mode="bilinear")
    x = torch.arange(16.0).reshape(1, 1, 4, 4)
    lowered = delegraph.lower(Call(function).eval(), (x,), backends=["tosa"])
    x[0, 0, 1, 1] = torch.inf
    ours = lowered(x)
    eager = function(x)
    differ = ~torch.isclose(ours, eager, equal_nan=True)
    assert differ.any()
    assert eager[differ].isnan().all()
    assert ours[differ].isfinite().all()
    assert not differ[..., 1:-1, 1:-1].any()


class Call(torch.nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)

"""Lowering rules for resizing images give the results of eager torch."""

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
    """Eager computes NaN at the border: it multiplies the infinite neighbour by weight 0.
    RESIZE repeats the border pixel instead.
    """
    function = lambda x: F.interpolate(x, scale_factor=2, mode="bilinear")
    x = torch.arange(16.0).reshape(1, 1, 4, 4)
    lowered = delegraph.lower(Call(function).eval(), (x,), backends=["tosa"])
    x[0, 0, 1, 1] = torch.inf

    lowered_result = lowered(x)
    eager_result = function(x)

    differ = ~torch.isclose(lowered_result, eager_result, equal_nan=True)
    assert differ.any()
    assert eager_result[differ].isnan().all()
    assert lowered_result[differ].isfinite().all()
    only_the_border_differs = not differ[..., 1:-1, 1:-1].any()
    assert only_the_border_differs


class Call(torch.nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)

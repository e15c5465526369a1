"""Lowering rules for pooling give the results of eager torch."""

from __future__ import annotations

import torch
from torch import nn

from ...support.rule_cases import EDGES, FP, Family, randn, random_halves

aten = torch.ops.aten

FAMILY = Family()

image = randn(2, 3, 11, 9)
settings = [
    (2,),
    (3, 2),
    (3, 2, 1),
    ((3, 2), (1, 2), (1, 0)),
    (3, 3, 0, True),
    (3, 2, 1, True),
    ((2, 3), 3, 1, True),
]
for kernel, *rest in settings:
    stride = (*rest, None, 0, False)[0]
    padding = (*rest, 0, 0)[1] if len(rest) > 1 else 0
    ceil = len(rest) > 2
    arguments = {
        "kernel_size": kernel,
        "stride": stride,
        "padding": padding,
        "ceil_mode": ceil,
    }
    name = f"k{kernel}-s{stride}-p{padding}{'-ceil' if ceil else ''}"
    FAMILY.case(f"max-pool-{name}", nn.MaxPool2d(**arguments), image, spec=FP)
    FAMILY.case(f"avg-pool-{name}", nn.AvgPool2d(**arguments), image, spec=FP)
    FAMILY.case(
        f"avg-pool-uncounted-{name}",
        nn.AvgPool2d(**arguments, count_include_pad=False),
        image,
        spec=FP,
    )
    FAMILY.case(
        f"avg-pool-divisor-{name}",
        nn.AvgPool2d(**arguments, divisor_override=5),
        image,
        spec=FP,
    )
FAMILY.cases("max-pool-unbatched", nn.MaxPool2d(2), image[0], random_halves(1, 2, 4, 4))
for size in (1, (2, 3), (5, 4), (11, 9), (4, 1), (13, 10)):
    FAMILY.cases(
        f"adaptive{size}",
        nn.AdaptiveAvgPool2d(size),
        image,
        randn(1, 2, 10, 12),
        random_halves(3, 10, 9),
    )
volume = randn(2, 3, 5, 7, 6)
for kernel, *rest in settings[:2] + settings[3:]:
    kernel = (*kernel, 2) if isinstance(kernel, tuple) else kernel
    stride = (*rest, None)[0]
    padding = (*rest, 0, 0)[1]
    stride = (*stride, 1) if isinstance(stride, tuple) else stride
    padding = (*padding, 1) if isinstance(padding, tuple) else padding
    arguments = {
        "kernel_size": kernel,
        "stride": stride,
        "padding": padding,
        "ceil_mode": len(rest) > 2,
    }
    name = f"k{kernel}-s{stride}-p{padding}{'-ceil' if len(rest) > 2 else ''}"
    FAMILY.case(f"max-pool3d-{name}", nn.MaxPool3d(**arguments), volume, spec=FP)
    FAMILY.case(f"avg-pool3d-{name}", nn.AvgPool3d(**arguments), volume, spec=FP)
    FAMILY.case(
        f"avg-pool3d-uncounted-{name}",
        nn.AvgPool3d(**arguments, count_include_pad=False),
        volume,
        spec=FP,
    )
    FAMILY.case(
        f"avg-pool3d-divisor-{name}",
        nn.AvgPool3d(**arguments, divisor_override=5),
        volume,
        spec=FP,
    )
FAMILY.cases("max-pool1d", nn.MaxPool1d(3, 2, 1), EDGES[None], randn(2, 3, 9))
FAMILY.cases(
    "max-pool1d-dilated",
    nn.MaxPool1d(3, 2, 1, dilation=3, ceil_mode=True),
    EDGES[None],
    randn(2, 3, 10),
)
for dilation, stride, ceil in (
    (2, 1, False),
    ((1, 3), 2, True),
    ((2, 1), (3, 1), False),
    (3, 4, True),
):
    pool = nn.MaxPool2d(3, stride, 1, dilation, ceil_mode=ceil)
    FAMILY.cases(f"max-pool-dilated{dilation}-s{stride}", pool, image, image[0])
FAMILY.cases(
    "max-pool-dilated-int",
    nn.MaxPool2d(2, 1, 1, 2),
    (randn(1, 2, 5, 6) * 50).to(torch.int8),
)
FAMILY.cases("max-pool3d-dilated", nn.MaxPool3d(2, 2, 1, (1, 2, 3)), volume, volume[0])
for size in (1, (2, 3, 4), (5, 7, 6)):
    FAMILY.cases(f"adaptive3d{size}", nn.AdaptiveAvgPool3d(size), volume, volume[0])
FAMILY.cases(
    "adaptive3d-inner", lambda x: aten._adaptive_avg_pool3d(x, [2, 1, 3]), volume
)
FAMILY.cases("adaptive-inner", lambda x: aten._adaptive_avg_pool2d(x, [1, 1]), image)


test_rows_call_every_rule = FAMILY.covers("pool")
test_equals_eager = FAMILY.equals_eager()
judged, test_equals_eager_through_the_reference_model = (
    FAMILY.equals_eager_through_the_reference_model()
)

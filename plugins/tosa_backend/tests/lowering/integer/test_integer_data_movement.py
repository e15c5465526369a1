"""Operators that move or average quantized values give the results of the quantized graph
in eager torch.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ...support.quantized_cases import IntegerFamily
from ...support.rule_cases import WithConstant

aten = torch.ops.aten
FAMILY = IntegerFamily()
IMAGE = (2, 6, 9, 9)
BYTES = [torch.int8]

FAMILY.case("permute", lambda x: x.permute(0, 2, 1).reshape(2, -1), (2, 16, 9))
FAMILY.case("split", lambda x: x.split(3, 1)[1], (2, 16, 9))
FAMILY.case("cat", lambda x, y: torch.cat([x, y], 1), (2, 16, 9), (2, 3, 9))
FAMILY.case("stack", lambda x, y: torch.stack([x, y], 1), (2, 3, 9), (2, 3, 9))
FAMILY.case("pad", lambda x: F.pad(x, (1, 2)), (2, 16, 9))
FAMILY.case("pad-reflect", lambda x: F.pad(x, (1, 2), mode="reflect"), (2, 16, 9))
FAMILY.case(
    "pad-number", lambda x: F.pad(x, (1, 2), value=0.123), (2, 16, 9), dtypes=BYTES
)
FAMILY.case("tril", lambda x: x.tril(1), (2, 16, 9), dtypes=BYTES)
FAMILY.case("topk", lambda x: x.topk(3, 1)[0], (2, 16, 9), dtypes=BYTES)
FAMILY.case(
    "index-put",
    lambda x, y: x.index_put((torch.arange(3) * 2,), y),
    (7, 5),
    (3, 5),
    dtypes=BYTES,
)
FAMILY.case(
    "slice-scatter",
    lambda x, y: x.slice_scatter(y, 1, 4, 6),
    (2, 16, 9),
    (2, 2, 9),
    dtypes=BYTES,
)
FAMILY.case(
    "adaptive-max-pool", lambda x: F.adaptive_max_pool2d(x, 4), IMAGE, dtypes=BYTES
)
FAMILY.case("where", lambda x, y: torch.where(x > y, x, y), (2, 16, 9), (2, 16, 9))
FAMILY.case(
    "masked-fill", lambda x, y: x.masked_fill(y > x, -0.5), (2, 16, 9), (2, 16, 9)
)
FAMILY.case("amax", lambda x: x.amax(1), (2, 16, 9))
FAMILY.case("argmax", lambda x: x.argmax(1).int(), (2, 16, 9))
FAMILY.case("max-pool", lambda x: F.max_pool2d(x, 3, 2, 1), IMAGE)
FAMILY.case("nearest", lambda x: F.interpolate(x, scale_factor=2), IMAGE)
FAMILY.case("mean", lambda x: x.mean((2, 3)), IMAGE)
FAMILY.case("mean-channels", lambda x: x.mean(1, keepdim=True), IMAGE)
FAMILY.case("average-pool", lambda x: F.avg_pool2d(x, 3, 2, 1), IMAGE)
FAMILY.case("adaptive-pool", lambda x: F.adaptive_avg_pool2d(x, 3), IMAGE)
FAMILY.case(
    "average-pool-edges",
    lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    IMAGE,
)
FAMILY.case(
    "average-pool-divisor",
    lambda x: F.avg_pool2d(x, 2, divisor_override=3),
    IMAGE,
    dtypes=BYTES,
)
FAMILY.case("average-pool3d", lambda x: F.avg_pool3d(x, 2), IMAGE)
FAMILY.case("adaptive-pool-uneven", lambda x: F.adaptive_avg_pool2d(x, (4, 2)), IMAGE)
FAMILY.case("mean-whole", lambda x: x.mean(), (2, 16, 9), dtypes=BYTES)
FAMILY.case(
    "bilinear", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), IMAGE
)
FAMILY.case(
    "bilinear-corners",
    lambda x: F.interpolate(x, size=(7, 11), mode="bilinear", align_corners=True),
    IMAGE,
)
FAMILY.case(
    "bilinear-odd",
    lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear"),
    IMAGE,
    dtypes=BYTES,
)
FAMILY.case("bicubic", lambda x: F.interpolate(x, size=(7, 20), mode="bicubic"), IMAGE)
FAMILY.case(
    "bilinear-smooth",
    lambda x: F.interpolate(x, size=(4, 5), mode="bilinear", antialias=True),
    IMAGE,
)
FAMILY.case(
    "trilinear",
    lambda x: F.interpolate(x[None], scale_factor=2, mode="trilinear"),
    IMAGE,
    dtypes=BYTES,
)
FAMILY.case(
    "copies-by-name",
    lambda x: aten.detach_copy(
        aten.unfold_copy(aten.split_copy(aten.t_copy(x), 4)[1], 1, 3, 2)
    ),
    (16, 9),
    dtypes=BYTES,
)
FAMILY.case(
    "as-strided-copy",
    lambda x: aten.as_strided_copy(x, (3, 4), (1, 5)),
    (4, 9),
    dtypes=BYTES,
)
PLACES = torch.tensor([4, 0, 4])
ROWS = (7, 5), (3, 5)
FAMILY.case("argsort", lambda x: x.gather(1, x.argsort(1)), (2, 16, 9), dtypes=BYTES)
added = WithConstant(lambda i, x, y: x.index_put((i,), y, accumulate=True), PLACES)
FAMILY.case("index-put-added", added, *ROWS)
one_place = WithConstant(
    lambda i, x, y: x.index_put((i,), y[:1], accumulate=True),
    torch.zeros(100, dtype=torch.int64),
)
FAMILY.case("index-put-added-often", one_place, *ROWS, dtypes=BYTES)
large = WithConstant(
    lambda i, x: x.index_put((i,), torch.full((5,), 1000.0), accumulate=True), PLACES
)
FAMILY.case("index-put-added-large", large, (7, 5), dtypes=BYTES)
scattered = WithConstant(
    lambda i, x, y: (
        x.new_zeros(7, 5).scatter_add(0, i[:, None].expand(3, 5), y + 1) - x
    ),
    PLACES,
)
FAMILY.case("scatter-added", scattered, *ROWS)
factor = WithConstant(lambda i, x, y: x.index_add(0, i, y, alpha=-2), PLACES)
FAMILY.case("index-added", factor, *ROWS, dtypes=BYTES)
filled = WithConstant(
    lambda i, x: x.index_fill(0, i, 0.1).scatter(1, i[:, None], -0.1), PLACES
)
FAMILY.case("filled", filled, (7, 5), dtypes=BYTES)

judged, test_equals_eager = FAMILY.equals_eager()
test_equals_eager_for_any_scales = FAMILY.sweep()

"""Quantized convolutions and matrix products give the results of the quantized graph in
eager torch.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ...support.quantized_cases import IntegerFamily, WithWeight, dequantize
from ...support.rule_cases import WithConstant, randn

FAMILY = IntegerFamily()


def with_weight(function, *shape, bias=True):
    return WithWeight(function, randn(*shape), randn(shape[0]) if bias else None)


FAMILY.case("linear", with_weight(F.linear, 20, 32), (4, 32))
FAMILY.case("linear-no-bias", with_weight(F.linear, 20, 32, bias=False), (2, 3, 32))
FAMILY.case(
    "conv1d", with_weight(lambda x, w, b: F.conv1d(x, w, b, 1, 2), 16, 8, 3), (2, 8, 9)
)
FAMILY.case(
    "conv2d",
    with_weight(lambda x, w, b: F.conv2d(x, w, b, 2, 1), 16, 8, 3, 3),
    (2, 8, 9, 9),
)
FAMILY.case(
    "conv2d-relu",
    with_weight(lambda x, w, b: F.conv2d(x, w, b, 2, 1).relu(), 16, 8, 3, 3),
    (2, 8, 9, 9),
)
FAMILY.case(
    "conv2d-groups",
    with_weight(lambda x, w, b: F.conv2d(x, w, b, 1, 1, 1, 4), 16, 2, 3, 3),
    (2, 8, 9, 9),
)
FAMILY.case(
    "conv2d-same",
    with_weight(lambda x, w, b: F.conv2d(x, w, b, padding="same"), 6, 4, 3, 3),
    (2, 4, 5, 6),
)
FAMILY.case(
    "conv3d", with_weight(F.conv3d, 6, 4, 2, 3, 3), (1, 4, 4, 5, 5), dtypes=[torch.int8]
)
FAMILY.case(
    "depthwise",
    with_weight(lambda x, w, b: F.relu6(F.conv2d(x, w, b, 1, 1, 1, 8)), 16, 1, 3, 3),
    (2, 8, 9, 9),
)
FAMILY.case(
    "conv2d-flatten",
    with_weight(lambda x, w, b: F.conv2d(x, w, b).relu().flatten(1), 9, 8, 3, 3),
    (2, 8, 9, 9),
)
spreading = WithWeight(
    lambda x, w, b: F.conv_transpose2d(x, w, b, 2, 1),
    randn(8, 6, 3, 3),
    randn(6),
    axis=1,
)
FAMILY.case("conv-transpose2d", spreading, (2, 8, 5, 5))
# With this dilation and padding, each element sums at least one product. Elements of the
# bias alone would be equal, so that one rounding tie would affect all of them.
dilated = WithWeight(
    lambda x, w, b: F.conv_transpose1d(x, w, b, 2, 2, dilation=3),
    randn(8, 6, 3),
    randn(6),
    axis=1,
)
FAMILY.case("conv-transpose1d", dilated, (2, 8, 5))
grouped = WithWeight(
    lambda x, w, b: F.conv_transpose2d(x, w, b, 2, groups=2),
    randn(8, 3, 3, 3),
    randn(6),
    axis=1,
)
FAMILY.case("conv-transpose2d-groups", grouped, (2, 8, 5, 5), dtypes=[torch.int8])
FAMILY.case("matmul", torch.matmul, (2, 5, 16), (2, 16, 7))
FAMILY.case(
    "matmul-heads", lambda x, y: x @ y.transpose(-2, -1), (2, 3, 5, 16), (2, 3, 7, 16)
)
FAMILY.case(
    "matmul-columns", WithWeight(lambda x, w, b: x @ w, randn(32, 20), axis=1), (4, 32)
)
FAMILY.case(
    "mm-transposed",
    WithWeight(lambda x, w, b: torch.mm(x, w.t()), randn(20, 32)),
    (4, 32),
)
FAMILY.case(
    "addmm",
    WithWeight(lambda x, w, b: torch.addmm(b, x, w.t()), randn(20, 32), randn(20)),
    (4, 32),
)
FAMILY.case(
    "baddbmm",
    lambda x, y, z: torch.baddbmm(x, y, z, alpha=-2),
    (2, 5, 7),
    (2, 5, 16),
    (2, 16, 7),
)
FAMILY.case("linear-computed", F.linear, (4, 32), (20, 32), (20,))
BIAS = 0.01 * randn(20)
FAMILY.case(
    "linear-computed-weight", lambda x, w: F.linear(x, w, BIAS), (4, 32), (20, 32)
)
CONVOLVED = ((2, 8, 5, 5), (8, 6, 3, 3), (6,))
BYTES = [torch.int8]
FAMILY.case(
    "conv2d-computed",
    lambda x, w, b: F.conv2d(x, w.mT.swapaxes(0, 1), b, 1, 1),
    *CONVOLVED,
    dtypes=BYTES,
)
FAMILY.case(
    "conv-transpose2d-computed",
    lambda x, w, b: F.conv_transpose2d(x, w, b, 2, 1, dilation=2),
    *CONVOLVED,
    dtypes=BYTES,
)

FAMILY.case(
    "batch-norm",
    WithConstant(
        lambda m, v, w, b, x: F.batch_norm(x, m, v, w, b),
        randn(6),
        randn(6).abs(),
        randn(6),
        randn(6),
    ),
    (2, 6, 5, 5),
)
statistics = WithConstant(
    lambda q, x: F.batch_norm(
        x, *[dequantize(q, scale, 3) for scale in (0.01, 0.02, 0.03, 0.04)]
    ),
    torch.arange(10, 16, dtype=torch.int8),
)
FAMILY.case("batch-norm-quantized-statistics", statistics, (2, 6, 5, 5))

judged, test_equals_eager = FAMILY.equals_eager()
# For larger scales, rounding the bias to steps of the product is too coarse.
test_equals_eager_for_any_scales = FAMILY.sweep(most=-0.5)

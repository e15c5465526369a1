"""Lowering rules for matrix products give the results of eager torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from delegraph_tosa.spec import TosaSpec
from torch import nn

from ...support.rule_cases import (
    FP,
    Family,
    WithConstant,
    nan,
    randn,
    random_halves,
    random_positive,
)

FAMILY = Family()

FAMILY.cases("linear", nn.Linear(5, 7), randn(2, 3, 5), randn(4, 5), randn(5), spec=FP)
FAMILY.cases("linear-no-bias", nn.Linear(5, 7, bias=False), randn(3, 5), spec=FP)
FAMILY.cases("linear-half", nn.Linear(5, 7).half(), random_halves(3, 5))
FAMILY.cases(
    "linear-run-time",
    F.linear,
    (randn(2, 3, 5), randn(7, 5), randn(7)),
    (random_halves(3, 5), random_halves(7, 5)),
)
FAMILY.cases("linear-vector", F.linear, (randn(2, 3, 5), randn(5)))
FAMILY.cases(
    "matmul",
    torch.matmul,
    (randn(3, 4), randn(4, 5)),
    (randn(4), randn(4)),
    (randn(2, 3, 4), randn(4)),
    (randn(4), randn(2, 4, 3)),
    (randn(2, 1, 3, 4), randn(5, 4, 2)),
    (randn(3, 4), randn(2, 4, 2)),
    (randn(2, 3, 4), randn(4, 2)),
)
FAMILY.cases(
    "matmul-parameter",
    WithConstant(lambda w, x: x @ w, randn(4, 6)),
    randn(2, 3, 4),
    randn(4),
    randn(3, 4),
)
FAMILY.cases(
    "matmul-parameter-left",
    WithConstant(lambda w, x: w @ x, randn(6, 4)),
    randn(2, 4, 3),
    randn(4),
)
FAMILY.cases(
    "mm-transposed-parameter",
    WithConstant(lambda w, x: torch.mm(x, w.t()), randn(6, 4)),
    randn(3, 4),
)
FAMILY.cases(
    "bmm",
    torch.bmm,
    (randn(2, 3, 4), randn(2, 4, 5)),
    (random_halves(2, 3, 4), random_halves(2, 4, 5)),
)
FAMILY.cases(
    "addmm",
    torch.addmm,
    (randn(5), randn(3, 4), randn(4, 5)),
    (randn(3, 5), randn(3, 4), randn(4, 5)),
)
FAMILY.cases(
    "addmm-parameter",
    WithConstant(lambda w, b, x: torch.addmm(b, x, w), randn(4, 5), randn(5)),
    randn(3, 4),
)
FAMILY.cases(
    "addmm-scaled",
    lambda b, x, y: torch.addmm(b, x, y, beta=0.5, alpha=2),
    (randn(5), randn(3, 4), randn(4, 5)),
)
FAMILY.cases(
    "addmm-unused",
    lambda b, x, y: torch.addmm(b, x, y, beta=0),
    (torch.full((5,), nan), randn(3, 4), randn(4, 5)),
)
FAMILY.cases(
    "baddbmm",
    lambda b, x, y: torch.baddbmm(b, x, y, alpha=0.3),
    (randn(2, 3, 5), randn(2, 3, 4), randn(2, 4, 5)),
)
batches = randn(4, 5), randn(2, 4, 3), randn(2, 3, 5)
FAMILY.cases(
    "addbmm",
    lambda b, x, y: torch.addbmm(b, x, y, beta=0.5, alpha=2),
    batches,
    (batches[0][:1], *batches[1:]),
)
FAMILY.cases(
    "bilinear", F.bilinear, (randn(2, 3), randn(2, 4), randn(5, 3, 4), randn(5))
)
FAMILY.cases(
    "bilinear-batches",
    F.bilinear,
    (randn(2, 1, 3), randn(2, 1, 4), randn(5, 3, 4)),
    (randn(3), randn(4), randn(1, 3, 4)),
)
FP8 = TosaSpec.parse("TOSA-1.0+FP+fp8e4m3")


def scaled_product(x, y, left, right, *bias):
    x, y = (v.to(torch.float8_e4m3fn) for v in (x, y.t()))
    return torch._scaled_mm(x, y.t(), left, right, *bias, out_dtype=torch.float32)


FAMILY.cases(
    "scaled_mm",
    scaled_product,
    (randn(16, 32), randn(32, 16), torch.tensor(0.3), torch.tensor([1.5])),
    (
        randn(16, 32),
        randn(32, 16),
        random_positive(16, 1),
        random_positive(1, 16),
        randn(16),
    ),
    spec=FP8,
)


def bytes_of(*shape, step=37):
    """int8 of all kinds, -128 among them."""
    return (
        (torch.arange(torch.Size(shape).numel()) * step % 256 - 128)
        .to(torch.int8)
        .view(shape)
    )


FAMILY.cases("int_mm", torch._int_mm, (bytes_of(3, 8), bytes_of(8, 16)))
transposed = WithConstant(
    lambda w, x: torch._int_mm(x, w.t()), bytes_of(16, 8, step=91)
)
FAMILY.cases("int_mm-transposed-parameter", transposed, bytes_of(3, 8))


test_rows_call_every_rule = FAMILY.covers("linear")
test_equals_eager = FAMILY.equals_eager()
judged, test_equals_eager_through_the_reference_model = (
    FAMILY.equals_eager_through_the_reference_model()
)

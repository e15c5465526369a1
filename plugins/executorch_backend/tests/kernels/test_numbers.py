"""Numbers that float32 does not hold, and sums that 16 bits do not: as in eager, in the
stock runtime.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from ..support.judge import emit, lower, stock_runtime
from ..support.programs import Function

FLOATS = torch.randn(
    4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
)
WHOLE = torch.arange(-12, 12).reshape(4, 6) * 3 + torch.arange(-12, 12).reshape(
    4, 6
).sign() * (2**53 + 1)
LEAST = torch.tensor([-(2**63), 2**63 - 1, -7, 7, 0])
MANY = 1 + torch.arange(8192).reshape(2, 4096) % 7 / 16
PLACES = torch.zeros(2, 4096, dtype=torch.long)


def of_floats(x: Tensor) -> Any:
    sums = (
        x.sum(1),
        x.sum(0, keepdim=True),
        x[0].sum(0),
        x.nansum(1),
        x.norm(dim=1),
        x @ x[0],
        x.logsumexp(1),
    )
    norms = (
        functional.layer_norm(x, (6,)),
        functional.group_norm(x, 2),
        functional.instance_norm(x[None]),
    )
    pooled = (
        functional.adaptive_avg_pool2d(x[None], 3),
        functional.batch_norm(x, None, None, training=True),
    )
    return *sums, *norms, *pooled, x % 0.7, x % x.flip(0), x % -0.7, x.log_softmax(1)


def of_integers(x: Tensor) -> Any:
    rests = (
        torch.fmod(x, 7),
        torch.fmod(x, x.flip(1) // 3 + 2**40),
        x % 7,
        x % -5,
        x % (x.flip(1) // 3 + 2**40),
    )
    return x.sum(1), x.sum(0), x @ (x[0] >> 30), x.ceil(), x.floor(), x.trunc(), *rests


def of_the_least(x: Tensor) -> Any:
    thirds = (
        torch.div(x, 3, rounding_mode="trunc"),
        torch.div(x, x * 0 - 5, rounding_mode="trunc"),
        x // 3,
    )
    return (
        *thirds,
        x % -1,
        torch.fmod(x, -1),
        x % 3,
        torch.fmod(x, -3),
        x % (x * 0 - 1),
        torch.fmod(x, x * 0 - 1),
    )


def of_many(x: Tensor) -> Any:
    image = x.view(1, 2, 64, 64)
    sums = (
        x.cumsum(1),
        x.var(1),
        x.std(1),
        torch.zeros_like(x).scatter_add(1, PLACES, x),
    )
    pooled = (
        functional.avg_pool2d(image, 64),
        functional.conv2d(image, image[:, :, :40, :40]),
    )
    return (
        *sums,
        *pooled,
        functional.layer_norm(x, (4096,)),
        functional.batch_norm(image, None, None, training=True),
    )


@pytest.mark.parametrize(
    ("function", "x"),
    [
        (of_floats, FLOATS),
        (of_floats, FLOATS * 1e150),
        (of_integers, WHOLE),
        (of_integers, (WHOLE % 2**20 + 2**24).int()),
        (of_the_least, LEAST),
    ],
    ids=["floats", "large floats", "integers", "int32", "the least integer"],
)
def test_numbers_that_float32_does_not_hold(
    function: Callable[[Tensor], Any], x: Tensor
) -> None:
    for ours, theirs in zip(_run(function, x), function(x), strict=True):
        torch.testing.assert_close(
            ours,
            theirs,
            rtol=1e-12 if x.is_floating_point() else 0,
            atol=1e-13,
            equal_nan=True,
        )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_sums_that_16_bits_do_not_hold(dtype: torch.dtype) -> None:
    x = MANY.to(dtype)
    for ours, theirs, exact in zip(
        _run(of_many, x), of_many(x), of_many(x.double()), strict=True
    ):
        assert ours.dtype == theirs.dtype
        error, eager = ((t.double() - exact).abs().max() for t in (ours, theirs))
        assert error <= 2 * eager + torch.finfo(dtype).eps * exact.abs().max()


def _run(function: Callable[[Tensor], Any], x: Tensor) -> Any:
    content = emit(lower(Function(function), (x,))).file.join()
    program = stock_runtime().load_program(content)
    return program.load_method("forward").execute([x])

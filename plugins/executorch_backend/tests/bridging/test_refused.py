"""Calls that ExecuTorch's XNNPACK partitioner takes, and that do not compile, or read
freed memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import delegraph
import pytest
import torch
from torch import nn
from torch.nn import functional

from ..support.judge import assert_equal, lower, stock_runtime
from ..support.programs import Function

pytestmark = pytest.mark.filterwarnings("ignore")
ROWS = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
SQUARE = torch.eye(4) + 2
ROW = torch.arange(4.0)


@pytest.fixture(autouse=True)
def _needs_executorch() -> None:
    stock_runtime()


def sums(x: torch.Tensor) -> Any:
    """A value and its clone, both of which the host needs."""
    y = x + 1
    z = y.clone()
    return z.cumsum(0) + y.cumsum(0), z * 2


def resized(x: torch.Tensor, scale: float, **kwargs: Any) -> torch.Tensor:
    image = x.repeat(2, 2)[None, None, :5, :7] * 2
    return functional.interpolate(image, scale_factor=scale, mode="bilinear", **kwargs)


REFUSED: dict[str, tuple[Callable[..., Any], dict[str, torch.Tensor], str]] = {
    "bias": (
        lambda x, w, b: functional.linear(x, w, b) + b,
        {"w": SQUARE, "b": ROW},
        "a weight of another call",
    ),
    "weight": (
        lambda x, w: x @ w + (x[:1] * w)[:3],
        {"w": SQUARE},
        "a weight of another call",
    ),
    "other operand": (
        lambda x, w: (w @ x.mT).mT + functional.linear(x, w),
        {"w": SQUARE},
        "a weight of another call",
    ),
    "rows of prelu": (lambda x, w: functional.prelu(x, w) + 1, {"w": ROW}, ""),
    "clone": (lambda x: (x + 1, (x + 1).clone(), (x * 2).clone()), {}, ""),
    "original and clone": (
        lambda x: (y := x + 1, y.clone(), y.clone()),
        {},
        "its original is a result",
    ),
    "clone for the host": (sums, {}, "its original is a result"),
    "gelu by tanh": (
        lambda x: functional.gelu(x * 3, approximate="tanh") + 1,
        {},
        "computes gelu exactly",
    ),
    "a scale factor": (
        lambda x: resized(x, 1.5),
        {},
        "not by the scale factor 1.5",
    ),
    "half of odd sizes": (
        lambda x: resized(x, 0.5),
        {},
        "not by the scale factor 0.5",
    ),
    "a scaled product": (
        lambda x, w, b: torch.addmm(b, x, w, beta=0.5, alpha=2),
        {"w": SQUARE, "b": ROW},
        "beta and alpha",
    ),
    "clamped by NaN": (
        lambda x: torch.clamp(x * 2, math.nan, 1.0),
        {},
        "ignores a bound that is NaN",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_operators_that_xnnpack_computes_wrongly_are_refused(
    name: str, tmp_path: Any
) -> None:
    function, weights, reason = REFUSED[name]
    module = Function(function, **weights)
    lowered = lower(module, (ROWS,), backends=["xnnpack"])
    assert (
        any(reason in refusal.reason for refusal in lowered.report.refusals)
        or not reason
    )
    lowered.save(tmp_path / "m.pte")
    expected = module(ROWS)
    for run in (lowered, delegraph.load(tmp_path / "m.pte", runtime="executorch")):
        assert_equal(
            torch.utils._pytree.tree_leaves(run(ROWS)),
            torch.utils._pytree.tree_leaves(expected),
        )


def test_a_parameter_that_is_written_and_not_read() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = self.second = nn.Parameter(torch.ones(4), requires_grad=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.first.add_(1.0)
            return self.second * x

    lowered = lower(Tied(), (ROWS,), backends=["xnnpack"])
    assert lowered.delegates
    assert_equal([lowered(ROWS), lowered(ROWS)], [2 * ROWS, 3 * ROWS])


def test_an_input_is_no_weight_that_is_packed() -> None:
    """Another call that reads it is delegated, though a product has it where weights
    are.
    """
    model = Function(lambda x, y: (x.mm(y), y * 2))
    lowered = lower(model, (ROWS, SQUARE), backends=["xnnpack"])
    assert "aten.mul.Tensor" in [
        op for row in lowered.report.delegates for op in row.operators
    ]
    assert_equal(lowered(ROWS, SQUARE), model(ROWS, SQUARE))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: functional.gelu(x),
        lambda x: resized(x, 2),
        lambda x: resized(x, 1.5, align_corners=True),
        lambda x: resized(x, 1.5, recompute_scale_factor=True),
        lambda x: torch.clamp(x, -1.0, None),
    ],
)
def test_operators_that_xnnpack_computes_correctly_are_delegated(
    function: Callable[..., Any],
) -> None:
    lowered = lower(Function(function), (ROWS,), backends=["xnnpack"])
    names = {op for row in lowered.report.delegates for op in row.operators}
    assert names & {
        "aten.gelu.default",
        "aten.upsample_bilinear2d.vec",
        "aten.clamp.default",
    }
    assert_equal([lowered(ROWS)], [function(ROWS)])

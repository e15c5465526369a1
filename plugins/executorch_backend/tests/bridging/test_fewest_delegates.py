"""Delegates of XNNPACK: few of them, and calls that XNNPACK computes by others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional

from ..support.both_runtimes import save_and_expect_right
from ..support.judge import lower
from ..support.programs import Function

pytestmark = pytest.mark.filterwarnings("ignore")
pytest.importorskip("executorch")
Calls = list[tuple[torch.Tensor, ...]]
BATCH = Dim("batch", min=1, max=9)
IMAGES = torch.randn(2, 4, 5, 6)
KERNEL = {"weight": torch.randn(6, 4, 3, 3)}
SLOPES = {"slopes": torch.tensor([0.3, -2.0, 0.0])}


def between(move: Callable[..., Any]) -> Callable[..., Any]:
    """Compute before and after a call that moves values."""

    def function(x: torch.Tensor) -> Any:
        moved = move(x.exp())
        if isinstance(moved, torch.Tensor):
            return moved.sin()
        return tuple(part.sin() for part in moved)

    return function


MOVES: dict[str, tuple[Callable[..., Any], torch.Tensor]] = {
    "select": (lambda x: x.select(1, 2), IMAGES),
    "select from the end": (lambda x: x[..., -2], IMAGES),
    "select a scalar": (lambda x: x[1], torch.randn(3)),
    "split": (lambda x: x.split([1, 3], 1), IMAGES),
    "split along the last dimension": (lambda x: x.split(4, -1), IMAGES),
    "part of a split": (lambda x: x.split([1, 3], 1)[1], IMAGES),
    "chunk": (lambda x: x.chunk(2, 2), IMAGES),
    "unbind": (lambda x: x.unbind(-1), IMAGES),
    "squeeze": (lambda x: x.squeeze(1), torch.randn(2, 1, 5)),
    "squeeze all": (lambda x: x.squeeze(), torch.randn(2, 1, 5, 1)),
    "squeeze two": (lambda x: x.squeeze((1, 3)), torch.randn(1, 1, 5, 1)),
    "squeeze to a scalar": (lambda x: x.squeeze(0), torch.randn(1)),
    "unsqueeze": (lambda x: x.unsqueeze(1), IMAGES),
    "unsqueeze a scalar": (lambda x: x.unsqueeze(0), torch.randn(())),
}


@pytest.mark.parametrize("name", MOVES)
def test_moves_between_computing_calls_do_not_cut_a_delegate(
    name: str, tmp_path: Path
) -> None:
    move, x = MOVES[name]
    module = Function(between(move))
    lowered = lower(module, (x,), backends=["xnnpack"])
    assert (len(lowered.delegates), lowered.host_operators) == (1, 0)
    save_and_expect_right(lowered, module, (x,), folder=tmp_path, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["select", "split", "squeeze"])
def test_moves_of_images_in_another_layout_are_right(name: str, tmp_path: Path) -> None:
    """XNNPACK computes convolutions with the channels last."""

    def function(x: torch.Tensor, weight: torch.Tensor) -> Any:
        images = functional.conv2d(x, weight)
        moved = images[:1] if name == "squeeze" else images
        parts = {
            "select": lambda: [moved[:, 1]],
            "split": lambda: moved.split(4, 1),
            "squeeze": lambda: [moved.squeeze(0)],
        }[name]()
        return tuple(part.sin() for part in parts)

    module = Function(function, **KERNEL)
    lowered = lower(module, (IMAGES,), backends=["xnnpack"])
    assert (len(lowered.delegates), lowered.host_operators) == (1, 0)
    save_and_expect_right(
        lowered, module, (IMAGES,), folder=tmp_path, rtol=1e-4, atol=1e-4
    )


def prelu(x: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
    return functional.prelu(x - 0.5, slopes) * 2


DYNAMIC: dict[str, tuple[nn.Module, Calls, int, int]] = {
    "squeeze": (
        Function(between(lambda x: x.squeeze(1))),
        [(torch.randn(n, 1, 5),) for n in (3, 1, 9)],
        1,
        0,
    ),
    "unsqueeze": (
        Function(between(lambda x: x.unsqueeze(1))),
        [(torch.randn(n, 5),) for n in (3, 1, 9)],
        1,
        0,
    ),
    "prelu of rows": (
        Function(prelu, **SLOPES),
        [(torch.randn(n, 3),) for n in (3, 1, 9)],
        1,
        0,
    ),
    "prelu of sequences": (
        Function(prelu, **SLOPES),
        [(torch.randn(n, 3, 4),) for n in (3, 1, 9)],
        1,
        0,
    ),
    # a delegate takes no numbers, and this expand takes the size of the batch
    "expand": (
        Function(between(lambda x: x.expand(x.shape[0], -1, 4))),
        [(torch.randn(n, 2, 4),) for n in (3, 1, 9)],
        2,
        1,
    ),
    # XNNPACK has no slices of dynamic sizes
    "select": (
        Function(between(lambda x: x.select(1, 2))),
        [(torch.randn(n, 4, 5),) for n in (3, 1, 9)],
        2,
        1,
    ),
    "split": (
        Function(between(lambda x: x.split(2, 1))),
        [(torch.randn(n, 4, 5),) for n in (3, 1, 9)],
        2,
        1,
    ),
}


@pytest.mark.parametrize("name", DYNAMIC)
def test_moves_of_dynamic_sizes_are_right_at_their_borders(
    name: str, tmp_path: Path
) -> None:
    module, calls, delegates, host = DYNAMIC[name]
    lowered = lower(module, calls[0], (({0: BATCH},),), backends=["xnnpack"])
    assert (len(lowered.delegates), lowered.host_operators) == (delegates, host)
    save_and_expect_right(
        lowered, module, *calls, folder=tmp_path, rtol=1e-5, atol=1e-5
    )


def test_an_expand_to_a_dynamic_size_is_no_failure_of_executorch() -> None:
    module, calls, _, _ = DYNAMIC["expand"]
    lowered = lower(module, calls[0], (({0: BATCH},),), backends=["xnnpack"])
    (refusal,) = lowered.report.refusals
    assert "fails" not in refusal.reason


def test_two_dynamic_sizes_are_not_viewed(tmp_path: Path) -> None:
    module = Function(between(lambda x: x.unsqueeze(1)))
    shapes = (({0: BATCH, 1: Dim("length", min=2, max=7)},),)
    calls = [(torch.randn(n, m),) for n, m in ((3, 4), (1, 2), (9, 7))]
    lowered = lower(module, calls[0], shapes, backends=["xnnpack"])
    assert (len(lowered.delegates), lowered.host_operators) == (2, 1)
    save_and_expect_right(
        lowered, module, *calls, folder=tmp_path, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(
    "sizes", [(4, 3), (4, 3, 5), (4, 3, 5, 2), (2, 3, 5, 2, 3)], ids=str
)
def test_prelu_of_any_rank_is_delegated(sizes: tuple[int, ...], tmp_path: Path) -> None:
    module = Function(prelu, **SLOPES)
    x = torch.randn(sizes)
    lowered = lower(module, (x,), backends=["xnnpack"])
    assert (len(lowered.delegates), lowered.host_operators) == (1, 0)
    save_and_expect_right(lowered, module, (x,), folder=tmp_path, rtol=1e-5, atol=1e-5)


def test_splits_into_many_parts_stay_on_the_host() -> None:
    module = Function(between(lambda x: x.split([1, 2, 1], 1)))
    lowered = lower(module, (IMAGES,), backends=["xnnpack"])
    assert (len(lowered.delegates), lowered.host_operators) == (2, 1)


BORDERS: dict[str, Callable[..., Any]] = {
    "before": lambda x: x.select(1, 2).sin(),
    "after": lambda x: x.sin().select(1, 2),
}


@pytest.mark.parametrize("name", BORDERS)
def test_moves_that_cut_nothing_stay_on_the_host(name: str) -> None:
    lowered = lower(Function(BORDERS[name]), (IMAGES,), backends=["xnnpack"])
    assert (len(lowered.delegates), lowered.host_operators) == (1, 1)


HOST: dict[str, Callable[..., Any]] = {
    "view": lambda x: x.cumsum(0).view(-1).cumsum(0),
    "select": lambda x: x.cumsum(0)[1].cumsum(0),
    "unbind": lambda x: tuple(part.cumsum(0) for part in x.unbind(0)),
}


@pytest.mark.parametrize("name", HOST)
def test_moves_between_calls_of_the_host_are_no_delegate(name: str) -> None:
    lowered = lower(Function(HOST[name]), (IMAGES,), backends=["xnnpack"])
    assert not lowered.delegates


def test_calls_of_integers_and_doubles_stay_on_the_host() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x.unbind(0)[1] + 1, y.exp().squeeze(0).sin()

    inputs = torch.arange(6).view(2, 3), torch.randn(1, 3).double()
    lowered = lower(Function(function), inputs, backends=["xnnpack"])
    assert not lowered.delegates


def test_attention_is_one_delegate(tmp_path: Path) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(x.exp(), 2 * x, x.sin())

    module = Function(function)
    lowered = lower(module, (IMAGES,), backends=["xnnpack"])
    assert (len(lowered.delegates), lowered.host_operators) == (1, 0)
    save_and_expect_right(
        lowered, module, (IMAGES,), folder=tmp_path, rtol=1e-4, atol=1e-4
    )


def test_overloads_for_numbers_are_delegated(tmp_path: Path) -> None:
    aten = torch.ops.aten

    def function(x: torch.Tensor) -> Any:
        scaled = aten.add.Scalar(aten.mul.Scalar(x, 3), 2)
        return aten.div.Scalar(aten.sub.Scalar(scaled, 0.5), 7)

    module = Function(function)
    lowered = lower(module, (IMAGES,), backends=["xnnpack"])
    assert (len(lowered.delegates), lowered.host_operators) == (1, 0)
    save_and_expect_right(
        lowered, module, (IMAGES,), folder=tmp_path, rtol=1e-5, atol=1e-5
    )


def test_a_number_with_a_factor_stays_on_the_host() -> None:
    module = Function(lambda x: torch.ops.aten.add.Scalar(x.exp(), 2, 3))
    lowered = lower(module, (IMAGES,), backends=["xnnpack"])
    assert (len(lowered.delegates), lowered.host_operators) == (1, 1)
    torch.testing.assert_close(lowered(IMAGES), module(IMAGES))

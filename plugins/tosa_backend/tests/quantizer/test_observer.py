"""SquaredErrorObserver chooses the limits with the smallest squared error."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from delegraph_tosa.quantizer.observer import SquaredErrorObserver

SETTINGS = {
    "dtype": torch.int8,
    "quant_min": -128,
    "quant_max": 127,
    "qscheme": torch.per_tensor_affine,
    "eps": 2**-16,
}


def observe(*batches):
    observer = SquaredErrorObserver(**SETTINGS)
    for batch in batches:
        assert observer(batch) is batch
    return observer


def mean_squared_error(x, low, high):
    """The mean squared error of ``x`` in 256 steps from ``low`` to ``high``."""
    scale = (high - low) / 255
    steps = torch.fake_quantize_per_tensor_affine(
        x, scale, round(-128 - low / scale), -128, 127
    )
    return (steps - x).square().mean().item()


def chosen_limits(observer):
    """Return the lowest and highest number that the chosen scale can express."""
    scale, zero_point = (v.item() for v in observer.calculate_qparams())
    return (-128 - zero_point) * scale, (127 - zero_point) * scale


DRAWN = {
    "normal": lambda: torch.randn(20_000),
    "rectified": lambda: torch.randn(20_000).relu(),
    "one side": lambda: torch.randn(20_000).exp(),
    "both sides": lambda: (
        torch.randn(20_000).exp() * torch.where(torch.rand(20_000) < 0.2, -0.3, 1.0)
    ),
    "even": lambda: torch.rand(20_000) - 0.1,
    "negative": lambda: -torch.rand(20_000).square(),
    "outlier": lambda: torch.cat([torch.randn(20_000), torch.tensor([40.0])]),
    "small": lambda: torch.randn(20_000) * 1e-3,
}


@pytest.mark.parametrize("kind", DRAWN)
def test_chosen_limits_are_close_to_the_best(kind):
    torch.manual_seed(0)
    x = DRAWN[kind]()
    low = min(x.min().item(), 0.0)
    high = max(x.max().item(), 0.0)
    shares = [k / 24 for k in range(3, 25)]
    lows = [low * share for share in shares] if low else [0]
    highs = [high * share for share in shares] if high else [0]
    best_error = min(mean_squared_error(x, *both) for both in product(lows, highs))

    chosen = chosen_limits(observe(*x.split(7_000)))

    chosen_error = mean_squared_error(x, *chosen)
    assert chosen_error <= 1.06 * best_error
    minmax_error = mean_squared_error(x, low, high)
    assert chosen_error <= 1.02 * minmax_error


def test_rare_large_values_are_clipped():
    low, high = chosen_limits(
        observe(torch.cat([torch.randn(200_000), torch.tensor([9.0])]))
    )
    assert -5 < low < -3
    assert 3 < high < 8


def test_batches_of_growing_range_give_the_limits_of_all_at_once():
    """The histogram doubles its range for larger values, which may cost one bin."""
    batches = [torch.rand(5_000) * 2.0**k for k in (-9, 3, 0, -2, 4)]
    one = observe(torch.cat(batches))
    many = observe(*batches)
    assert chosen_limits(many) == pytest.approx(chosen_limits(one), rel=1e-2)
    assert many.counts.sum() == pytest.approx(25_000, abs=1)


def test_values_far_beyond_the_histogram_replace_its_range():
    low, high = chosen_limits(
        observe(torch.full((10,), 1e-20), torch.tensor([1.0, -1.0]))
    )
    assert low == pytest.approx(-1, rel=0.02)
    assert high == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize(
    "x",
    [
        *(
            torch.zeros(4),
            torch.full((3,), 2.5),
            torch.full((3,), -2.5),
            torch.tensor([-0.0]),
            torch.tensor(1.5),
        ),
        *(
            torch.tensor([3e38, -1.0]),
            torch.tensor([1e-40, -1e-40]),
            torch.tensor([1.0, math.inf]),
        ),
    ],
    ids=str,
)
def test_values_without_histogram_use_minimum_and_maximum(x):
    from torchao.quantization.pt2e import MinMaxObserver

    plain = MinMaxObserver(**SETTINGS)
    plain(x)
    for chosen, all_of_it in zip(
        observe(x).calculate_qparams(), plain.calculate_qparams(), strict=True
    ):
        assert torch.equal(chosen, all_of_it)


def test_empty_tensors_change_no_limits():
    x = torch.randn(100)
    assert chosen_limits(
        observe(torch.empty(0), x, torch.empty(0, 3))
    ) == chosen_limits(observe(x))


def test_state_dictionaries_restore_the_histogram():
    first = torch.randn(5_000)
    second = torch.randn(5_000) * 50
    whole = observe(first, second)
    saved = observe(first)
    loaded = SquaredErrorObserver(**SETTINGS)
    loaded.load_state_dict(saved.state_dict())
    assert chosen_limits(loaded) == chosen_limits(saved)
    loaded(second)
    assert chosen_limits(loaded) == chosen_limits(whole)

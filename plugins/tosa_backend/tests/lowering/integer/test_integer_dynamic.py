"""Quantized operators on tensors of dynamic size compute what eager torch does, or are
refused.
"""

from __future__ import annotations

import delegraph
import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim

from ...support.quantized_cases import quantized_decomposed, quantized_row

LOWERED = {
    "mean": lambda x: x.mean(0),
    "mean-of-sum": lambda x: (x + x.relu()).mean((0, 1)),
    "sum": lambda x: x.sum(),
    "norm": lambda x: x.norm(dim=0),
    "softmax": lambda x: x.softmax(0),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
    "global-average": lambda x: F.adaptive_avg_pool2d(x[None, None], 1),
    "adaptive-maximum": lambda x: F.adaptive_max_pool1d(x.mT[None], 2),
    "adaptive-maximum-of-sum": lambda x: F.adaptive_max_pool1d((x + x).mT[None], 2),
    "sum-reshaped": lambda x: (x + x.relu()).flatten(),
}
REFUSED = {
    "variance": lambda x: x.var(0),
    "adaptive-average": lambda x: F.adaptive_avg_pool2d(x[None, None], (2, 2)),
}


def lower_for_dynamic_rows(function, rows: Dim):
    """Return the quantized module of a function, and the module lowered."""
    module, inputs = quantized_row(function, [(9, 5)], torch.int8, 0)
    program = torch.export.export(module, tuple(inputs), dynamic_shapes=(({0: rows},),))
    lowered = delegraph.lower(
        program, backends=["tosa"], options={"tosa": {"spec": "TOSA-1.1+INT+shape"}}
    )
    return module, lowered


def assert_close_for_any_number_of_rows(module, lowered):
    """Results may differ by one step of the quantization."""
    for rows in (9, 4, 31):
        generator = torch.Generator().manual_seed(rows)
        x = torch.randint(-128, 128, (rows, 5), dtype=torch.int8, generator=generator)
        assert (lowered(x).int() - module(x).int()).abs().max() <= 1


@pytest.mark.parametrize("name", LOWERED)
def test_integer_rules_take_any_number_of_rows(name):
    module, lowered = lower_for_dynamic_rows(LOWERED[name], Dim("n", min=3, max=40))

    assert not lowered.report.refusals
    assert_close_for_any_number_of_rows(module, lowered)


@pytest.mark.parametrize("name", REFUSED)
def test_operators_that_need_the_number_of_rows_run_on_the_host(name):
    module, lowered = lower_for_dynamic_rows(REFUSED[name], Dim("n", min=3, max=40))

    reasons = [refusal.reason for refusal in lowered.report.refusals]
    assert any("is known at run time only" in reason for reason in reasons)
    assert_close_for_any_number_of_rows(module, lowered)


SCALE = (0.05, 3, -128, 127, torch.int8)
"""Scale, zero point, limits and dtype of a quantization."""


def quantized(x):
    return quantized_decomposed.dequantize_per_tensor(
        quantized_decomposed.quantize_per_tensor(x, *SCALE), *SCALE
    )


class Regrouped(torch.nn.Module):
    """Doubles the number of rows between two quantizations."""

    def forward(self, x):
        return quantized(quantized(quantized(x).relu()).reshape(x.shape[0] * 2, -1))


@pytest.mark.parametrize("spec", ["TOSA-1.1+INT+shape", "TOSA-1.1+FP+INT+shape"])
def test_reshape_between_quantizations_uses_sizes_of_integer_tensors(spec):
    """The program reads the size from a float tensor, which the delegate lacks."""
    x = torch.linspace(-7, 7, 20).reshape(5, 4)
    program = torch.export.export(
        Regrouped(), (x[:3],), dynamic_shapes=({0: Dim("n", min=2, max=8)},)
    )

    lowered = delegraph.lower(
        program, backends=["tosa"], options={"tosa": {"spec": spec}}
    )

    assert len(lowered.delegates) == 1
    refused_operators = [refusal.operator for refusal in lowered.report.refusals]
    assert not any("reshape" in operator for operator in refused_operators)
    assert torch.equal(lowered(x), Regrouped()(x))


def test_means_over_unbounded_sizes_are_refused():
    """The sum of too many int8 numbers does not fit 32 bits."""
    _, lowered = lower_for_dynamic_rows(lambda x: x.mean(0), Dim.DYNAMIC)

    reasons = [refusal.reason for refusal in lowered.report.refusals]
    text = "too many for 32 bits; torch.export.Dim takes a max"
    assert any(text in reason for reason in reasons)

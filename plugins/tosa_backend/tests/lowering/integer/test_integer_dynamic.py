"""Quantized images and rows of dynamic size: what the integer rules take is right, the
rest is refused.
"""

from __future__ import annotations

import delegraph
import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim

from ...support.quantized_cases import quantized_decomposed, quantized_row

REFUSED = "is known at run time only"
CASES = {
    "mean": (lambda x: x.mean(0), None),
    "mean-of-sum": (lambda x: (x + x.relu()).mean((0, 1)), None),
    "sum": (lambda x: x.sum(), None),
    "norm": (lambda x: x.norm(dim=0), None),
    "softmax": (lambda x: x.softmax(0), None),
    "attention": (
        lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
        None,
    ),
    "global-average": (lambda x: F.adaptive_avg_pool2d(x[None, None], 1), None),
    "variance": (lambda x: x.var(0), REFUSED),
    "adaptive-average": (
        lambda x: F.adaptive_avg_pool2d(x[None, None], (2, 2)),
        REFUSED,
    ),
    "adaptive-maximum": (lambda x: F.adaptive_max_pool1d(x.mT[None], 2), None),
    "adaptive-maximum-of-sum": (
        lambda x: F.adaptive_max_pool1d((x + x).mT[None], 2),
        None,
    ),
    "sum-reshaped": (lambda x: (x + x.relu()).flatten(), None),
}


@pytest.mark.parametrize("name", CASES)
def test_rows_of_any_number(name):
    function, reason = CASES[name]
    module, inputs = quantized_row(function, [(9, 5)], torch.int8, 0)
    program = torch.export.export(
        module, tuple(inputs), dynamic_shapes=(({0: Dim("n", min=3, max=40)},),)
    )
    lowered = delegraph.lower(
        program, backends=["tosa"], options={"tosa": {"spec": "TOSA-1.1+INT+shape"}}
    )
    if reason is None:
        assert not lowered.report.refusals
    else:
        assert any(reason in refusal.reason for refusal in lowered.report.refusals)
    for count in (9, 4, 31):
        x = torch.randint(
            -128,
            128,
            (count, 5),
            dtype=torch.int8,
            generator=torch.Generator().manual_seed(count),
        )
        assert (lowered(x).int() - module(x).int()).abs().max() <= 1


SCALE = 0.05, 3, -128, 127, torch.int8


def quantized(x):
    return quantized_decomposed.dequantize_per_tensor(
        quantized_decomposed.quantize_per_tensor(x, *SCALE), *SCALE
    )


class Regrouped(torch.nn.Module):
    def forward(self, x):
        return quantized(quantized(quantized(x).relu()).reshape(x.shape[0] * 2, -1))


@pytest.mark.parametrize("spec", ["TOSA-1.1+INT+shape", "TOSA-1.1+FP+INT+shape"])
def test_a_size_of_floats_is_that_of_their_integers(spec):
    x = torch.linspace(-7, 7, 20).reshape(5, 4)
    program = torch.export.export(
        Regrouped(), (x[:3],), dynamic_shapes=({0: Dim("n", min=2, max=8)},)
    )
    lowered = delegraph.lower(
        program, backends=["tosa"], options={"tosa": {"spec": spec}}
    )
    assert len(lowered.delegates) == 1
    assert not [
        refusal for refusal in lowered.report.refusals if "reshape" in refusal.operator
    ]
    assert torch.equal(lowered(x), Regrouped()(x))


def test_sums_of_too_many_elements_are_refused():
    module, inputs = quantized_row(lambda x: x.mean(0), [(9, 5)], torch.int8, 0)
    program = torch.export.export(
        module, tuple(inputs), dynamic_shapes=(({0: Dim.DYNAMIC},),)
    )
    lowered = delegraph.lower(
        program, backends=["tosa"], options={"tosa": {"spec": "TOSA-1.1+INT+shape"}}
    )
    assert any(
        "too many for 32 bits; torch.export.Dim takes a max" in refusal.reason
        for refusal in lowered.report.refusals
    )

"""Operators that an NPU lacks are refused with a reason, or lowered to others."""

import re
from typing import Any, NamedTuple

import delegraph
import delegraph_ethosu.hardware  # noqa: F401  # registers the targets u55 and u85
import delegraph_tosa
import pytest
import torch
import torch.nn.functional as F

U55 = "TOSA-1.0+INT+int16+int4+u55"
U85 = "TOSA-1.0+INT+int16+int4+u85"


class Model(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


class Outcome(NamedTuple):
    """A lowered program, with the inputs that it was quantized for."""

    lowered: Any
    inputs: tuple[torch.Tensor, ...]

    def refusals(self):
        """Return the reasons for which the NPU refused calls.

        Calls at the border, which convert between floats and integers, are left out.
        """
        reasons = [str(row.reason) for row in self.lowered.report.refusals]
        return [reason for reason in reasons if "Ethos-U" in reason]

    def operators(self):
        """Return the TOSA operators of all delegates."""
        operators = []
        for delegate in self.lowered.delegates:
            file = bytes(delegate.processed_bytes)
            operators += delegraph_tosa.read(file).operators
        return operators


def quantize_and_lower(function, spec, *shapes):
    """Quantize a function or module for these shapes, and lower it to a TOSA target."""
    torch.manual_seed(0)
    inputs = tuple(torch.randn(shape) for shape in shapes)
    module = function if isinstance(function, torch.nn.Module) else Model(function)
    program = delegraph.quantize(module.eval(), [inputs], backend="ethosu")
    options = {"tosa": {"spec": spec}}
    lowered = delegraph.lower(program, backends=["tosa"], options=options)
    return Outcome(lowered, inputs)


class Refused(NamedTuple):
    """A function that a U55 cannot compute whole."""

    function: Any
    shapes: list[tuple[int, ...]]
    reason: str


REFUSED = {
    "index": Refused(
        lambda x: x[torch.tensor([0, 2, 1])] + x[:3] * (x > 0)[:3],
        [(4, 8)],
        "do not support GATHER",
    ),
    "largest": Refused(
        lambda x: x.argmax(1).to(torch.int32),
        [(1, 4, 8, 8)],
        "REDUCE_MAX of int8 or int16, not of int32|do not support EQUAL",
    ),
    "bilinear": Refused(
        lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"),
        [(1, 3, 5, 7)],
        "do not support GATHER",
    ),
    "stride": Refused(
        lambda x: F.max_pool2d(x, 4, 4), [(1, 4, 16, 16)], "do not support GATHER"
    ),
    "dilated": Refused(
        torch.nn.Conv3d(2, 4, 3), [(1, 2, 4, 4, 4)], "smaller kernel than"
    ),
    "product": Refused(
        lambda x, y: torch.where(x > y, x, y),
        [(2, 3), (2, 3)],
        "do not support GREATER",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_operators_missing_on_u55_are_refused(name):
    function, shapes, reason = REFUSED[name]

    reasons = quantize_and_lower(function, U55, *shapes).refusals()

    assert any(re.search(reason, text) for text in reasons), reasons


@pytest.mark.parametrize("name", REFUSED)
def test_operators_missing_on_u55_run_on_u85(name):
    function, shapes, _ = REFUSED[name]

    assert quantize_and_lower(function, U85, *shapes).refusals() == []


def test_a_choice_by_a_computed_condition_is_refused_on_u55():
    mask = torch.ones(8, 8, dtype=torch.bool).tril()

    outcome = quantize_and_lower(
        lambda x: torch.where(mask & (x > 0), x + x, x), U55, (8, 8)
    )

    reasons = outcome.refusals()
    assert any("do not support SELECT" in text for text in reasons), reasons
    # the other calls are delegated, and none are given back by the compiler
    assert outcome.lowered.delegates
    assert not outcome.lowered.report.given_back


class Supported(NamedTuple):
    """A function that a U55 computes whole, without an operator that it lacks."""

    function: Any
    shapes: list[tuple[int, ...]]
    missing_operator: str


KNOWN_CONDITION = torch.ones(8, 8, dtype=torch.bool).tril()
SUPPORTED = {
    "nearest": Supported(
        lambda x: F.interpolate(x, scale_factor=2.0), [(1, 3, 5, 7)], "GATHER"
    ),
    "transposed": Supported(
        torch.nn.ConvTranspose2d(3, 4, 2, 2), [(1, 3, 5, 7)], "CONV3D"
    ),
    "norm": Supported(lambda x: F.layer_norm(x, (8,)), [(2, 3, 8)], "SELECT"),
    "logarithm": Supported(
        lambda x: torch.log_softmax(x, -1), [(2, 3, 8)], "BITWISE_AND"
    ),
    "causal": Supported(
        lambda *x: F.scaled_dot_product_attention(*x, is_causal=True),
        [(1, 2, 5, 8)] * 3,
        "SELECT",
    ),
    "choice by a constant": Supported(
        lambda x: torch.where(KNOWN_CONDITION, x + x, x * 3), [(8, 8)], "SELECT"
    ),
}
SOFTMAX = Supported(lambda x: torch.softmax(x, -1), [(2, 3, 8)], "CAST of int32")


def assert_has_no_cast_of_int32(operators):
    for operator in operators:
        if operator.name == "CAST":
            assert str(operator.inputs[0].dtype) != "int32"


@pytest.mark.parametrize("name", SUPPORTED)
def test_rules_avoid_operators_that_a_u55_lacks(name):
    function, shapes, missing_operator = SUPPORTED[name]

    outcome = quantize_and_lower(function, U55, *shapes)

    assert outcome.refusals() == []
    assert missing_operator not in {op.name for op in outcome.operators()}
    assert_has_no_cast_of_int32(outcome.operators())


def test_softmax_avoids_casts_of_int32_on_u55():
    outcome = quantize_and_lower(SOFTMAX.function, U55, *SOFTMAX.shapes)

    assert outcome.refusals() == []
    assert_has_no_cast_of_int32(outcome.operators())


# without "causal": for few positions, its weights on a U55 are coarser
@pytest.mark.parametrize("name", ["softmax", *sorted(SUPPORTED.keys() - {"causal"})])
def test_rules_for_u55_compute_the_same_integers(name):
    function, shapes, _ = SOFTMAX if name == "softmax" else SUPPORTED[name]

    on_u55 = quantize_and_lower(function, U55, *shapes)

    anywhere = quantize_and_lower(function, "TOSA-1.0+INT+int16+int4", *shapes)
    expected = anywhere.lowered(*anywhere.inputs)
    assert torch.equal(on_u55.lowered(*on_u55.inputs), expected)

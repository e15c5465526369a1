"""What the NPUs lack is refused before partitions are made, with the reason; rules
choose what there is.
"""

import re

import delegraph
import delegraph_ethosu.hardware  # noqa: F401  # makes the words of the targets
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


def quantize_and_lower(function, spec, *shapes):
    """The function, quantized and lowered to a target; and the reasons for what is not,
    borders left out.
    """
    torch.manual_seed(0)
    inputs = tuple(torch.randn(shape) for shape in shapes)
    module = function if isinstance(function, torch.nn.Module) else Model(function)
    program = delegraph.quantize(module.eval(), [inputs], backend="ethosu")
    result = delegraph.lower(
        program, backends=["tosa"], options={"tosa": {"spec": spec}}
    )
    rows = result.report.refusals
    return (
        result,
        [reason for reason in (str(row.reason) for row in rows) if "Ethos-U" in reason],
        inputs,
    )


def operators_of(result):
    files = (bytes(delegate.processed_bytes) for delegate in result.delegates)
    return [
        operator for file in files for operator in delegraph_tosa.read(file).operators
    ]


REFUSED = {
    "index": (
        lambda x: x[torch.tensor([0, 2, 1])] + x[:3] * (x > 0)[:3],
        [(4, 8)],
        "do not support GATHER",
    ),
    "largest": (
        lambda x: x.argmax(1).to(torch.int32),
        [(1, 4, 8, 8)],
        "REDUCE_MAX of int8 or int16, not of int32|do not support EQUAL",
    ),
    "bilinear": (
        lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"),
        [(1, 3, 5, 7)],
        "do not support GATHER",
    ),
    "stride": (
        lambda x: F.max_pool2d(x, 4, 4),
        [(1, 4, 16, 16)],
        "do not support GATHER",
    ),
    "dilated": (torch.nn.Conv3d(2, 4, 3), [(1, 2, 4, 4, 4)], "smaller kernel than"),
    "product": (
        lambda x, y: torch.where(x > y, x, y),
        [(2, 3), (2, 3)],
        "do not support GREATER",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_operators_missing_on_u55_are_refused_and_run_on_u85(name):
    function, shapes, reason = REFUSED[name]
    _, why, _ = quantize_and_lower(function, U55, *shapes)
    assert any(re.search(reason, text) for text in why), why
    assert quantize_and_lower(function, U85, *shapes)[1] == []


def test_boolean_constants_as_outputs_are_refused_on_u55():
    mask = torch.ones(8, 8, dtype=torch.bool)
    result, why, _ = quantize_and_lower(
        lambda x: torch.where(mask.tril() & (x > 0), x + x, x), U55, (8, 8)
    )
    assert result.delegates
    assert not result.report.given_back
    assert any("do not support SELECT" in text for text in why), why


CHOICE = torch.ones(8, 8, dtype=torch.bool).tril()
TAKEN = {
    "softmax": (lambda x: torch.softmax(x, -1), [(2, 3, 8)], "CAST"),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2.0), [(1, 3, 5, 7)], "GATHER"),
    "transposed": (torch.nn.ConvTranspose2d(3, 4, 2, 2), [(1, 3, 5, 7)], "CONV3D"),
    "norm": (lambda x: F.layer_norm(x, (8,)), [(2, 3, 8)], "SELECT"),
    "logarithm": (lambda x: torch.log_softmax(x, -1), [(2, 3, 8)], "BITWISE_AND"),
    "causal": (
        lambda *x: F.scaled_dot_product_attention(*x, is_causal=True),
        [(1, 2, 5, 8)] * 3,
        "SELECT",
    ),
    "known choice": (lambda x: torch.where(CHOICE, x + x, x * 3), [(8, 8)], "SELECT"),
}


@pytest.mark.parametrize("name", TAKEN)
def test_rules_choose_operators_that_a_u55_supports(name):
    function, shapes, without = TAKEN[name]
    result, why, inputs = quantize_and_lower(function, U55, *shapes)
    assert why == []
    for operator in operators_of(result):
        if operator.name == "CAST":
            assert str(operator.inputs[0].dtype) != "int32"
        assert operator.name != without or without == "CAST"
    other, _, _ = quantize_and_lower(function, "TOSA-1.0+INT+int16+int4", *shapes)
    if name != "causal":  # few positions have coarser weights there: test_integers.py
        assert torch.equal(result(*inputs), other(*inputs))

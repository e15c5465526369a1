"""What an engine has no values for, and integers that it computes otherwise."""

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # the operators quantized_decomposed
from delegraph_openvino.value_check import ValueCheck, dequantized_parts
from torch.export import Dim

CHECK = ValueCheck(
    "Acme", [torch.float32, torch.int32, torch.int64, torch.int8, torch.bool]
)
LONG, INT, BYTE = (
    torch.tensor([1, 2], dtype=dtype)
    for dtype in (torch.int64, torch.int32, torch.int8)
)
X = torch.ones(2, 3)
HALF = torch.ones(2, dtype=torch.float16)
q = torch.ops.quantized_decomposed


class Function(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def last_call(function, *inputs, sizes=None):
    exported = torch.export.export(
        Function(function), inputs, dynamic_shapes=sizes and {"inputs": sizes}
    )
    calls = [
        node
        for node in exported.graph.nodes
        if isinstance(node.target, torch._ops.OpOverload)
    ]
    return [
        n
        for n in calls
        if "assert" not in str(n.target) and "sym_" not in str(n.target)
    ][-1]


def quantized(x):
    return q.quantize_per_tensor(x, 0.5, 0, -128, 127, torch.int8)


TAKEN = {
    "floats": (lambda x: x.sin(), X),
    "an index": (lambda x, ids: x[ids - ids], X, LONG[:1] * 0),
    "a place": (lambda x: x.argmax(), X),
    "integers that move": (lambda ids: ids.flip(0), INT),
    "a wider integer": (lambda ids: ids.to(torch.int32), BYTE),
    "integers as floats": (lambda ids: ids.float(), INT),
    "a comparison of integers": (lambda ids: ids > 3, INT),
    "attention that drops nothing": (
        lambda x: torch.nn.functional.scaled_dot_product_attention(x, x, x),
        X,
    ),
    "quantized": (quantized, X),
    "dequantized": (
        lambda x: q.dequantize_per_tensor(x, 0.5, 0, -128, 127, torch.int8),
        BYTE,
    ),
}
REFUSED = {
    "half": (
        lambda x: x.sin(),
        HALF,
        "x is torch.float16, which Acme does not compute",
    ),
    "double made": (lambda x: x.double(), X, "torch.float64"),
    "random": (
        lambda x: torch.nn.functional.dropout(x, 0.5, True),
        X,
        "random numbers",
    ),
    "attention that drops": (
        lambda x: torch.nn.functional.scaled_dot_product_attention(x, x, x, None, 0.1),
        X,
        "random",
    ),
    "int64": (lambda ids: ids + ids, LONG, "int64 in 32 bits"),
    "int64 of floats": (lambda x: x.to(torch.int64), X, "int64 in 32 bits"),
    "a sum of integers": (lambda ids: ids + ids, INT, "in torch they wrap"),
    "a narrower integer": (lambda ids: ids.to(torch.int8), INT, "in torch they wrap"),
    "a large literal": (lambda ids: ids > 2**40, INT, str(2**40)),
    "a size of values": (lambda x: x.nonzero(), X.bool(), "depends on elements"),
}


@pytest.mark.parametrize("name", TAKEN)
def test_values_that_the_engine_has(name):
    function, *inputs = TAKEN[name]
    assert CHECK(last_call(function, *inputs)) is None


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_values_are_refused(name):
    function, given, said = REFUSED[name]
    assert said in CHECK(last_call(function, given)).replace("inputs_0", "x")


def test_sizes_of_inputs_may_vary():
    assert CHECK(last_call(lambda x: x.sin(), X, sizes=({0: Dim("n")},))) is None


def test_dequantized_parts_need_all_parts_of_a_concatenation():
    def function(x, y):
        return torch.cat([q.dequantize_per_tensor(x, 0.5, 0, -128, 127, torch.int8), y])

    assert dequantized_parts(last_call(function, BYTE, torch.ones(2))) == []
    both = last_call(
        lambda x: torch.cat(
            [q.dequantize_per_tensor(x, 0.5, 0, -128, 127, torch.int8)] * 2
        ),
        BYTE,
    )
    assert len(dequantized_parts(both)) == 2
    assert dequantized_parts(both.args[0][0]) == []

"""Calls that a compiler needs together are found as groups."""

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # the operators quantized_decomposed
from delegraph_programs.inseparable_calls import inseparable_groups

quantized = torch.ops.quantized_decomposed
RANGE = (-128, 127, torch.int8)


def quantize(x):
    return quantized.quantize_per_tensor.default(x, 0.1, 0, *RANGE)


def dequantize(x):
    return quantized.dequantize_per_tensor.default(x, 0.1, 0, *RANGE)


def by_scale(x, operator, scale, zero):
    return operator(x, scale, zero, *RANGE)


def layers(x):
    return dequantize(quantize(dequantize(quantize(x.relu() + 1)).sigmoid() * 2))


def halves(x):
    one, other = x.split(2)
    return one + other


def scaled_at_run_time(x):
    scale, zero = quantized.choose_qparams.tensor(x, -128, 127, 1e-5, torch.int8)
    made = by_scale(x, quantized.quantize_per_tensor.tensor, scale, zero)
    restored = by_scale(made, quantized.dequantize_per_tensor.tensor, scale, zero)
    return torch.relu(restored).exp()


def scaled_at_run_time_and_elsewhere(x):
    scale, zero = quantized.choose_qparams.tensor(x, -128, 127, 1e-5, torch.int8)
    made = by_scale(x, quantized.quantize_per_tensor.tensor, scale, zero)
    twice = scale * 2  # needs the group, which needs it
    restored = by_scale(made, quantized.dequantize_per_tensor.tensor, scale, zero)
    return torch.relu(restored + twice)


CASES = {
    layers: "relu | add quantize_per_tensor | dequantize_per_tensor sigmoid |"
    " mul quantize_per_tensor | dequantize_per_tensor",
    halves: "split getitem getitem | add",
    scaled_at_run_time: "choose_qparams getitem getitem quantize_per_tensor"
    " dequantize_per_tensor relu | exp",
    scaled_at_run_time_and_elsewhere: "choose_qparams getitem getitem"
    " quantize_per_tensor mul dequantize_per_tensor add | relu",
}


def name(node):
    return node.target.__name__.partition(".")[0]


@pytest.mark.parametrize("function", CASES, ids=lambda function: function.__name__)
def test_calls_that_belong_together_are_in_one_group(function):
    module = torch.nn.Module()
    module.forward = function
    program = torch.export.export(module, (torch.rand(4),))
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    groups = inseparable_groups(calls)
    assert " | ".join(" ".join(map(name, group)) for group in groups) == CASES[function]

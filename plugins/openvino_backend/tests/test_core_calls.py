"""Calls of core ATen that compute the same as those of the program."""

import pytest
import torch
from delegraph_openvino.core_calls import core_call
from torch import nn
from torch.nn import functional as F


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.layer_norm(x, (6,)),
        lambda x: F.layer_norm(x, (5, 6), torch.ones(5, 6) * 2, torch.ones(5, 6), 0.1),
        lambda x: x.reshape(-1, 6),
        lambda x: x.flatten(),
        lambda x: x.flatten(1, -2),
        lambda x: x.mean().flatten(),
        lambda x: F.adaptive_avg_pool2d(x, 1),
        lambda x: F.adaptive_avg_pool2d(x, (3, 2)),
    ],
)
def test_the_one_call_of_core_aten_computes_the_same(function):
    class Model(nn.Module):
        def forward(self, x):
            return function(x)

    x = torch.randn(2, 3, 5, 6)
    program = torch.export.export(Model(), (x,))
    values = {
        node: x if node.op == "placeholder" else None for node in program.graph.nodes
    }
    for node in (node for node in program.graph.nodes if node.op == "call_function"):
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
        values[node] = node.target(*args, **kwargs)
    op, args, kwargs = core_call(node)
    assert op is not node.target
    assert torch.Tag.core in op.tags
    known = {n: v if v is None else v.contiguous() for n, v in values.items()}
    args, kwargs = torch.fx.map_arg((args, kwargs), known.__getitem__)
    result = op(*args, **kwargs)
    torch.testing.assert_close(
        result[0] if isinstance(result, tuple) else result, values[node]
    )

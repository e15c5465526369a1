"""Programs are decomposed, except for the calls that the caller keeps."""

import pytest
import torch
from delegraph_programs import all_nodes, decompose_calls, normalize
from torch import nn

aten = torch.ops.aten


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.calls.add_(1)
        x = torch.cond(x.sum() > 0, nn.functional.silu, torch.tanh, (x,))
        return nn.functional.silu(x) + self.calls


def call_targets(program):
    return [
        node.target
        for node in all_nodes(program.graph_module)
        if node.op == "call_function"
    ]


def test_decomposed_programs_and_subgraphs_equal_the_source():
    x = torch.randn(3, 4)
    program, _ = normalize(torch.export.export(Gated(), (x,)))
    program = decompose_calls(program, lambda node: False)

    assert aten.silu.default not in call_targets(program)
    assert aten.sigmoid.default in call_targets(program)
    ours = program.module(check_guards=False)
    eager = Gated()
    for _ in range(2):
        torch.testing.assert_close(ours(x), eager(x))


def test_kept_calls_stay_whole():
    program, _ = normalize(torch.export.export(Gated(), (torch.randn(3, 4),)))
    kept = decompose_calls(program, lambda node: node.target is aten.silu.default)
    assert call_targets(kept).count(aten.silu.default) == 2


@pytest.mark.parametrize("cell", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_decomposed_recurrent_cells_equal_the_source(cell):
    model = cell(4, 8).eval()
    x = torch.randn(3, 4)
    state = torch.randn(3, 8)
    if cell is nn.LSTMCell:
        state = (state, torch.randn(3, 8))
    program, _ = normalize(torch.export.export(model, (x, state)))
    program = decompose_calls(program, lambda node: False)

    assert not any("cell" in str(target) for target in call_targets(program))
    torch.testing.assert_close(
        program.module(check_guards=False)(x, state), model(x, state)
    )

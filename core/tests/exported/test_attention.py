"""Decomposed attention looks for rows without keys only if the mask may have some."""

import delegraph_executorch.edge as lowering
import pytest
import torch
from torch import nn
from torch.nn import functional as F

N = 8
LOWER = torch.ones(N, N, dtype=torch.bool).tril()
BLIND = LOWER & (torch.arange(N)[:, None] != 3)


class Attends(nn.Module):
    def __init__(self, mask, causal=False, batched=True):
        super().__init__()
        self.mask = mask
        self.causal = causal
        self.batched = batched

    def forward(self, x, given=None):
        x = x if self.batched else x[0]
        return F.scaled_dot_product_attention(
            x, x, x, given if given is not None else self.mask, is_causal=self.causal
        )


class Computed(Attends):
    """Attention with a mask that is computed from numbers."""

    def forward(self, x):
        seen = torch.arange(N)[:, None] >= torch.arange(N)
        return F.scaled_dot_product_attention(
            x, x, x, torch.where(seen, 0.0, -torch.inf)
        )


X = torch.randn(1, 2, N, 4)
MASKS = {
    "none": (Attends(None), (X,)),
    "causal": (Attends(None, causal=True), (X,)),
    "bool": (Attends(LOWER), (X,)),
    "added": (Attends(torch.zeros(N, N).masked_fill(~LOWER, -torch.inf)), (X,)),
    "finite": (
        Attends(torch.zeros(N, N).masked_fill(~LOWER, torch.finfo(torch.float32).min)),
        (X,),
    ),
    "computed": (Computed(None), (X,)),
    "three dimensions": (Attends(LOWER, batched=False), (X,)),
}
HIDDEN = {
    "blind": (Attends(BLIND), (X,)),
    "all but infinitely": (
        Attends(torch.full((N, N), torch.finfo(torch.float32).min)),
        (X,),
    ),
    "given": (Attends(None), (X, LOWER)),
}


def decompose_and_compare(module, inputs):
    edge = lowering.to_edge(torch.export.export(module.eval(), inputs))
    program = edge.exported_program()
    return {
        str(node.target) for node in program.graph.nodes if node.op == "call_function"
    }, program.module()


@pytest.mark.parametrize("name", MASKS)
def test_masks_without_hidden_rows_are_not_searched(name):
    module, inputs = MASKS[name]
    operators, run = decompose_and_compare(module, inputs)
    assert "aten._softmax.default" in operators
    assert not {"aten.any.dim", "aten.eq.Scalar"} & operators
    torch.testing.assert_close(run(*inputs), module(*inputs))


@pytest.mark.parametrize("name", HIDDEN)
def test_rows_without_keys_equal_eager(name):
    module, inputs = HIDDEN[name]
    operators, run = decompose_and_compare(module, inputs)
    assert "aten.any.dim" in operators
    torch.testing.assert_close(run(*inputs), module(*inputs))


def test_equal_shapes_with_different_masks_decompose_separately():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.seen = LOWER
            self.blind = BLIND

        def forward(self, x):
            return F.scaled_dot_product_attention(
                x, x, x, self.seen
            ), F.scaled_dot_product_attention(x, x, x, self.blind)

    operators, run = decompose_and_compare(Two(), (X,))
    assert "aten.any.dim" in operators
    torch.testing.assert_close(run(X), Two()(X))

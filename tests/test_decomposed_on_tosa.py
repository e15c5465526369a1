"""TOSA delegates composite operators, by a rule of their own or by those of their
pieces.
"""

import delegraph
import pytest
import torch
from torch import nn

torch.set_num_threads(1)
F = nn.functional

LOWERED = {
    "layer_norm": lambda x, w: F.layer_norm(x, [8], w, w),
    "group_norm": lambda x, w: F.group_norm(x, 2, w[:4], w[4:]),
    "instance_norm": lambda x, w: F.instance_norm(x),
    "rms_norm": lambda x, w: F.rms_norm(x, [8], w),
    "gelu_tanh": lambda x, w: F.gelu(x, approximate="tanh"),
    "hardshrink": lambda x, w: F.hardshrink(x),
    "glu": lambda x, w: F.glu(x),
    "mish": lambda x, w: F.mish(x),
    "addcmul": lambda x, w: torch.addcmul(x, x, w, value=0.5),
    "std": lambda x, w: x.std(1),
    "var": lambda x, w: x.var((1, 2), keepdim=True, correction=0),
    "logsumexp": lambda x, w: x.logsumexp(-1),
    "threshold": lambda x, w: F.threshold(x, 0.1, 2.0),
    "attention": lambda x, w: F.scaled_dot_product_attention(x, x * w, x),
    "einsum": lambda x, w: torch.einsum("bchw,bcvw->bchv", x, x),
    "smooth_l1": lambda x, w: F.smooth_l1_loss(x, x * w),
}


class Model(nn.Module):
    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.function = function
        self.w = nn.Parameter(torch.randn(8))

    def forward(self, x):
        return self.function(x, self.w)


@pytest.mark.parametrize("name", LOWERED)
def test_decomposed_operators_lower_whole(name):
    x = torch.randn(2, 4, 4, 8)
    program = delegraph.lower(
        Model(LOWERED[name]).eval(), (x,), backends=["tosa"], require_full=True
    )
    assert len(program.delegates) == 1
    assert program.verify(x).relative_error < 1e-5


def test_operators_without_decomposition_are_refused_with_a_reason():
    x = torch.randn(2, 4, 4, 8)
    text = str(
        delegraph.lower(
            Model(lambda x, w: F.mish(x).lgamma()).eval(), (x,), backends=["tosa"]
        ).report
    )

    assert "1 x aten.lgamma.default  tosa: no TOSA lowering" in text
    assert "test_decomposed_on_tosa.py" in text

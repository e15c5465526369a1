"""Masks that are made of numbers take no room in a file: the device compares positions
where they are large.
"""

import delegraph
import pytest
import torch
from torch import nn
from torch.nn import functional as F

N = 512


class Attention(nn.Module):
    def __init__(self, mask, causal=False):
        super().__init__()
        self.mask = mask
        self.causal = causal
        self.project = nn.Linear(64, 192)
        self.out = nn.Linear(64, 64)

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (4, 16)).transpose(1, 2)
            for part in self.project(x).chunk(3, -1)
        )
        y = F.scaled_dot_product_attention(
            q, k, v, self.mask(x.shape[1]), is_causal=self.causal
        )
        return self.out(y.transpose(1, 2).flatten(-2))


def compared(n):
    places = torch.arange(n)
    return torch.where(places[:, None] >= places, 0.0, torch.finfo(torch.float32).min)


MASKS = {
    "causal": (lambda n: None, True),
    "tril of ones": (lambda n: torch.ones(n, n, dtype=torch.bool).tril(), False),
    "triu of -inf": (lambda n: torch.full((n, n), -torch.inf).triu(1), False),
    "positions compared": (compared, False),
}


@pytest.mark.parametrize("name", MASKS)
def test_a_file_is_hardly_larger_than_the_weights(name, tmp_path):
    torch.manual_seed(0)
    module = Attention(*MASKS[name]).eval()
    x = torch.randn(1, N, 64)
    lowered = delegraph.lower(module, (x,), backends=["tosa"])
    lowered.save(tmp_path / "attention.tosa")
    weights = sum(p.nbytes for p in module.parameters())
    assert (tmp_path / "attention.tosa").stat().st_size <= 1.3 * weights
    assert lowered.verify(x).relative_error < 1e-5


@pytest.mark.parametrize("diagonal", [-300, -1, 0, 2, 600])
@pytest.mark.parametrize("spec", ["TOSA-1.0+FP", "TOSA-1.0+INT"])
def test_triangles_of_any_diagonal(spec, diagonal):
    class Triangles(nn.Module):
        def forward(self, x):
            ones = (
                torch.full((2, N, 300), 7, dtype=torch.int32)
                if spec.endswith("INT")
                else torch.ones(2, N, 300)
            )
            return (
                x.tril(diagonal),
                ones.triu(diagonal),
                (ones > 0).tril(diagonal) & (x > 0),
            )

    x = torch.randint(-9, 9, (2, N, 300), dtype=torch.int32)
    x = x if spec.endswith("INT") else x / 2
    lowered = delegraph.lower(
        Triangles().eval(), (x,), backends=["tosa"], options={"tosa": {"spec": spec}}
    )
    assert lowered.report.host_operators == 0
    assert lowered.verify(x).relative_error == 0
    assert len(lowered.delegates[0].blob) < 16_000

"""Large masks are computed on the device, by comparing positions, instead of being
stored in the file.
"""

import delegraph
import pytest
import torch
from torch import nn
from torch.nn import functional as F

N = 512


class Attention(nn.Module):
    """Self-attention; ``mask`` returns the mask for a sequence length."""

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


def causal_mask_from_positions(n):
    positions = torch.arange(n)
    lowest = torch.finfo(torch.float32).min
    return torch.where(positions[:, None] >= positions, 0.0, lowest)


# Name -> mask for a sequence length, and the flag ``is_causal``.
MASKS = {
    "causal": (lambda n: None, True),
    "tril of ones": (lambda n: torch.ones(n, n, dtype=torch.bool).tril(), False),
    "triu of -inf": (lambda n: torch.full((n, n), -torch.inf).triu(1), False),
    "positions compared": (causal_mask_from_positions, False),
}


@pytest.mark.parametrize("name", MASKS)
def test_file_with_attention_mask_is_hardly_larger_than_weights(name, tmp_path):
    torch.manual_seed(0)
    mask, causal = MASKS[name]
    module = Attention(mask, causal).eval()
    x = torch.randn(1, N, 64)
    lowered = delegraph.lower(module, (x,), backends=["tosa"])

    file = tmp_path / "attention.tosa"
    lowered.save(file)

    weight_bytes = sum(p.nbytes for p in module.parameters())
    assert file.stat().st_size <= 1.3 * weight_bytes
    assert lowered.verify(x).relative_error < 1e-5


@pytest.mark.parametrize("diagonal", [-300, -1, 0, 2, 600])
@pytest.mark.parametrize("spec", ["TOSA-1.0+FP", "TOSA-1.0+INT"])
def test_tril_and_triu_of_constants_are_not_stored(spec, diagonal):
    dtype = torch.int32 if spec.endswith("INT") else torch.float32
    shape = (2, N, 300)

    class Triangles(nn.Module):
        def forward(self, x):
            constant = torch.full(shape, 7, dtype=dtype)
            return (
                x.tril(diagonal),
                constant.triu(diagonal),
                (constant > 0).tril(diagonal) & (x > 0),
            )

    x = torch.randint(-9, 9, shape).to(dtype)

    lowered = delegraph.lower(
        Triangles().eval(), (x,), backends=["tosa"], options={"tosa": {"spec": spec}}
    )

    assert lowered.report.host_operators == 0
    assert lowered.verify(x).relative_error == 0
    # One stored mask would take N * 300 = 153,600 bytes.
    assert len(lowered.delegates[0].blob) < 16_000

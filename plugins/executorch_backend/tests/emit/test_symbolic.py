"""Arithmetic with sizes, in our loader and in the stock runtime: numbers below zero
divide as Python's do.
"""

import delegraph
import pytest
import torch
from torch.export import Dim


class Below(torch.nn.Module):
    def forward(self, x):
        n = x.shape[0]
        total = x.sum()
        return total + (n - 7) % 3, total + (n - 7) // 3, total + (5 - n) % (-4)


@pytest.mark.parametrize("runtime", [None, "executorch"])
def test_remainders_of_negative_numbers(runtime, tmp_path):
    sizes = ({0: Dim("n", min=2, max=20)},)
    lowered = delegraph.lower(
        Below().eval(), (torch.ones(5),), dynamic_shapes=sizes, backends=[]
    )
    lowered.save(tmp_path / "below.pte")
    loaded = delegraph.load(tmp_path / "below.pte", runtime=runtime)
    for n in (2, 3, 5, 6, 8, 12, 20):
        x = torch.ones(n)
        assert [float(v) for v in loaded(x)] == [float(v) for v in Below()(x)]

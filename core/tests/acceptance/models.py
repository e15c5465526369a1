"""The five models of the rows that lower a whole model, from attention with memory to
one with an unused input.
"""

import torch
from torch import nn


class Emformer(nn.Module):
    """A block of streaming attention: memory, centre and right context attend to
    themselves and to a left context.
    """

    def __init__(self, width=16, heads=2):
        super().__init__()
        torch.manual_seed(0)
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.feed = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 2 * width),
            nn.ReLU(),
            nn.Linear(2 * width, width),
        )

    def forward(self, memory, centre, right, left_k, left_v):
        both = torch.cat([centre, right], 0)
        keys = torch.cat([self.k(torch.cat([memory, both], 0)), left_k], 0)
        values = torch.cat([self.v(torch.cat([memory, both], 0)), left_v], 0)
        attended = nn.functional.scaled_dot_product_attention(
            *map(self._split, (self.q(self.norm(both)), keys, values))
        )
        mixed = both + attended.permute(2, 0, 1, 3).flatten(2)
        return torch.split(mixed + self.feed(mixed), [len(centre), len(right)], 0)

    def _split(self, x):
        return x.unflatten(2, (self.heads, -1)).permute(1, 2, 0, 3)

    def inputs(self):
        return tuple(torch.randn(n, 1, 16) for n in (4, 3, 2, 5, 5))


class Repeat(nn.Module):
    def forward(self, x, y):
        z = y.repeat(x.size(0), 1)
        return z * z, y + y

    def inputs(self):
        return torch.rand(4), torch.rand(5)


class ElementwiseAdd(nn.Module):
    def forward(self, x, y):
        return x + y

    def inputs(self):
        return torch.randn(1, 3), torch.randn(1, 3)


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1))

    def forward(self, x):
        return self.layers(x)

    def inputs(self):
        return (torch.rand(2, 3),)


class ModelWithUnusedArg(nn.Module):
    def forward(self, x, spare):
        return torch.sin(x)

    def inputs(self):
        return torch.rand(4), torch.rand(5)


MODELS = [Emformer, Repeat, ElementwiseAdd, MLP, ModelWithUnusedArg]

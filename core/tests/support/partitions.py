"""Programs that are split into partitions, as examples for writers and readers."""

import copy
from functools import cache

import torch
from delegraph_programs import copy_program
from torch import nn
from torch.export import Dim


class Layers(nn.Module):
    """Convolutions, literals of several kinds, a tied constant, and a plain tensor."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.second = nn.Conv2d(4, 4, 3, padding=1)
        self.third = nn.Conv2d(4, 4, 3, padding=1)
        self.third.weight = self.second.weight
        self.register_buffer(
            "scale", torch.linspace(0.5, 2, 4).reshape(4, 1, 1), persistent=False
        )

    def forward(self, x, y):
        x = nn.functional.leaky_relu(self.first(x), 0.125)
        x = torch.clamp(self.third(self.second(x)), -1.5, float("inf")) * self.scale
        values, places = x.max(dim=1)
        return (
            torch.sub(y, values, alpha=2).to(torch.float64),
            places,
            x.flatten(1).sum(-1, keepdim=True),
        )


class Sizes(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x, y):
        z = self.layer(x).relu()
        return (
            torch.cat([z, y]).reshape(-1),
            z * x.shape[0],
            z.reshape(x.shape[0] // 2, -1),
        )


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(4, 4)
        self.other = nn.Linear(4, 4)

    def forward(self, x):
        return torch.cond(
            x.sum() > 0,
            lambda x: self.one(x).relu(),
            lambda x: self.other(x).sigmoid(),
            (x,),
        )


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x):
        self.count.add_(x)
        return self.count * 2


def layers():
    torch.manual_seed(0)
    return torch.export.export(
        Layers().eval(), (torch.randn(1, 3, 6, 6), torch.randn(1, 6, 6))
    ).run_decompositions({})


def sizes(rows=4, names="ab"):
    torch.manual_seed(0)
    shapes = {
        "x": {0: 2 * Dim(names[0], min=2, max=16)},
        "y": {0: Dim(names[1], max=99)},
    }
    return torch.export.export(
        Sizes().eval(), (torch.randn(rows, 8), torch.randn(3, 4)), dynamic_shapes=shapes
    )


def multiples():
    shapes = ({0: Dim.AUTO},)
    module = nn.Flatten(0)
    module.forward = lambda x: x.reshape(-1, 4, 8) * 2
    return torch.export.export(
        module.eval(), (torch.randn(8, 8),), dynamic_shapes=shapes
    )


def branches():
    torch.manual_seed(0)
    return torch.export.export(Branches().eval(), (torch.randn(2, 4),))


def counts():
    return torch.export.export(Counts().eval(), (torch.randn(3),)).run_decompositions(
        {}
    )


def _made_once(make):
    made = cache(make)
    return lambda: copy.deepcopy(made()) if make is branches else copy_program(made())


PROGRAMS = {
    f.__name__: _made_once(f) for f in (layers, sizes, multiples, branches, counts)
}
"""Each call gives a program whose graph may be changed; tensors are shared."""

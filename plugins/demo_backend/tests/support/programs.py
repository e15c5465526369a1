"""Small programs for the compiler demo, on the host and on its device half."""

import delegraph
import torch
from torch import nn
from torch.nn import functional as F


def module_with_weights(function, *weights):
    """A module whose forward is ``function(*inputs)``, with weights that the function
    reads as attributes.
    """

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            for k, weight in enumerate(weights):
                self.register_buffer(f"w{k}", weight)

        def forward(self, *inputs):
            return function(self, *inputs)

    return Model().eval()


def randn(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def lower(function, *inputs, weights=(), **options):
    return delegraph.lower(
        module_with_weights(function, *weights),
        inputs,
        backends=["compiler-demo"],
        options={"compiler-demo": options},
    )


CASES = {
    "sin": (lambda m, x: torch.sin(x), randn(2, 3)),
    "sin of a scalar": (lambda m, x: torch.sin(x), randn()),
    "sin of nothing": (lambda m, x: torch.sin(x), randn(0, 3)),
    "add": (lambda m, x, y: x + y, randn(2, 3), randn(2, 3)),
    "add, broadcast both ways": (lambda m, x, y: x + y, randn(4, 1, 3), randn(2, 1)),
    "mul by a scalar tensor": (lambda m, x, y: x * y, randn(2, 3), randn()),
    "mul, broadcast to nothing": (
        lambda m, x, y, z: torch.mm(x * y, z),
        randn(2, 1),
        randn(0),
        randn(0, 4),
    ),
    "numbers": (lambda m, x: (x + 1) * 0.3 + True, randn(2, 3)),
    "signs of zero": (lambda m, x: (1 / (x * 0.0), 1 / (x * -0.0)), randn(2, 3)),
    "a number beyond float32": (lambda m, x: x + 1e300, randn(2, 3)),
    "mm": (lambda m, x, y: torch.mm(x, y), randn(2, 3), randn(3, 4)),
    "mm over nothing": (lambda m, x, y: torch.mm(x, y), randn(2, 0), randn(0, 4)),
    "addmm with a row": (
        lambda m, b, x, y: torch.addmm(b, x, y),
        randn(4),
        randn(2, 3),
        randn(3, 4),
    ),
    "addmm with a scalar": (
        lambda m, b, x, y: torch.addmm(b, x, y),
        randn(),
        randn(2, 3),
        randn(3, 4),
    ),
    "linear": (
        lambda m, x, w, b: F.linear(x, w, b),
        randn(5, 2, 3),
        randn(4, 3),
        randn(4),
    ),
    "linear without bias": (lambda m, x, w: F.linear(x, w), randn(2, 3), randn(4, 3)),
    "linear on a vector": (lambda m, x, w: F.linear(x, w), randn(3), randn(4, 3)),
}

"""Random programs of views, ``as_strided`` and writes, over inputs and a buffer that
lie in memory in many ways.
"""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import torch
from torch import Tensor, nn

LAYOUTS = {
    "dense": lambda: torch.randn(4, 6),
    "transposed": lambda: torch.randn(6, 4).t(),
    "with gaps": lambda: torch.randn(4, 9)[:, 1:7],
    "in the middle": lambda: torch.randn(40)[8:32].reshape(4, 6),
    "channels last": (
        lambda: torch.randn(1, 3, 4, 2).contiguous(memory_format=torch.channels_last)
    ),
    "permuted": lambda: torch.randn(2, 3, 4).permute(1, 2, 0),
}


def random_program(seed: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A module and its inputs."""
    torch.manual_seed(seed)
    choose = random.Random(seed)
    inputs = tuple(
        LAYOUTS[name]()
        for name in choose.choices(list(LAYOUTS), [5, 2, 1, 1, 2, 2], k=2)
    )
    return (
        Strided(
            seed, choose.randint(2, 7), LAYOUTS[choose.choice(["dense", "permuted"])]()
        ),
        inputs,
    )


class Strided(nn.Module):
    """Applies ``length`` steps, which follow from the seed and from sizes and strides
    alone.
    """

    def __init__(self, seed: int, length: int, state: Tensor) -> None:
        super().__init__()
        self.seed = seed
        self.length = length
        self.register_buffer("state", state)

    def forward(self, x: Tensor, y: Tensor) -> Any:
        choose = random.Random(self.seed)
        values = [x, y, self.state]
        for _ in range(self.length):
            step = choose.choices(STEPS, WEIGHTS)[0]
            made = step(choose, values)
            if made is not None:
                values.append(made)
        values.append(window(choose, values[-1]))
        return [v.clone() for v in values[-4:]]


def view(choose: random.Random, values: list[Tensor]) -> Tensor:
    """A view, or for some strides a copy, of one of the latest values."""
    value = choose.choice(values[-3:])
    dim = choose.randrange(value.dim()) if value.dim() else 0
    names = ["unsqueeze", "reshape", "detach", "expand"]
    names += (
        ["permute", "permute", "slice", "slice", "select", "split", "unfold", "flip"]
        if value.numel() and value.dim()
        else []
    )
    names += ["diagonal", "t"] if value.dim() == 2 else []
    name = choose.choice(names)
    if name == "permute":
        return value.permute(choose.sample(range(value.dim()), value.dim()))
    if name == "slice":
        start = choose.randrange(value.shape[dim])
        return value.narrow(dim, start, choose.randint(1, value.shape[dim] - start))
    if name == "select":
        return value.select(dim, choose.randrange(value.shape[dim]))
    if name == "split":
        parts = value.split(choose.randint(1, value.shape[dim]), dim)
        return choose.choice(parts)
    if name == "unfold":
        return value.unfold(
            dim, choose.randint(1, value.shape[dim]), choose.randint(1, 2)
        )
    if name == "expand":
        return value.unsqueeze(0).expand(choose.randint(1, 2), *value.shape)
    if name == "flip":
        return value.flip(dim)
    if name == "reshape":
        return value.reshape(choose.choice([[-1], [1, -1], [*value.shape, 1]]))
    if name == "unsqueeze":
        return value.unsqueeze(choose.randint(0, value.dim()))
    return getattr(value, name)()


def window(choose: random.Random, value: Tensor) -> Tensor:
    """``as_strided`` anywhere in the memory of a value, or most often where its own
    elements are.
    """
    read = choose.choice([Tensor.as_strided, Tensor.as_strided, torch.as_strided_copy])
    return read(value, *_shown(choose, value))


def _shown(
    choose: random.Random, value: Tensor, apart: bool = False
) -> tuple[list[int], list[int], int | None]:
    """Sizes, strides and an offset. ``apart``: no place is shown twice."""
    memory = value.untyped_storage().nbytes() // value.element_size()
    for _ in range(100):
        offset = choose.choice(
            [None, 0, value.storage_offset(), choose.randrange(max(memory, 1))]
        )
        rank = choose.randint(0, 3)
        size = [choose.randint(1, 4) for _ in range(rank)]
        stride = [choose.randint(0, 7) for _ in range(rank)]
        start = value.storage_offset() if offset is None else offset
        steps = ([k * s for k in range(n)] for n, s in zip(size, stride, strict=True))
        places = [start + sum(p) for p in itertools.product(*steps)]
        if max(places) < memory and not (apart and len(set(places)) < len(places)):
            return size, stride, offset
    return [0], [1], 0


def windows(choose: random.Random, values: list[Tensor]) -> Tensor:
    return window(choose, choose.choice(values[-3:]))


def scatter(choose: random.Random, values: list[Tensor]) -> Tensor:
    value = choose.choice(values[-3:])
    size, stride, offset = _shown(choose, value, apart=True)
    made = torch.as_strided_scatter(value, torch.full(size, 0.5), size, stride, offset)
    # what lies around its elements in memory is not the same in eager and in
    # torch.export
    return made.clone()


def compute(choose: random.Random, values: list[Tensor]) -> Tensor:
    """A new tensor, which as a rule lies in memory as its operand does."""
    value = choose.choice(values[-3:])
    other = choose.choice([v for v in values if v.shape == value.shape])
    functions = [
        torch.sin,
        torch.relu,
        lambda v: v * 2 + 1,
        lambda v: v + other,
        torch.clone,
        Tensor.contiguous,
    ]
    return choose.choice(functions)(value)


def write(choose: random.Random, values: list[Tensor]) -> None:
    """A write through one of the values, or through what ``as_strided`` shows of it."""
    value = choose.choice(values)
    if choose.random() < 0.4:
        value = value.as_strided(*_shown(choose, value, apart=True))
    elif _overlaps(value):
        return
    writes = [
        lambda v: v.mul_(-2),
        lambda v: v.add_(1),
        lambda v: v.fill_(0.25),
        lambda v: v.copy_(v.sin()),
    ]
    choose.choice(writes)(value)


def _overlaps(value: Tensor) -> bool:
    steps = (
        [k * s for k in range(n)]
        for n, s in zip(value.shape, value.stride(), strict=True)
    )
    return len({sum(p) for p in itertools.product(*steps)}) < math.prod(value.shape)


STEPS = [view, windows, scatter, compute, write]
WEIGHTS = [6, 3, 1, 3, 3]

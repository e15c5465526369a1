"""Random programs that write in place through views of inputs, buffers and results."""

import random

import torch
from torch import nn


class Program(nn.Module):
    """``steps`` random steps over a pool of tensors; the same steps at every call.

    ``wide``: also views and writes that few programs use: windows, expanded tensors,
    other types, ``out=``. ``reads_memory``: some read elements in the order in which
    they are in memory.
    """

    def __init__(self, seed, steps=10, wide=False, reads_memory=False):
        super().__init__()
        self.seed = seed
        self.steps = steps
        self.kinds = [view, view, view, write, write, read]
        self.kinds += [rare_view, rare_write] if wide else []
        self.kinds += [read_memory, read_memory] if reads_memory else []
        self.register_buffer("a", torch.arange(12.0).reshape(3, 4) / 8)
        self.register_buffer("b", torch.ones(2, 6), persistent=seed % 2 == 0)

    def forward(self, x, y):
        choose = random.Random(self.seed)
        pool = [x, y, self.a, self.b, x + 1]
        results = []
        for _ in range(self.steps):
            tensor = choose.choice(pool)
            kind = choose.choice(self.kinds)
            made = kind(choose, tensor, pool)
            (results if kind in (read, read_memory) else pool).append(made)
        return [choose.choice(pool), pool[-1], *results, sum(t.sum() for t in pool)]


def inputs(call):
    return (
        torch.arange(12.0).reshape(4, 3) / 4 - call,
        torch.arange(8.0).reshape(2, 4) - 3 + call,
    )


def read(choose, tensor, pool):
    return choose.choice(
        [
            lambda: tensor * 2,
            lambda: tensor.sum(),
            lambda: tensor,
            lambda: tensor.relu() + 1,
        ]
    )()


def read_memory(choose, tensor, pool):
    """Read elements in the order of memory."""
    tensor = choose.choice(
        [
            lambda: tensor,
            lambda: tensor.sin(),
            lambda: tensor.cos().mT if tensor.dim() > 1 else tensor,
        ]
    )()
    span = 1 + sum(
        (size - 1) * stride
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return tensor.as_strided((max(1, min(span, 6) - 1),), (1,)) * 2


def view(choose, tensor, pool):
    return choose.choice(
        [*_any_rank(tensor), *(_of_axes(choose, tensor) if tensor.dim() else [])]
    )()


def rare_view(choose, tensor, pool):
    found = [
        lambda: tensor.unsqueeze(0).expand(2, *tensor.shape)[1],
        lambda: tensor.reshape(-1).as_strided((min(3, tensor.numel()),), (1,)),
        lambda: tensor.contiguous().view(torch.int32).view(torch.float32),
        lambda: torch.broadcast_to(tensor, (1, *tensor.shape)),
    ]
    if tensor.dim() and tensor.dim() < 5:
        size = choose.randrange(1, tensor.shape[-1] + 1)
        found += [
            lambda: tensor.unfold(-1, size, size),
            lambda: tensor.flatten().unfold(0, 1, 2),
        ]
    return choose.choice(found)()


def rare_write(choose, tensor, pool):
    fresh = choose.choice(pool).mean()
    return choose.choice(
        [
            lambda: torch.add(tensor, fresh, out=tensor),
            lambda: torch.maximum(tensor * 0.5, fresh, out=tensor),
            lambda: torch.floor(tensor + 0.5, out=tensor),
            lambda: tensor.copy_(fresh),
            lambda: tensor.copy_((fresh > 0).expand(tensor.shape)),
            lambda: tensor.addcmul_(fresh, fresh, value=0.5),
        ]
    )()


def _any_rank(tensor):
    return [
        lambda: tensor.reshape(-1),
        lambda: tensor.unsqueeze(0),
        lambda: tensor.squeeze(),
        lambda: tensor.detach(),
        lambda: tensor.contiguous().view(-1),
        lambda: tensor.flatten(),
        lambda: tensor * 1 if tensor.dim() > 4 else tensor.unsqueeze(-1),
    ]


def _of_axes(choose, tensor):
    dim = choose.randrange(tensor.dim())
    size = tensor.shape[dim]
    at = choose.randrange(size)
    axes = choose.sample(range(tensor.dim()), tensor.dim())
    found = [
        lambda: tensor.select(dim, at),
        lambda: tensor.narrow(dim, at, size - at),
        lambda: tensor.transpose(dim, -1),
        lambda: tensor.permute(axes),
        lambda: tensor.movedim(dim, 0),
        lambda: tensor[at:] if dim == 0 else tensor[..., : tensor.shape[-1] : 2],
        lambda: tensor.chunk(2, dim)[-1],
        lambda: tensor.split(max(1, size // 2), dim)[0],
        lambda: tensor.tensor_split(min(2, size), dim)[-1],
        lambda: tensor.unbind(dim)[at - size],
        lambda: tensor.split([at, size - at], dim)[1],
        lambda: tensor[at - size] if dim == 0 else tensor.squeeze(dim),
    ]
    if tensor.dim() > 1:
        found.append(lambda: torch.diagonal(tensor, 0, dim - 1, dim))
    return found


def write(choose, tensor, pool):
    fresh = choose.choice(pool).sum() * 0.125
    return choose.choice(
        [
            lambda: tensor.mul_(0.5),
            lambda: tensor.add_(fresh),
            lambda: tensor.relu_(),
            lambda: tensor.fill_(0.25),
            lambda: tensor.zero_(),
            lambda: tensor.copy_(fresh.expand(tensor.shape)),
            lambda: tensor.copy_(tensor * 0.5 + 1),
            lambda: tensor.masked_fill_(tensor > 1, -1.0),
            lambda: tensor.clamp_(-1, 1),
            lambda: tensor.lt_(fresh),
            lambda: _set_item(choose, tensor, fresh),
        ]
    )()


def _set_item(choose, tensor, value):
    if tensor.dim() and choose.random() < 0.5:
        tensor[torch.tensor([0])] = value
    elif tensor.dim():
        tensor[0] = value
    else:
        tensor.sub_(value)
    return tensor

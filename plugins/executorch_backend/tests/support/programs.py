"""Small modules that each need one more thing of a program file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional


class Function(torch.nn.Module):
    """A function of its inputs, with buffers that it gets by name."""

    def __init__(self, function: Callable[..., Any], **buffers: torch.Tensor) -> None:
        super().__init__()
        self.function = function
        for name, tensor in buffers.items():
            self.register_buffer(name, tensor)

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs, **dict(self.named_buffers()))


class Counter(torch.nn.Module):
    """Keeps a sum and a count."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.ones(3))
        self.register_buffer("count", torch.zeros(2, dtype=torch.long))

    def forward(self, x: torch.Tensor) -> Any:
        self.total.add_(x)
        self.count.add_(1)
        return x * self.total, self.count.clone(), self.total


def copied(x: torch.Tensor, n: torch.Tensor) -> Any:
    """Eight bytes are copied in a memory whose size is no multiple of eight."""
    return n.copy_(n + 1), x * n.float()


def cropped(x: torch.Tensor) -> Any:
    return functional.pad(x, (1, -1, -2, 0), value=3.0), functional.pad(x, (-1, -1))


def shifted(x: torch.Tensor, n: torch.Tensor) -> Any:
    return x << 2, x >> 1, x << n, x >> n


class Exchange(torch.nn.Module):
    """Writes each of two buffers with the other's old value."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("left", torch.ones(3))
        self.register_buffer("right", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left = self.left.clone()
        self.left.copy_(self.right)
        self.right.copy_(left + x)
        return self.left + self.right * 2


class Cache(torch.nn.Module):
    """Writes a row of a buffer at a position, as key-value caches do."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(1, 2, 8, 4))

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        self.cache[:, :, position] = x
        return self.cache.sum(2)


def branch(x: torch.Tensor) -> Any:
    big, small = torch.cond(
        x.sum() > 0, lambda a: (a + 1, a.clone()), lambda a: (a * 2, a - 1), (x,)
    )
    return big * 2, small


def loop(x: torch.Tensor) -> Any:
    return torch.while_loop(
        lambda i, a: i < 5, lambda i, a: (i + 1, a * 1.5 + 1), (torch.tensor(0), x)
    )


def exchanging_loop(x: torch.Tensor, y: torch.Tensor) -> Any:
    def step(i: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> Any:
        return i + 1, b.clone(), a.clone()

    return torch.while_loop(lambda i, a, b: i < 5, step, (torch.tensor(0), x, y))


def branch_in_loop(x: torch.Tensor) -> Any:
    def step(i: torch.Tensor, a: torch.Tensor) -> Any:
        return i + 1, torch.cond(a.sum() > 3, lambda a: a * 0.5, lambda a: a + 1, (a,))

    return torch.while_loop(lambda i, a: i < 7, step, (torch.tensor(0), x))


def rows(x: torch.Tensor, y: torch.Tensor) -> Any:
    from functorch.experimental.control_flow import map as map_rows

    return map_rows(lambda row, y: row.sin() + y, x, y)


def views(x: torch.Tensor) -> Any:
    moved = x.unsqueeze(0).permute(1, 0, 2)
    return (
        x.view(-1).relu(),
        x.t().reshape(-1) + 1,
        moved.exp(),
        x[1:].sum(0),
        x.expand(3, 4) + 1,
    )


def numbers(x: torch.Tensor) -> Any:
    compared = (
        x == 0,
        x > 1,
        torch.maximum(x, torch.tensor(1.0)),
        torch.where(x > 0, x, 0.0),
    )
    return (
        x + 1,
        2 - x,
        x / 3,
        x * True,
        x**2,
        2**x,
        x // 2,
        x % 2,
        x.clamp(0, 1),
        1 / x,
        *compared,
    )


def types(x: torch.Tensor, i: torch.Tensor, b: torch.Tensor, h: torch.Tensor) -> Any:
    return (
        x + x,
        x.double() * 2,
        i + 1,
        b & (i > 1),
        h * 2,
        i.to(torch.int8),
        x.to(torch.bfloat16),
        i.to(torch.uint8),
    )


def several(x: torch.Tensor) -> Any:
    return (
        x.chunk(2, 1)[1] * 2,
        x.max(1),
        x.topk(2),
        torch.stack(x.unbind(0)),
        torch.cat([x, x], 0),
    )


def indexed(x: torch.Tensor, i: torch.Tensor) -> Any:
    return (
        x[i],
        x[:, i] * 1,
        x.index_select(0, i),
        x.scatter(0, i[None].expand(1, 2), x[:1, :2].clone()),
    )


def resized(x: torch.Tensor) -> Any:
    doubled = torch.cat([x, x], 1).reshape(-1, 4)
    return doubled + x.shape[0] * 2, x.reshape(x.shape[0] * 2, 2).sin(), x.shape[0]


def resized_parts(x: torch.Tensor) -> Any:
    """ExecuTorch itself does not compile it."""
    return *x.unbind(1)[1:3], *x.split([1, 3], 1)


def images(x: torch.Tensor) -> Any:
    larger = (
        functional.interpolate(x, scale_factor=2.0),
        functional.interpolate(x, scale_factor=2.0, mode="bilinear"),
    )
    smaller = (
        functional.avg_pool2d(x, 2),
        functional.adaptive_avg_pool2d(x, 1),
        functional.max_pool2d(x, 2),
    )
    padded = functional.pad(x, (1, 1)), functional.pad(x, (1, 1, 1, 1), mode="reflect")
    normed = functional.group_norm(x, 2), x.std(1), x.norm(), x.cumsum(1)
    return (
        larger,
        smaller,
        padded,
        normed,
        x.flip(1),
        x.roll(1, 1),
        functional.gelu(x),
        functional.silu(x),
    )


def tree(x: torch.Tensor, d: dict[str, list[torch.Tensor]]) -> Any:
    return {"a": [x + d["k"][0]], "b": (x * 2, None, 3)}


def rests(x: torch.Tensor, y: torch.Tensor) -> Any:
    return (
        x % 3,
        x % y,
        x % -3,
        x + 0.5,
        x.to(torch.int32) - 0.5,
        x // y,
        torch.ops.aten.add.Scalar(x, 1.5),
    )


def running(x: torch.Tensor, start: torch.Tensor) -> Any:
    from torch._higher_order_ops.scan import scan

    return scan(lambda carry, row: (carry * 0.5 + row, carry + 1), start, x)


def formulas(x: torch.Tensor, y: torch.Tensor) -> Any:
    """Operators that no kernel of the stock runtime computes."""
    bits = (
        x.exp2(),
        torch.signbit(x),
        torch.copysign(y, x),
        torch.angle(x),
        torch.fmax(x, y),
        torch.fmin(x, y),
    )
    ordered = (
        x.sort(1),
        x.sort(0, descending=True),
        torch.sort(x > 0, stable=True, dim=1),
        x[0].median(),
    )
    bounds = torch.tensor([-1.0, 0.0, 0.0, 2.0])
    placed = (
        torch.bucketize(x, bounds),
        torch.bucketize(x, bounds, right=True),
        torch.searchsorted(y.sort(1)[0], y),
    )
    put = x.put(torch.tensor([0, -1]), y[0, :2], accumulate=True)
    index = torch.tensor([[0, 1, 1, 0]])
    added = (
        x.scatter_reduce(0, index, y[:1], "sum"),
        x.scatter_reduce(0, index, y[:1], "sum", include_self=False),
    )
    batches = torch.addbmm(y[:, :3], x[None, :, :], y.t()[None], beta=2, alpha=0.5)
    scalar = (
        x[0, 0].amax(),
        x[0, 0].sum(0),
        x[0, 0].logsumexp(0),
        x[0].round(decimals=1),
        x[0].logaddexp2(y[0]),
    )
    whole = (x > 0).long() * 3 - 1
    none = x[:0]
    empty = (
        none.amax(1),
        none.double().log_softmax(0),
        torch.cat([x[:, :0], x[:, :0]], 1),
        none.softmax(0),
    )
    empty = (
        *empty,
        x[:, :0] @ y[:0],
        functional.linear(x[:, :0], y[:, :0], y[0, :3]),
        x[None, :, :0] @ y[None, :0],
    )
    powers = whole**5, (whole * 2**40) ** 3, whole**0
    return (
        bits,
        ordered,
        placed,
        put,
        added,
        torch.hypot(x, y),
        batches,
        scalar,
        empty,
        powers,
    )

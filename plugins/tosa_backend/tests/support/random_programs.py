"""Random programs of the operators that TOSA lowers: any shapes, views, writes, and
integers beside floats.

A program chooses its steps when it runs, by a seed and by the shapes and types that it
meets, so that eager PyTorch and torch.export see the same ones. Steps that decide
(comparisons, rounding, order) take only values that TOSA computes to the last bit, for
else a rounding error would change everything after it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STEPS = 14
LARGEST = 1500
RANK = 5
"""Elements and axes that a value may have."""


class Known(NamedTuple):
    """A value of a program, and whether TOSA computes it to the last bit."""

    tensor: Tensor
    exact: bool


class Step(NamedTuple):
    """A function of the program's random numbers and operands; None if it does not take
    them.
    """

    function: Callable[..., Tensor | None]
    operands: int
    types: str
    """The operands' element types: f(loat), i(nt), b(ool)."""
    decides: bool
    """Whether it needs exact operands; the result is exact then."""
    keeps: bool
    """Whether exact operands have an exact result."""


TABLE: list[Step] = []


def step(types: str, operands: int = 1, decides: bool = False, keeps: bool = False):
    """Add a function ``(program, *operands)`` to the table."""

    def add(function):
        TABLE.append(Step(function, operands, types, decides, keeps or decides))
        return function

    return add


class RandomProgram(nn.Module):
    """The program with a seed; it takes ``inputs()`` and returns its last values."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        numbers = torch.randn(3000, generator=torch.Generator().manual_seed(seed)) / 4
        self.bank = nn.Parameter(numbers, requires_grad=False)
        self.register_buffer("state", torch.zeros(3))
        self.random = random.Random(seed)

    def inputs(self) -> tuple[Tensor, ...]:
        """Two tensors of floats, one of integers, one of truth values."""
        made = random.Random(-self.seed - 1)
        numbers = torch.Generator().manual_seed(self.seed)
        shape = [made.randint(1, 6) for _ in range(made.randint(1, 4))]
        x = torch.randn(shape, generator=numbers)
        y = torch.randn(1, 4, 6, 6, generator=numbers)
        whole = torch.randint(
            -9,
            9,
            shape,
            generator=numbers,
            dtype=made.choice((torch.int32, torch.int64)),
        )
        return x, y, whole, torch.randn(shape[-1:], generator=numbers) > 0

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        self.random.seed(self.seed)
        pool = [Known(x, True) for x in inputs]
        while len(pool) < len(inputs) + STEPS:
            self.extend(pool)
        return tuple([value.tensor for value in pool[-3:]])

    def extend(self, pool: list[Known]) -> None:
        """One more value, if the operands that were drawn suit the step that was."""
        chosen = self.random.choice(TABLE)
        operands = [self.random.choice(pool[-8:]) for _ in range(chosen.operands)]
        exact = all(value.exact for value in operands)
        if any(kind(v.tensor) not in chosen.types for v in operands) or (
            chosen.decides and not exact
        ):
            return
        result = chosen.function(self, *[value.tensor for value in operands])
        if (
            result is not None
            and 0 < result.numel() <= LARGEST
            and result.dim() <= RANK
        ):
            pool.append(Known(result, exact and chosen.keeps))

    # ---- what steps draw

    def axis(self, x: Tensor) -> int:
        return self.random.randrange(-x.dim(), x.dim())

    def weight(self, *shape: int) -> Tensor:
        start = self.random.randrange(0, 3000 - math.prod(shape))
        return self.bank[start : start + math.prod(shape)].view(shape)

    def pick(self, *options):
        return self.random.choice(options)


def kind(x: Tensor) -> str:
    """f, i or b"""
    return "f" if x.is_floating_point() else "b" if x.dtype is torch.bool else "i"


def broadcast(function):
    """A function of two tensors, which it gets if they broadcast; else the first one
    twice.
    """

    def stepped(program, x, y):
        try:
            shape = torch.broadcast_shapes(x.shape, y.shape)
        except RuntimeError:
            y = x
            shape = x.shape
        return (
            function(x, y)
            if math.prod(shape) <= LARGEST and len(shape) <= RANK
            else None
        )

    return stepped


# ---- elementwise

for f in (
    *(
        torch.sigmoid,
        torch.tanh,
        torch.sin,
        torch.cos,
        torch.erf,
        torch.atan,
        F.gelu,
        F.silu,
        F.softplus,
        F.mish,
    ),
    *(
        F.elu,
        F.selu,
        F.logsigmoid,
        F.hardswish,
        F.hardsigmoid,
        F.softsign,
        F.tanhshrink,
        torch.asinh,
    ),
    *(
        lambda x: torch.exp(-x.abs()),
        lambda x: torch.log1p(x.abs()),
        lambda x: torch.sqrt(x.abs() + 0.1),
    ),
    *(
        lambda x: torch.rsqrt(x.abs() + 1),
        lambda x: (x.abs() + 0.5).clamp(max=9) ** 1.7,
        lambda x: x / 3,
    ),
    *(
        lambda x: torch.expm1(x.clamp(-3, 1)),
        lambda x: torch.log2(x.abs() + 1),
        lambda x: F.gelu(x, approximate="tanh"),
    ),
):
    step("f")(lambda p, x, f=f: f(x))
for f in (
    *(
        F.relu,
        torch.neg,
        torch.abs,
        F.hardtanh,
        F.relu6,
        lambda x: F.leaky_relu(x, 0.5),
        lambda x: x * 2,
        torch.clone,
    ),
    *(
        lambda x: x.clamp(-1, 0.5),
        lambda x: x / 4,
        lambda x: x * x.new_ones(()),
        lambda x: x.contiguous() - 0.0,
    ),
):
    step("f", keeps=True)(lambda p, x, f=f: f(x))
for f in (
    torch.floor,
    torch.ceil,
    torch.round,
    torch.sign,
    torch.trunc,
    torch.isfinite,
    lambda x: x > 0.1,
    torch.isnan,
):
    step("f", decides=True)(lambda p, x, f=f: f(x))
for f in (
    lambda x: x + 3,
    lambda x: x.clamp(-5, 7) * 3,
    lambda x: x // 2,
    lambda x: x % 3,
    lambda x: x.abs() & 6,
):
    step("i", decides=True)(lambda p, x, f=f: f(x))
for f in (
    lambda x: x > 2,
    lambda x: x == 1,
    lambda x: x.clamp(-4, 4).float(),
    lambda x: x.to(torch.int32),
    torch.neg,
):
    step("i", decides=True)(lambda p, x, f=f: f(x))
for f in (
    torch.logical_not,
    lambda x: x.float(),
    lambda x: x.int(),
    lambda x: x.long(),
    lambda x: ~x,
):
    step("b", decides=True)(lambda p, x, f=f: f(x))
for f in (
    torch.add,
    torch.sub,
    lambda x, y: x * torch.tanh(y),
    lambda x, y: x / (1 + y * y),
    torch.atan2,
):
    step("f", 2)(broadcast(f))
step("f", 2)(broadcast(lambda x, y: torch.lerp(x, y, 0.25)))
for f in (torch.maximum, torch.minimum, torch.fmax):
    step("f", 2, keeps=True)(broadcast(f))
for f in (torch.gt, torch.eq, torch.le, torch.maximum, torch.minimum):
    step("fi", 2, decides=True)(broadcast(f))
for f in (torch.logical_and, torch.logical_xor, torch.bitwise_or):
    step("b", 2, decides=True)(broadcast(f))
step("i", 2, decides=True)(broadcast(lambda x, y: x.clamp(-9, 9) * y.clamp(-9, 9) - y))
step("f", decides=True)(
    lambda p, x: x.clamp(-99, 99).to(p.pick(torch.int32, torch.int8, torch.int16)).int()
)
step("f", keeps=True)(lambda p, x: torch.where(x > p.pick(0.0, 0.3), x, -x))
step("f", decides=True)(lambda p, x: x.masked_fill(x < 0, p.pick(0.0, 1.5)))


@step("fib", 3, keeps=True)
def where(p, c, x, y):
    """The condition is exact or a boolean that comes from exact values, as all of them
    do.
    """
    if kind(c) != "b" or kind(x) == "b" or kind(y) == "b":
        return None
    try:
        shape = torch.broadcast_shapes(c.shape, x.shape, y.shape)
    except RuntimeError:
        return None
    return (
        torch.where(c, x, y)
        if math.prod(shape) <= LARGEST and len(shape) <= RANK
        else None
    )


# ---- views and copies of them


@step("fib", keeps=True)
def view(p, x):
    sizes = [n for n in range(1, x.numel() + 1) if x.numel() % n == 0]
    n = p.pick(*sizes)
    return p.pick(
        x.reshape(n, -1),
        x.reshape(-1),
        x.reshape(1, n, 1, -1),
        x.flatten(),
        x.reshape(-1, n).t(),
    )


@step("fib", keeps=True)
def moved(p, x):
    if x.dim() < 2:
        return p.pick(
            x.unsqueeze(0),
            x.unsqueeze(-1),
            x.expand(2, *x.shape),
            x.repeat(2, *[1] * x.dim()),
        )
    order = list(range(x.dim()))
    p.random.shuffle(order)
    a = p.axis(x)
    b = p.axis(x)
    return p.pick(
        x.permute(order),
        x.transpose(a, b),
        x.movedim(a, b),
        x.flip(a, b) if a % x.dim() != b % x.dim() else x,
    )


@step("fib", keeps=True)
def part(p, x):
    if x.dim() == 0:
        return x.view(1, 1)
    dim = p.axis(x)
    size = x.shape[dim]
    start = p.random.randrange(size)
    n = p.random.randint(1, size)
    index = [slice(None)] * x.dim()
    index[dim] = slice(start, start + n, p.pick(1, 1, 2))
    taken = [
        lambda: x.select(dim, start - size),
        lambda: x[tuple(index)],
        lambda: x.narrow(dim, 0, n),
    ]
    taken += [
        lambda: x.chunk(2, dim)[-1],
        lambda: x.split(n, dim)[0],
        lambda: x.unbind(dim)[start],
        lambda: x.squeeze(),
    ]
    taken += [
        lambda: x.roll(start, dim),
        lambda: x.unfold(dim, n, 1),
        lambda: x.diagonal(0, -1, 0) if x.dim() > 1 else x,
    ]
    return p.pick(*taken)()


@step("fib", 2, keeps=True)
def joined(p, x, y):
    if x.dtype is not y.dtype:
        return None
    if x.shape == y.shape:
        return p.pick(
            torch.stack((x, y), p.axis(x)) if x.dim() else torch.stack((x, y)),
            torch.cat((x.flatten(), y.flatten())),
        )
    dim = p.axis(x) if x.dim() else None
    return (
        None
        if dim is None
        else torch.cat((x, x.narrow(dim, 0, 1), x.narrow(dim, 0, 0)), dim)
    )


@step("f", keeps=True)
def padded(p, x):
    if x.dim() == 0:
        return x + 0
    ends = [p.random.randint(-1 if x.shape[-1] > 2 else 0, 2) for _ in range(2)]
    return (
        F.pad(x, ends, value=p.pick(0.0, 1.0)) if x.shape[-1] + sum(ends) > 0 else None
    )


@step("fib", keeps=True)
def triangle(p, x):
    return (
        p.pick(x.tril(p.pick(-1, 0, 1)), x.triu(p.pick(-1, 0, 1)))
        if x.dim() > 1
        else x.repeat_interleave(2)
    )


# ---- writes


@step("f", 2, keeps=True)
def written(p, x, y):
    """A copy, a view of which is written."""
    z = x.clone()
    if z.dim() == 0:
        return z.fill_(0.5)
    dim = p.axis(z)
    at = p.random.randrange(z.shape[-1])
    p.pick(
        lambda: z[..., at].fill_(1.0),
        lambda: z.select(dim, 0).mul_(2),
        lambda: z.transpose(dim, 0)[:1].neg_(),
        lambda: z[..., ::2].clamp_(min=0),
        lambda: z[..., at:].copy_(y.flatten()[0].expand_as(z[..., at:])),
        lambda: z.relu_().neg_(),
        lambda: z.narrow(dim, 0, 1).zero_(),
    )()
    return z


@step("f")
def counted(p, x):
    """A buffer that the program keeps."""
    p.state.add_(1.0)
    return x + p.state[0]


# ---- reductions and order


@step("f")
def reduced(p, x):
    dim = p.axis(x) if x.dim() else 0
    keep = p.pick(True, False)
    functions = [
        lambda: x.mean(dim, keep),
        lambda: x.sum(dim, keep),
        lambda: x.logsumexp(dim, keep),
        lambda: x.mean(),
    ]
    functions += [
        lambda: x.softmax(dim),
        lambda: x.log_softmax(dim),
        lambda: x.cumsum(dim),
        lambda: x.norm(dim=dim),
    ]
    functions += [
        lambda: x.var(dim, correction=0),
        lambda: F.normalize(x, dim=dim, eps=0.1),
    ]
    return p.pick(*functions)()


@step("fi", decides=True)
def ordered(p, x):
    dim = p.axis(x) if x.dim() else 0
    functions = [
        lambda: x.amax(dim),
        lambda: x.amin(dim, True),
        lambda: x.argmax(dim).int(),
        lambda: x.max(dim)[0],
    ]
    functions += [
        lambda: x.sort(dim=dim, stable=True)[0],
        lambda: x.sort(dim=dim, stable=True)[1],
        lambda: x.argmin(dim),
    ]
    functions += [
        lambda: x.cummax(dim)[0],
        lambda: x.topk(1, dim)[0],
        lambda: x.median(),
        lambda: x.min(),
    ]
    return p.pick(*functions)()


@step("b", decides=True)
def summarized(p, x):
    dim = p.axis(x) if x.dim() else 0
    return p.pick(
        x.any(dim), x.all(dim), x.sum(dim), x.int().cumsum(dim).int(), x.any()
    )


# ---- indices


@step("fi", 2, decides=True)
def indexed(p, x, index):
    if kind(index) != "i" or x.dim() == 0 or index.numel() > 50:
        return None
    dim = p.axis(x)
    size = x.shape[dim]
    inside = index.clamp(0, size - 1).long()
    flat = inside.flatten()
    taken = [
        lambda: x.index_select(dim, flat),
        lambda: x.movedim(dim, 0)[inside],
        lambda: torch.take(x, inside),
    ]
    taken += [
        lambda: F.one_hot(inside, size),
        lambda: F.embedding(inside, p.weight(size, 3)),
    ]
    taken += [
        lambda: x.movedim(dim, -1).gather(
            -1, flat.expand(*x.movedim(dim, -1).shape[:-1], -1)
        )
    ]
    return p.pick(*taken)()


@step("fi", 2, decides=True)
def scattered(p, x, index):
    if kind(index) != "i" or x.dim() == 0 or index.numel() > 50:
        return None
    inside = index.clamp(0, x.shape[0] - 1).long().flatten()
    ones = torch.ones((len(inside), *x.shape[1:]), dtype=x.dtype)
    added = [
        lambda: x.index_put((inside,), ones[0], accumulate=False),
        lambda: x.index_fill(0, inside, 2),
    ]
    added += [
        lambda: (
            x.clamp(-4, 4).round().index_add(0, inside, ones)
            if kind(x) == "f"
            else x.index_add(0, inside, ones)
        )
    ]
    added += [
        lambda: x.scatter(
            0, inside.view(-1, *[1] * (x.dim() - 1)).expand_as(ones), ones
        )
    ]
    return p.pick(*added)()


# ---- layers


@step("f")
def projected(p, x):
    if x.dim() == 0:
        return None
    n = x.shape[-1]
    out = p.random.randint(1, 5)
    y = x if n <= 64 else x[..., :64]
    functions = [
        lambda: F.linear(y, p.weight(out, y.shape[-1]), p.weight(out)),
        lambda: y @ p.weight(y.shape[-1], out),
    ]
    functions += [
        lambda: F.layer_norm(x, (n,), eps=0.1),
        lambda: F.rms_norm(x, (n,), eps=0.1),
    ]
    if y.dim() > 1:
        functions += [
            lambda: (y @ y.transpose(-1, -2)).tanh(),
            lambda: F.scaled_dot_product_attention(y, y, y),
        ]
        functions += [
            lambda: torch.einsum("...ij,...kj->...ik", y, y).tanh(),
            lambda: F.glu(torch.cat((y, y), -1)),
        ]
    return p.pick(*functions)()


@step("f")
def imaged(p, x):
    """Layers for images and sequences, of what has three or four axes."""
    if x.dim() not in (3, 4) or min(x.shape) < 1 or x.shape[1] > 12:
        return None
    axes = x.dim() - 2
    c = x.shape[1]
    out = p.random.randint(1, 4)
    conv, pool, mean = (
        (F.conv1d, F.max_pool1d, F.avg_pool1d),
        (F.conv2d, F.max_pool2d, F.avg_pool2d),
    )[axes - 1]
    size = p.pick(1, 3)
    odd = {"padding": 1, "ceil_mode": p.pick(True, False)}
    functions = [
        lambda: conv(
            x,
            p.weight(out, c, *[size] * axes),
            p.weight(out),
            padding=1,
            stride=p.pick(1, 2),
        ),
        lambda: conv(x, p.weight(c, 1, *[size] * axes), padding=1, groups=c),
        lambda: mean(
            x, 2, stride=p.pick(1, 2), count_include_pad=p.pick(True, False), **odd
        ),
        lambda: F.batch_norm(
            x, p.weight(c), p.weight(c) ** 2 + 0.5, p.weight(c), p.weight(c)
        ),
        lambda: F.group_norm(x, 1, eps=0.1),
        lambda: F.instance_norm(x, eps=0.1) if math.prod(x.shape[2:]) > 1 else x.sin(),
        lambda: F.interpolate(x, scale_factor=2.0, mode="nearest"),
        lambda: F.interpolate(
            x, size=[3] * axes, mode=("linear", "bilinear")[axes - 1]
        ),
        lambda: pool(x, 2, stride=1, **odd) * 1.5,
        lambda: getattr(F, f"adaptive_avg_pool{axes}d")(x, 2),
    ]
    if axes == 2:
        functions += [
            lambda: F.conv_transpose2d(x, p.weight(c, out, 2, 2), stride=2),
            lambda: F.prelu(x, p.weight(1)),
        ]
        functions += [
            lambda: F.pixel_shuffle(torch.cat([x] * 4, 1), 2),
            lambda: F.unfold(x, 2, padding=1),
        ]
    return p.pick(*functions)()

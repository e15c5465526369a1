"""Small but whole networks of the kinds that devices run, with random weights and live
statistics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional


class Model(NamedTuple):
    """A module with the calls to make one after the other, and what of its sizes
    varies.
    """

    module: nn.Module
    calls: list[tuple[Any, ...]]
    shapes: Any = None


class BasicBlock(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.one = convolution(inputs, outputs, 3, stride)
        self.two = nn.Sequential(
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        )
        same = stride == 1 and inputs == outputs
        self.shortcut = (
            nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.two(self.one(x)) + self.shortcut(x))


def convolution(
    inputs: int,
    outputs: int,
    kernel: int,
    stride: int = 1,
    groups: int = 1,
    act: type[nn.Module] = nn.ReLU,
) -> nn.Sequential:
    layer = nn.Conv2d(
        inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False
    )
    return nn.Sequential(layer, nn.BatchNorm2d(outputs), act())


def resnet18(width: int = 16) -> nn.Module:
    stages = [
        (width, 1),
        (width, 1),
        (2 * width, 2),
        (2 * width, 1),
        (4 * width, 2),
        (4 * width, 1),
        (8 * width, 2),
    ]
    layers: list[nn.Module] = [convolution(3, width, 7, 2), nn.MaxPool2d(3, 2, 1)]
    inputs = width
    for outputs, stride in [*stages, (8 * width, 1)]:
        layers.append(BasicBlock(inputs, outputs, stride))
        inputs = outputs
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10)
    )


class Squeeze(nn.Module):
    """Channels weighted by what is in them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down = nn.Conv2d(channels, channels // 4, 1)
        self.up = nn.Conv2d(channels // 4, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.up(
            functional.relu(self.down(functional.adaptive_avg_pool2d(x, 1)))
        )
        return x * functional.hardsigmoid(weights)


class Inverted(nn.Module):
    """The inverted residual of MobileNet V2 and, with ``squeeze``, V3."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        stride: int,
        act: type[nn.Module],
        squeeze: bool,
    ) -> None:
        super().__init__()
        inner = 4 * inputs
        parts = [
            convolution(inputs, inner, 1, act=act),
            convolution(inner, inner, 3, stride, inner, act),
        ]
        parts += [Squeeze(inner)] if squeeze else []
        self.layers = nn.Sequential(
            *parts, nn.Conv2d(inner, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        )
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.residual else self.layers(x)


def mobilenet(act: type[nn.Module], squeeze: bool) -> nn.Module:
    layers: list[nn.Module] = [convolution(3, 16, 3, 2, act=act)]
    inputs = 16
    for outputs, stride in [
        (16, 1),
        (24, 2),
        (24, 1),
        (40, 2),
        (40, 1),
        (64, 2),
        (64, 1),
    ]:
        layers.append(Inverted(inputs, outputs, stride, act, squeeze))
        inputs = outputs
    return nn.Sequential(
        *layers,
        convolution(inputs, 128, 1, act=act),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


class UNet(nn.Module):
    """Down and up again, with connections across; what it computes is added to the
    image.
    """

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            [convolution(3, 8, 3), convolution(8, 16, 3), convolution(16, 32, 3)]
        )
        self.up = nn.ModuleList(
            [nn.ConvTranspose2d(32, 16, 2, 2), nn.ConvTranspose2d(16, 8, 2, 2)]
        )
        self.join = nn.ModuleList([convolution(32, 16, 3), convolution(16, 8, 3)])
        self.last = nn.Conv2d(8, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        one = self.down[0](x)
        two = self.down[1](functional.max_pool2d(one, 2))
        three = self.down[2](functional.max_pool2d(two, 2))
        two = self.join[0](torch.cat([two, self.up[0](three)], 1))
        return x + self.last(self.join[1](torch.cat([one, self.up[1](two)], 1)))


class Recurrent(nn.Module):
    """An LSTM or a GRU with a classifier on its last step."""

    def __init__(self, cell: type[nn.Module]) -> None:
        super().__init__()
        self.cell = cell(8, 16, 2, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0][:, -1])


class Attention(nn.Module):
    """Self-attention with its own projections."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            self.qkv(x)
            .view(batch, length, 3, self.heads, width // self.heads)
            .permute(2, 0, 3, 1, 4)
            .unbind(0)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, mask)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Layer(nn.Module):
    """A transformer's layer, normed after (BERT) or before (ViT)."""

    def __init__(self, width: int, heads: int, before: bool) -> None:
        super().__init__()
        self.before = before
        self.attention = Attention(width, heads)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if self.before:
            x = x + self.attention(self.norms[0](x), mask)
            return x + self.mlp(self.norms[1](x))
        x = self.norms[0](x + self.attention(x, mask))
        return self.norms[1](x + self.mlp(x))


class BertTiny(nn.Module):
    """Token and position embeddings, two layers, a pooled head."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.tokens = nn.Embedding(100, width)
        self.positions = nn.Embedding(16, width)
        self.layers = nn.ModuleList([Layer(width, 2, before=False) for _ in range(2)])
        self.pool = nn.Linear(width, width)
        self.head = nn.Linear(width, 3)

    def forward(self, ids: Tensor, attended: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        mask = (1.0 - attended[:, None, None, :].float()) * -1e4
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(torch.tanh(self.pool(x[:, 0])))


class ViTTiny(nn.Module):
    """Patches, a class token, two layers."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 8, 8)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, 17, width))
        self.layers = nn.Sequential(*[Layer(width, 3, before=True) for _ in range(2)])
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 10))

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        return self.head(self.layers(x)[:, 0])


class LlamaLayer(nn.Module):
    """A decoder's layer with rotary positions and a key-value cache that it writes."""

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.size = width // heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * width, width, bias=False)
        self.norms = nn.ModuleList([nn.RMSNorm(width), nn.RMSNorm(width)])
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(1, heads, length, self.size))
        angles = torch.outer(
            torch.arange(length), 10000 ** (-torch.arange(0, self.size, 2) / self.size)
        )
        self.register_buffer("cos", angles.cos().repeat(1, 2))
        self.register_buffer("sin", angles.sin().repeat(1, 2))

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        q, k, v = (
            t.view(1, 1, self.heads, self.size).transpose(1, 2)
            for t in self.qkv(self.norms[0](x)).chunk(3, -1)
        )
        self.keys.index_copy_(2, position, self.rotate(k, position))
        self.values.index_copy_(2, position, v)
        mask = torch.arange(self.keys.shape[2]) <= position
        mixed = functional.scaled_dot_product_attention(
            self.rotate(q, position), self.keys, self.values, mask[None]
        )
        x = x + self.out(mixed.transpose(1, 2).reshape(1, 1, -1))
        hidden = self.norms[1](x)
        return x + self.down(functional.silu(self.gate(hidden)) * self.up(hidden))

    def rotate(self, t: Tensor, position: Tensor) -> Tensor:
        first, second = t.chunk(2, -1)
        return (
            t * self.cos[position]
            + torch.cat([-second, first], -1) * self.sin[position]
        )


class Llama(nn.Module):
    """A decoder that takes one token at a position."""

    def __init__(self, width: int = 64, length: int = 32) -> None:
        super().__init__()
        self.tokens = nn.Embedding(100, width)
        self.layers = nn.ModuleList([LlamaLayer(width, 4, length) for _ in range(2)])
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, 100, bias=False)

    def forward(self, token: Tensor, position: Tensor) -> Tensor:
        x = self.tokens(token)
        for layer in self.layers:
            x = layer(x, position)
        return self.head(self.norm(x))


class Scaled(nn.Module):
    """A classifier of any number of rows, with one scale for all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(16, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8)
        )

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return functional.softmax(self.layers(x) * torch.sin(scale), -1)


def alive(module: nn.Module, *inputs: Any) -> nn.Module:
    """In eval mode, with statistics of batch norms that keep activations at their
    scale.
    """
    module.train()
    with torch.no_grad():
        for _ in range(3):
            module(*inputs)
    return module.eval()


def _image(size: int, batch: int = 1) -> Tensor:
    return torch.randn(
        batch, 3, size, size, generator=torch.Generator().manual_seed(size)
    )


def _tokens() -> tuple[Tensor, Tensor]:
    return torch.arange(12).view(1, 12) * 7 % 100, torch.tensor([[1] * 9 + [0] * 3])


def _vision(module: nn.Module, size: int) -> Model:
    return Model(alive(module, _image(size, 4)), [(_image(size),)])


def _dynamic() -> Model:
    calls = [(torch.randn(n, 16), torch.randn(8)) for n in (3, 16, 2)]
    return Model(Scaled().eval(), calls, ({0: Dim("batch", min=2, max=16)}, None))


MODELS: dict[str, Callable[[], Model]] = {
    "mlp": lambda: Model(
        nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 8)).eval(),
        [(torch.randn(4, 16),)],
    ),
    "resnet-18": lambda: _vision(resnet18(), 64),
    "mobilenet-v2": lambda: _vision(mobilenet(nn.ReLU6, squeeze=False), 64),
    "mobilenet-v3": lambda: _vision(mobilenet(nn.Hardswish, squeeze=True), 64),
    "u-net": lambda: _vision(UNet(), 32),
    "lstm": lambda: Model(Recurrent(nn.LSTM).eval(), [(torch.randn(2, 6, 8),)]),
    "gru": lambda: Model(Recurrent(nn.GRU).eval(), [(torch.randn(2, 6, 8),)]),
    "bert-tiny": lambda: Model(BertTiny().eval(), [_tokens()]),
    "vit-tiny": lambda: Model(ViTTiny().eval(), [(_image(32),)]),
    "llama": lambda: Model(
        Llama().eval(),
        [(torch.tensor([[3 * k % 100]]), torch.tensor([k])) for k in range(10)],
    ),
    "dynamic batch": _dynamic,
}

"""ViT-B/16, BERT-base and Llama in plain torch, with the structure that they have in
the `transformers` package.

    delegraph lower examples/transformer.py:bert_base --backend tosa -o bert.tosa
        --verify

ViT: https://arxiv.org/abs/2010.11929. BERT: https://arxiv.org/abs/1810.04805. Llama:
https://arxiv.org/abs/2302.13971, with the grouped queries of
https://arxiv.org/abs/2305.13245. Weights are random (seeded).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


def vit_b16(layers: int = 12, width: int = 768) -> tuple[nn.Module, tuple[Tensor]]:
    """Return ViT-B/16 in eval mode and an image of shape [1, 3, 224, 224]."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return VisionTransformer(layers, width).eval(), (torch.randn(1, 3, 224, 224),)


def bert_base(
    layers: int = 12, width: int = 768, length: int = 128
) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """Return BERT-base in eval mode, and token ids and an attention mask, both int64 of
    shape [1, length].
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        mask = (torch.arange(length) < length - length // 4).long()[None]
        return Bert(layers, width).eval(), (torch.randint(0, 1000, (1, length)), mask)


def llama_8(
    layers: int = 8, width: int = 512, length: int = 64
) -> tuple[nn.Module, tuple[Tensor]]:
    """Return a small decoder with Llama's structure in eval mode, and token ids, int64
    of shape [1, length].
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Decoder(
            words=8000,
            width=width,
            inner=width * 11 // 4,
            layers=layers,
            heads=8,
            groups=4,
        )
        return model.eval(), (torch.randint(0, 8000, (1, length)),)


class Attention(nn.Module):
    """[N, L, width] -> [N, L, width], bidirectional; ``mask`` selects the visible keys."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (
            nn.Linear(width, width) for _ in range(4)
        )

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        query, key, value = (
            split(part(x), self.heads) for part in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, mask)
        return self.out(mixed.transpose(1, 2).reshape(x.shape))


def split(x: Tensor, heads: int) -> Tensor:
    """[N, L, heads * size] -> [N, heads, L, size]"""
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)


class Layer(nn.Module):
    """Attention and a perceptron with shortcuts, normalized before (ViT) or after
    (BERT).
    """

    def __init__(self, width: int, heads: int, norm_first: bool) -> None:
        super().__init__()
        self.norm_first = norm_first
        self.attention = Attention(width, heads)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if self.norm_first:
            x = x + self.attention(self.norms[0](x), mask)
            return x + self.perceptron(self.norms[1](x))
        x = self.norms[0](x + self.attention(x, mask))
        return self.norms[1](x + self.perceptron(x))

    def perceptron(self, x: Tensor) -> Tensor:
        return self.narrow(functional.gelu(self.widen(x)))


class VisionTransformer(nn.Module):
    """[N, 3, 224, 224] -> [N, classes]"""

    def __init__(
        self, layers: int, width: int, classes: int = 1000, patch: int = 16
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, 1 + (224 // patch) ** 2, width))
        self.layers = nn.Sequential(
            *[Layer(width, width // 64, norm_first=True) for _ in range(layers)]
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        return self.head(self.norm(self.layers(x))[:, 0])


class Bert(nn.Module):
    """Token ids and attention mask [N, L] -> hidden states [N, L, width] and the pooled
    first one [N, width]
    """

    def __init__(
        self, layers: int, width: int, words: int = 30522, positions: int = 512
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.positions = nn.Embedding(positions, width)
        self.types = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(
            [Layer(width, width // 64, norm_first=False) for _ in range(layers)]
        )
        self.pool = nn.Linear(width, width)

    def forward(self, ids: Tensor, attended: Tensor) -> tuple[Tensor, Tensor]:
        places = torch.arange(ids.shape[1])[None]
        x = self.norm(
            self.words(ids)
            + self.positions(places)
            + self.types(torch.zeros_like(places))
        )
        mask = attended.bool()[:, None, None, :]
        for layer in self.layers:
            x = layer(x, mask)
        return x, torch.tanh(self.pool(x[:, 0]))


class RootMeanSquareNorm(nn.Module):
    """[*S, width] -> [*S, width], in float32 as Llama's is."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return self.weight * (
            wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        ).to(x.dtype)


class DecoderLayer(nn.Module):
    """Causal attention with rotary positions and grouped queries, and a gated
    perceptron.
    """

    def __init__(self, width: int, inner: int, heads: int, groups: int) -> None:
        super().__init__()
        self.heads = heads
        self.groups = groups
        self.norms = nn.ModuleList(
            [RootMeanSquareNorm(width), RootMeanSquareNorm(width)]
        )
        self.query, self.out = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.key, self.value = (
            nn.Linear(width, width // heads * groups, bias=False) for _ in range(2)
        )
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        y = self.norms[0](x)
        query = rotate(split(self.query(y), self.heads), cos, sin)
        key = rotate(split(self.key(y), self.groups), cos, sin)
        value = split(self.value(y), self.groups)
        mixed = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=True
        )
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        y = self.norms[1](x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions: [N, heads, L, size] -> the same."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class Decoder(nn.Module):
    """Token ids [N, L] -> logits [N, L, words]"""

    def __init__(
        self, words: int, width: int, inner: int, layers: int, heads: int, groups: int
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.norm = RootMeanSquareNorm(width)
        self.layers = nn.ModuleList(
            [DecoderLayer(width, inner, heads, groups) for _ in range(layers)]
        )
        self.head = nn.Linear(width, words, bias=False)
        size = width // heads
        self.register_buffer(
            "frequencies",
            10_000.0 ** -(torch.arange(0, size, 2) / size),
            persistent=False,
        )

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        angles = torch.arange(ids.shape[1]).float()[:, None] * self.frequencies
        angles = torch.cat((angles, angles), -1)
        cos = angles.cos().to(x.dtype)
        sin = angles.sin().to(x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.head(self.norm(x))

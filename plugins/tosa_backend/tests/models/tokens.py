"""Transformers on int64 tokens, as their authors write them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY = 37
WIDTH = 16
HEADS = 2
LENGTH = 12


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.after = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def heads(self, x):
        return [
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for part in self.qkv(self.norm(x)).chunk(3, -1)
        ]

    def rest(self, x, seen):
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.after(x))))

    def forward(self, x, mask):
        query, key, value = self.heads(x)
        return self.rest(x, F.scaled_dot_product_attention(query, key, value, mask))


class Encoder(nn.Module):
    """BERT-style: positions from a buffer, token types, a padding mask, the class of
    the sentence.
    """

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.types = nn.Embedding(2, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.register_buffer("positions", torch.arange(LENGTH)[None])
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, ids, types):
        x = (
            self.words(ids)
            + self.places(self.positions[:, : ids.shape[1]])
            + self.types(types)
        )
        mask = (ids != 0)[:, None, None, :]
        for block in self.blocks:
            x = block(x, mask)
        scores = self.head(x[:, 0])
        return scores, scores.argmax(-1)


class Padded(Encoder):
    """RoBERTa-style: positions count the tokens that are no padding."""

    def forward(self, ids, types):
        mask = ids.ne(0)
        places = torch.cumsum(mask.int(), 1).type_as(mask.int()) * mask
        x = self.words(ids) + self.places(places.long()) + self.types(types)
        return self.head(self.blocks[0](x, mask[:, None, None, :])), places


class Decoder(nn.Module):
    """Llama-style: one step that writes the caches at a position and looks at
    everything up to it.
    """

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.block = Block()
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(1, HEADS, LENGTH, WIDTH // HEADS))
        self.register_buffer("frequencies", 10.0 ** -torch.arange(0, 1, 0.25))

    def rotated(self, x, position):
        angle = (position[:, None].float() * self.frequencies).repeat(1, 2)
        low, high = x.chunk(2, -1)
        return x * angle.cos() + torch.cat((-high, low), -1) * angle.sin()

    def forward(self, ids, position):
        x = self.words(ids)
        query, key, value = self.block.heads(x)
        query = self.rotated(query, position)
        key = self.rotated(key, position)
        self.keys.index_copy_(2, position, key)
        self.values.index_copy_(2, position, value)
        seen = torch.arange(LENGTH)[None, :] <= position[:, None]
        y = self.block.rest(
            x, F.scaled_dot_product_attention(query, self.keys, self.values, seen)
        )
        return F.linear(y, self.words.weight), position + 1


class Experts(nn.Module):
    """Mixture of experts: the best two of four by topk, weighed by scatter."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.router = nn.Linear(WIDTH, 4)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, ids, types):
        x = self.words(ids) + self.words(types)
        scores, chosen = self.router(x).softmax(-1).topk(2)
        weights = torch.zeros(*ids.shape, 4).scatter(-1, chosen, scores)
        return (
            sum(
                weights[..., k : k + 1] * expert(x)
                for k, expert in enumerate(self.experts)
            ),
            chosen,
        )


IDS = torch.tensor([[5, 36, 1, 7, 0, 0], [1, 2, 3, 4, 5, 6]])
TYPES = torch.tensor([[0, 0, 1, 1, 0, 0]] * 2)
MODELS = {
    "encoder": (Encoder, (IDS, TYPES)),
    "padded": (Padded, (IDS, TYPES)),
    "decoder": (Decoder, (torch.tensor([[9]]), torch.tensor([3]))),
    "experts": (Experts, (IDS, TYPES)),
}

"""Networks on tokens, sound and tables. ``NAME_changed`` has the change of the hint."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

WORDS = 40
WIDTH = 16
HEADS = 2
LENGTH = 12


class Block(nn.Module):
    """Attention and an MLP, each after a norm."""

    def __init__(self, norm=nn.LayerNorm):
        super().__init__()
        self.norm = norm(WIDTH)
        self.after = norm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def heads(self, x):
        return (
            self.qkv(self.norm(x))
            .unflatten(-1, (3, HEADS, -1))
            .permute(2, 0, 3, 1, 4)
            .unbind()
        )

    def rest(self, x, query, key, value, mask=None):
        x = x + self.out(
            F.scaled_dot_product_attention(query, key, value, mask)
            .transpose(1, 2)
            .flatten(2)
        )
        return x + self.down(F.gelu(self.up(self.after(x))))

    def forward(self, x, mask=None):
        return self.rest(x, *self.heads(x), mask)


class BERT(nn.Module):
    """An encoder that adds the int64 mask of a tokenizer to its scores."""

    def __init__(self):
        super().__init__()
        self.words, self.places, self.types = (
            nn.Embedding(n, WIDTH) for n in (WORDS, LENGTH, 2)
        )
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, input_ids, attention_mask):
        places = self.places(torch.arange(input_ids.shape[1]))
        x = self.words(input_ids) + places + self.types(torch.zeros_like(input_ids))
        mask = (1 - attention_mask[:, None, None, :]) * torch.finfo(x.dtype).min
        for block in self.blocks:
            x = block(x, mask)
        return self.head(x[:, 0])


def bert(dtype=torch.int64):
    ids = torch.randint(1, WORDS, (2, 8))
    mask = torch.ones(2, 8, dtype=dtype)
    mask[1, 5:] = 0
    return {
        "model": BERT().eval(),
        "kwargs": {"input_ids": ids, "attention_mask": mask},
    }


def bert_changed():
    """The mask is int32."""
    return bert(torch.int32)


class GPT2(nn.Module):
    """A decoder for one token. Its caches are inputs, and outputs that are longer by
    one.
    """

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Embedding(64, WIDTH)
        self.block = Block()

    def forward(self, ids, position, past):
        x = self.words(ids) + self.places(position)
        query, key, value = self.block.heads(x)
        key = torch.cat((past[0], key), 2)
        value = torch.cat((past[1], value), 2)
        return F.linear(self.block.rest(x, query, key, value), self.words.weight), (
            key,
            value,
        )


def gpt2():
    length = Dim("length", min=2, max=63)
    return {
        **gpt2_changed(),
        "dynamic_shapes": (None, None, ({2: length}, {2: length})),
    }


def gpt2_changed():
    """The cache has a fixed length."""
    past = (
        torch.randn(1, HEADS, 5, WIDTH // HEADS),
        torch.randn(1, HEADS, 5, WIDTH // HEADS),
    )
    return {
        "model": GPT2().eval(),
        "args": (torch.tensor([[3]]), torch.tensor([[5]]), past),
    }


class Llama(nn.Module):
    """A decoder whose caches are buffers, written at positions counted by the mask."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.block = Block(nn.RMSNorm)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(1, HEADS, LENGTH, WIDTH // HEADS))
        self.register_buffer("frequencies", 10.0 ** -torch.arange(0, 1, 0.25))

    def rotate(self, x, places):
        angle = (places[:, None].float() * self.frequencies).repeat(1, 2)
        low, high = x.chunk(2, -1)
        return x * angle.cos() + torch.cat((-high, low), -1) * angle.sin()

    def forward(self, ids, attention_mask):
        places = attention_mask[0].cumsum(-1) - 1
        x = self.words(ids)
        query, key, value = self.block.heads(x)
        self.keys.index_copy_(2, places, self.rotate(key, places))
        self.values.index_copy_(2, places, value)
        seen = torch.arange(LENGTH) <= places[:, None]
        return (
            self.block.rest(x, self.rotate(query, places), self.keys, self.values, seen)
            @ self.words.weight.T
        )


def llama(dtype=torch.int64):
    return Llama().eval(), (torch.tensor([[4, 9, 2, 7]]), torch.ones(1, 4, dtype=dtype))


def llama_changed():
    """The mask is boolean."""
    return llama(torch.bool)


class Whisper(nn.Module):
    """From sound to mel bands, an encoder, and the scores of the next token."""

    def __init__(self):
        super().__init__()
        self.register_buffer("window", torch.hann_window(32))
        self.register_buffer("mel", torch.rand(17, 8))
        self.take = nn.Conv1d(8, WIDTH, 3, 2, 1)
        self.encode = Block()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.read = Block()
        self.look = nn.MultiheadAttention(WIDTH, HEADS)

    def forward(self, sound, tokens):
        sines = torch.stft(sound, 32, 16, window=self.window, return_complex=True)
        bands = (sines.abs().square().mT @ self.mel).clamp(min=1e-6).log10()
        states = self.encode(F.gelu(self.take(bands.mT)).mT).transpose(0, 1)
        causal = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).tril()
        x = self.read(self.words(tokens), causal)
        x = x + self.look(x.transpose(0, 1), states, states)[0].transpose(0, 1)
        return x @ self.words.weight.T


def whisper():
    return Whisper().eval(), (torch.randn(1, 160), torch.tensor([[1, 5, 7]]))


class Spotter(nn.Module):
    """From microphone frames to a keyword and the next state."""

    def __init__(self):
        super().__init__()
        self.filter = nn.Conv1d(8, 12, 3, 2, 1)
        self.body = nn.GRU(12, 12, batch_first=True)
        self.head = nn.Linear(12, 4)

    def forward(self, frames, state):
        y, state = self.body(F.relu(self.filter(frames.mT)).mT, state)
        return self.head(y[:, -1]).softmax(-1), state


def keyword_spotter():
    return Spotter().eval(), (torch.randn(1, 10, 8), torch.zeros(1, 1, 12))


class DLRM(nn.Module):
    """Numbers and hashed category ids, with all pairs of their embeddings."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(30, 8, mode="sum") for _ in range(3)
        )
        self.bottom = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(14, 1), nn.Sigmoid())
        self.register_buffer("pairs", torch.tril_indices(4, 4, -1))

    def forward(self, numbers, ids):
        x = self.bottom(numbers)
        found = [
            table(kind % 30)
            for table, kind in zip(self.tables, ids.unbind(1), strict=True)
        ]
        y = torch.stack((x, *found), 1)
        products = (y @ y.mT)[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat((x, products), 1))


def dlrm(dtype=torch.int64):
    return DLRM().eval(), (
        torch.randn(2, 4),
        torch.randint(0, 1000, (2, 3, 5), dtype=dtype),
    )


def dlrm_changed():
    """The ids are int32."""
    return dlrm(torch.int32)


class TimeSeries(nn.Module):
    """Patches of a series, normalized by its mean and deviation in double."""

    def __init__(self, dtype):
        super().__init__()
        self.take = nn.Linear(8, WIDTH)
        self.block = Block()
        self.dtype = dtype
        self.head = nn.Linear(7 * WIDTH, 6)

    def forward(self, x):
        wide = x.to(self.dtype)
        mean = wide.mean(1, keepdim=True)
        std = wide.std(1, keepdim=True, correction=0) + 1e-5
        patches = ((wide - mean) / std).float().unfold(1, 8, 4)
        y = self.head(self.block(self.take(patches)).flatten(1))
        return (y * std + mean).float()


def time_series(dtype=torch.float64):
    return TimeSeries(dtype).eval(), (torch.randn(2, 32),)


def time_series_changed():
    """All values are float32."""
    return time_series(torch.float32)


class CLIPText(nn.Module):
    """Returns the state at the end of the text, where the largest token is."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.block = Block()
        self.head = nn.Linear(WIDTH, 8, bias=False)

    def forward(self, tokens):
        count = tokens.shape[1]
        mask = torch.full((count, count), float("-inf")).triu_(1)
        x = self.block(self.words(tokens) + self.places(torch.arange(count)), mask)
        x = self.head(x[torch.arange(len(x)), tokens.argmax(-1)])
        return x / x.norm(dim=-1, keepdim=True)


def clip_text():
    return CLIPText().eval(), (torch.tensor([[1, 5, 39, 0], [3, 39, 0, 0]]),)

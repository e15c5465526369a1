"""Networks on sequences: recurrent ones on tokens, a Conformer on frames of sound."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY = 40
TAGS = 7


class Tagger(nn.Module):
    """Tokens [N, L] int64 -> scores [N, L, tags] and the best tags, int64; two layers
    that read both ways.
    """

    def __init__(self, recurrent: type[nn.RNNBase], **options) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, 16, padding_idx=0)
        self.body = recurrent(
            16,
            12,
            num_layers=2,
            batch_first=True,
            bidirectional=True,
            dropout=0.1,
            **options,
        )
        self.head = nn.Linear(24, TAGS)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.head(self.body(self.words(tokens))[0]).log_softmax(-1)
        return scores, scores.argmax(-1)


class Streaming(nn.Module):
    """Frames [N, L, 8] and a state (h, c) -> the results and the new state, one
    direction.
    """

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.LSTM(8, 12, batch_first=True, proj_size=6)
        self.head = nn.Linear(6, TAGS)

    def forward(
        self, frames: Tensor, h: Tensor, c: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        y, (h, c) = self.body(frames, (h, c))
        return self.head(y), h, c


class Seq2Seq(nn.Module):
    """A GRU reads the source; a GRU cell with attention to it writes the target, token
    by token.
    """

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, 16)
        self.reader = nn.GRU(16, 12)
        self.writer = nn.GRUCell(28, 12)
        self.head = nn.Linear(24, VOCABULARY)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        states, last = self.reader(self.words(source.t()))
        h = last[0]
        scores = []
        for token in target.unbind(1):
            weights = torch.einsum("lnh,nh->nl", states, h).softmax(-1)
            context = torch.einsum("lnh,nl->nh", states, weights)
            h = self.writer(torch.cat((self.words(token), context), -1), h)
            scores.append(self.head(torch.cat((h, context), -1)))
        return torch.stack(scores, 1)


class RelativeAttention(nn.Module):
    """Attention by content and by distance (https://arxiv.org/abs/1901.02860, appendix
    B for the shift).
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (
            nn.Linear(width, width) for _ in range(4)
        )
        self.position = nn.Linear(width, width, bias=False)
        self.content_bias, self.position_bias = (
            nn.Parameter(torch.randn(heads, width // heads)) for _ in range(2)
        )

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x: Tensor, positions: Tensor, padding: Tensor) -> Tensor:
        query, key, value = (
            self.split(layer(x)) for layer in (self.query, self.key, self.value)
        )
        by_content = (query + self.content_bias[:, None]) @ key.transpose(-2, -1)
        by_place = (query + self.position_bias[:, None]) @ self.split(
            self.position(positions)
        ).transpose(-2, -1)
        scores = (by_content + self.shift(by_place)) / math.sqrt(query.shape[-1])
        scores = scores.masked_fill(
            padding[:, None, None, :], torch.finfo(scores.dtype).min
        )
        return self.out((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))

    @staticmethod
    def shift(scores: Tensor) -> Tensor:
        """[N, H, L, 2L - 1] by distance -> [N, H, L, L] by place."""
        n, heads, length, distances = scores.shape
        padded = F.pad(scores, (1, 0)).view(n, heads, distances + 1, length)
        return padded[:, :, 1:].view(n, heads, length, distances)[..., :length]


class ConformerBlock(nn.Module):
    """Half a feed-forward, attention, convolution, half a feed-forward:
    https://arxiv.org/abs/2005.08100
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = self.feed_forward(width), self.feed_forward(width)
        self.norm = nn.LayerNorm(width)
        self.attention = RelativeAttention(width, 2)
        self.convolution = nn.Sequential(
            *(nn.Conv1d(width, 2 * width, 1), nn.GLU(dim=1)),
            *(
                nn.Conv1d(width, width, 7, padding=3, groups=width),
                nn.BatchNorm1d(width),
                nn.SiLU(),
            ),
            *(nn.Conv1d(width, width, 1), nn.Dropout(0.1)),
        )
        self.before = nn.LayerNorm(width)
        self.last = nn.LayerNorm(width)

    @staticmethod
    def feed_forward(width: int) -> nn.Module:
        return nn.Sequential(
            *(
                nn.LayerNorm(width),
                nn.Linear(width, 4 * width),
                nn.SiLU(),
                nn.Dropout(0.1),
            ),
            *(nn.Linear(4 * width, width), nn.Dropout(0.1)),
        )

    def forward(self, x: Tensor, positions: Tensor, padding: Tensor) -> Tensor:
        x = x + self.first(x) / 2
        x = x + self.attention(self.norm(x), positions, padding)
        y = self.before(x).masked_fill(padding[..., None], 0).transpose(1, 2)
        x = x + self.convolution(y).transpose(1, 2)
        return self.last(x + self.second(x) / 2)


class Conformer(nn.Module):
    """Frames [N, T, 16] and their numbers, int32 [N] -> log-probabilities [N, T / 4,
    tags] and the new numbers.
    """

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.reduce = nn.Sequential(
            nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1), nn.ReLU()
        )
        self.project = nn.Linear(8 * 4, width)
        self.blocks = nn.ModuleList(ConformerBlock(width) for _ in range(2))
        self.head = nn.Linear(width, TAGS)

    def forward(self, frames: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        x = self.project(self.reduce(frames[:, None]).transpose(1, 2).flatten(2))
        lengths = (lengths + 3) // 4
        padding = torch.arange(x.shape[1]) >= lengths[:, None]
        positions = self.positions(x)
        for block in self.blocks:
            x = block(x, positions, padding)
        return self.head(x).log_softmax(-1), lengths

    @staticmethod
    def positions(x: Tensor) -> Tensor:
        """Sines and cosines of the distances from L - 1 down to 1 - L, [1, 2L - 1,
        width].
        """
        length, width = x.shape[1:]
        frequencies = torch.exp(
            torch.arange(0, width, 2) * (-math.log(10000.0) / width)
        )
        angles = torch.arange(length - 1, -length, -1)[:, None] * frequencies
        return torch.stack((angles.sin(), angles.cos()), -1).flatten(1)[None]


TOKENS = torch.tensor([[5, 39, 1, 7, 0, 0], [1, 2, 3, 4, 5, 6]])
MODELS = {
    "LSTM tagger": lambda: (Tagger(nn.LSTM), (TOKENS,)),
    "GRU tagger": lambda: (Tagger(nn.GRU), (TOKENS,)),
    "RNN tagger": lambda: (Tagger(nn.RNN, nonlinearity="relu"), (TOKENS,)),
    "LSTM with a state": lambda: (
        Streaming(),
        (torch.randn(2, 5, 8), torch.randn(1, 2, 6), torch.randn(1, 2, 12)),
    ),
    "GRU with attention": lambda: (Seq2Seq(), (TOKENS, TOKENS[:, :4])),
    "Conformer": lambda: (
        Conformer(),
        (torch.randn(2, 24, 16), torch.tensor([24, 17], dtype=torch.int32)),
    ),
}


def built(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A model in eval mode and its inputs."""
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    return model.eval(), inputs

"""What it costs to take a decoder apart to core ATen for the host, when no backend
takes anything.

    python benchmarks/decomposing.py [--layers 1 8 32] [--repeats 5]

`delegraph.lower(program, backends=[])` of a small decoder of Llama's kind (RMS norm,
rotary positions, causal attention, SwiGLU), beside `torch.export` of the module and
`run_decompositions()` of the exported program, which traces all of it. CPU milliseconds
on one thread, medians of interleaved runs in one process, after a small decoder.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from statistics import median
from typing import Any

import measuring
import publishing
import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH = 64
HEADS = 4
INNER = 172
WORDS = 1000
LENGTH = 64


def main() -> None:
    """Measure decoders of each number of layers and print a table."""
    parser = publishing.parser(__doc__)
    parser.add_argument("--layers", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)  # torch's own, about its own code
    _runs(1, 1)
    header = (
        "layers",
        "nodes",
        "torch.export, ms",
        "run_decompositions, ms",
        "lower, ms",
        "nodes of core ATen",
    )
    rows = [_row(n, arguments.repeats) for n in arguments.layers]
    publishing.report(
        arguments, "decomposing", ["torch", "delegraph"], publishing.Table(header, rows)
    )


def _row(layers: int, repeats: int) -> list[str]:
    nodes, made, runs = _runs(layers, repeats)
    middle = (median(run[k] for run in runs) for k in range(3))
    return [
        str(layers),
        str(nodes),
        *(f"{1e3 * seconds:.0f}" for seconds in middle),
        str(made),
    ]


def _runs(layers: int, repeats: int) -> tuple[int, int, list[list[float]]]:
    """Nodes before and after, and the seconds of each run's steps."""
    import delegraph

    model = Decoder(layers).eval()
    ids = torch.randint(0, WORDS, (1, LENGTH))
    program: Any = torch.export.export(model, (ids,))
    steps: list[Callable[[], Any]] = [
        lambda: torch.export.export(model, (ids,)),
        lambda: program.run_decompositions(),
        lambda: delegraph.lower(program, backends=[]),
    ]
    runs = [[measuring.cpu_seconds(step)[1] for step in steps] for _ in range(repeats)]
    lowered = delegraph.lower(program, backends=[]).exported_program()
    return len(program.graph.nodes), len(lowered.graph.nodes), runs


class Decoder(nn.Module):
    """Token ids [1, length] -> logits [1, length, words]."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.norm = _Norm()
        self.layers = nn.ModuleList(_Layer() for _ in range(layers))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        size = WIDTH // HEADS
        self.register_buffer(
            "frequencies", 10_000.0 ** -(torch.arange(0, size, 2) / size)
        )

    def forward(self, ids: Tensor) -> Tensor:
        angles = torch.outer(
            torch.arange(ids.shape[1], device=ids.device).float(), self.frequencies
        )
        angles = torch.cat((angles, angles), -1)
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x, angles.cos(), angles.sin())
        logits: Tensor = self.head(self.norm(x))
        return logits


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before_attention = _Norm()
        self.before_gate = _Norm()
        self.query, self.key, self.value, self.out = (
            nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)
        )
        self.gate, self.up = (nn.Linear(WIDTH, INNER, bias=False) for _ in range(2))
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        y = self.before_attention(x)
        query, key, value = (
            _heads(made(y)) for made in (self.query, self.key, self.value)
        )
        seen = F.scaled_dot_product_attention(
            _turned(query, cos, sin), _turned(key, cos, sin), value, is_causal=True
        )
        x = x + self.out(seen.transpose(1, 2).reshape(x.shape))
        y = self.before_gate(x)
        made: Tensor = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return made


class _Norm(nn.Module):
    """Written out, as models that do not use nn.RMSNorm do."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def _heads(x: Tensor) -> Tensor:
    return x.view(x.shape[0], x.shape[1], HEADS, -1).transpose(1, 2)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


if __name__ == "__main__":
    main()

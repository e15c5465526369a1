"""Seconds until programs are functional: delegraph_programs.normalize and torch's
run_decompositions.

    python benchmarks/functional_form.py

MobileNetV2 comes from examples/, BERT from transformers, the decoder from below.
Each number is the best of three runs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import publishing
import torch
from delegraph_programs import normalize
from torch import nn

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
from mobilenet_v2 import mobilenet_v2


class Decoder(nn.Module):
    """Layers of attention that write keys and values of a step into caches."""

    def __init__(self, layers: int = 12, width: int = 256, length: int = 64) -> None:
        super().__init__()
        self.inputs = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.outputs = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.register_buffer("keys", torch.zeros(layers, 1, length, width))
        self.register_buffer("values", torch.zeros(layers, 1, length, width))

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """Return the states of one step; ``x`` is [1, 1, width]."""
        for k, (inputs, outputs) in enumerate(
            zip(self.inputs, self.outputs, strict=True)
        ):
            query, key, value = inputs(x).chunk(3, -1)
            self.keys[k].index_copy_(1, position, key)
            self.values[k].index_copy_(1, position, value)
            found = nn.functional.scaled_dot_product_attention(
                query, self.keys[k], self.values[k]
            )
            x = x + outputs(found)
        return x


def _models() -> dict[str, tuple[nn.Module, tuple[Any, ...]]]:
    """Name -> model and example inputs."""
    from transformers import BertConfig, BertModel

    bert = BertModel(BertConfig())
    return {
        "MobileNetV2": mobilenet_v2(),
        "BERT": (bert, (torch.ones(1, 128, dtype=torch.int64),)),
        "decoder with a cache": (
            Decoder(),
            (torch.randn(1, 1, 256), torch.tensor([3])),
        ),
    }


def _seconds(function: Callable[[], object]) -> float:
    """Return the shortest of three runs."""
    runs = []
    for _ in range(3):
        start = time.perf_counter()
        function()
        runs.append(time.perf_counter() - start)
    return min(runs)


def main() -> None:
    """Measure each model and print a table."""
    arguments = publishing.parser(__doc__).parse_args()
    torch.set_num_threads(1)
    rows = []
    for name, (model, inputs) in _models().items():
        with torch.no_grad():
            program = torch.export.export(model.eval(), inputs)
        ours = _seconds(lambda program=program: normalize(program))
        theirs = _seconds(lambda program=program: program.run_decompositions({}))
        rows.append(
            [name, f"{1e3 * ours:.1f}", f"{1e3 * theirs:.0f}", f"{theirs / ours:.0f}"]
        )
    header = ("model", "normalize, ms", "run_decompositions, ms", "times")
    distributions = ["torch", "transformers", "delegraph-programs"]
    publishing.report(
        arguments, "functional_form", distributions, publishing.Table(header, rows)
    )


if __name__ == "__main__":
    main()

"""What constants make of files: bytes of delegraph's files beside ExecuTorch's, and
beside the weights.

    python benchmarks/constants.py [MODEL ...]

Run it with an interpreter that has `executorch==1.5.1`, `transformers` and delegraph's
plugins. Models that make masks, positions and biases of numbers, with random weights:
encoders of SAM, DINOv2 and Whisper in small configurations of transformers, and one
attention of 64 channels at 512 positions with several masks. From one exported program:
the `.pte` with operators of the host alone, with XNNPACK, and with TOSA delegates, and
the `.tosa` file.
"""

from __future__ import annotations

import logging
import os
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import delegraph
import publishing
import torch
from torch import nn
from torch.nn import functional as F


class First(nn.Module):
    """A model of transformers, which returns its last hidden state."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.model(x)[0]
        return result


def sam() -> nn.Module:
    """Windows of 7 beside global attention, biases by relative position; 4.2 MB of
    weights.
    """
    from transformers import SamVisionConfig
    from transformers.models.sam.modeling_sam import SamVisionEncoder

    shape = {
        "image_size": 256,
        "patch_size": 16,
        "window_size": 7,
        "output_channels": 64,
    }
    size = {
        "hidden_size": 132,
        "num_hidden_layers": 4,
        "num_attention_heads": 6,
        "mlp_dim": 528,
    }
    config = SamVisionConfig(**shape, **size, global_attn_indexes=[1, 3])
    return First(SamVisionEncoder(config))


def dinov2() -> nn.Module:
    """257 positions, 12 heads; 8.5 MB of weights."""
    from transformers import Dinov2Config, Dinov2Model

    config = Dinov2Config(
        hidden_size=204,
        num_hidden_layers=4,
        num_attention_heads=12,
        image_size=224,
        patch_size=14,
    )
    return First(Dinov2Model(config))


def whisper() -> nn.Module:
    """1500 positions in a table; 7.6 MB of weights."""
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    size = {
        "d_model": 180,
        "encoder_layers": 4,
        "encoder_attention_heads": 6,
        "encoder_ffn_dim": 720,
    }
    return First(WhisperEncoder(WhisperConfig(**size, num_mel_bins=80)))


class Attention(nn.Module):
    """Four heads of 16 at 512 positions, with a mask that ``mask`` makes."""

    def __init__(
        self, mask: Callable[[int], torch.Tensor | None], causal: bool = False
    ) -> None:
        super().__init__()
        self.mask = mask
        self.causal = causal
        self.project = nn.Linear(64, 192)
        self.out = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            part.unflatten(-1, (4, 16)).transpose(1, 2)
            for part in self.project(x).chunk(3, -1)
        )
        y = F.scaled_dot_product_attention(
            q, k, v, self.mask(x.shape[1]), is_causal=self.causal
        )
        result: torch.Tensor = self.out(y.transpose(1, 2).flatten(-2))
        return result


def _compared(n: int) -> torch.Tensor:
    places = torch.arange(n)
    return torch.where(places[:, None] >= places, 0.0, torch.finfo(torch.float32).min)


MASKS: dict[str, Callable[[int], torch.Tensor | None]] = {
    "no mask": lambda n: None,
    "tril of ones": lambda n: torch.ones(n, n, dtype=torch.bool).tril(),
    "triu of -inf": lambda n: torch.full((n, n), -torch.inf).triu(1),
    "positions compared": _compared,
}
MODELS: dict[str, Callable[[], nn.Module]] = {
    "sam": sam,
    "dinov2": dinov2,
    "whisper": whisper,
    "attention, causal": lambda: Attention(lambda n: None, causal=True),
    **{f"attention, {name}": partial(Attention, mask) for name, mask in MASKS.items()},
}
INPUTS = {"sam": (1, 3, 256, 256), "dinov2": (1, 3, 224, 224), "whisper": (1, 80, 3000)}


COLUMNS = (
    *("model", "weights", "host", "ExecuTorch's host", "ratio"),
    *("XNNPACK", "ExecuTorch's XNNPACK", "XNNPACK ratio", "TOSA `.pte`", "`.tosa`"),
)


def main() -> None:
    """Measure all models, or those that are named, and print the table."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    parser = publishing.parser(__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL")
    given = parser.parse_args()
    rows = []
    for name in given.models or MODELS:
        torch.manual_seed(0)
        module = MODELS[name]()
        inputs = (torch.randn(INPUTS.get(name, (1, 512, 64))),)
        _scatter(module)
        with torch.no_grad():
            exported = torch.export.export(module.eval(), inputs)
        weights = sum(t.nbytes for t in {*module.parameters(), *module.buffers()})
        cells = [weights]
        for backend, theirs in (
            ([], _theirs(exported)),
            (["xnnpack"], _theirs_xnnpack(exported)),
        ):
            ours = _ours(exported, backend, ".pte")
            cells += [ours, theirs, f"{ours / theirs:.3f}"]
        cells += [_ours(exported, ["tosa"], suffix) for suffix in (".pte", ".tosa")]
        rows.append(
            publishing.told(
                [name, *(c if isinstance(c, str) else f"{c:,}" for c in cells)]
            )
        )
    publishing.report(
        given,
        "constants",
        ["torch", "executorch", "transformers"],
        publishing.Table(COLUMNS, rows),
    )


def _scatter(module: nn.Module) -> None:
    """Move each weight a little: those that start alike, such as biases of zeros, a
    file would hold once.
    """
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.02)


def _ours(exported: Any, backends: list[str], suffix: str) -> int:
    lowered = delegraph.lower(exported, backends=backends)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"model{suffix}")
        lowered.save(path)
        return os.path.getsize(path)


def _theirs(exported: Any) -> int:
    from executorch.exir import to_edge

    return len(to_edge(exported).to_executorch().buffer)


def _theirs_xnnpack(exported: Any) -> int:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
        XnnpackPartitioner,
    )
    from executorch.exir import to_edge_transform_and_lower

    return len(
        to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()])
        .to_executorch()
        .buffer
    )


if __name__ == "__main__":
    main()

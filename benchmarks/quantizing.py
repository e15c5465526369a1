"""Whole models quantized by TOSAQuantizer: how near the TOSA file is to the Q/DQ graph
in eager, and to floats.

Run: python benchmarks/quantizing.py [MODEL ...]
"""

from __future__ import annotations

import math
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import delegraph
import publishing
import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.graph import CodeGen

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
OPTIONS = {"tosa": {"spec": "TOSA-1.0+INT"}}
BATCHES = 8
CLASSES = 10
STEPS = 400
RATE = 2e-3


class Tagger(nn.Module):
    """LSTM: x [N,T,16] -> [N,T,8]"""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(16, 32, batch_first=True)
        self.out = nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(x)[0])


def mobilenet_v2() -> tuple[nn.Module, list[tuple[Tensor, ...]]]:
    """Trained on stripes of 64 x 64 pixels, for about a minute; compared on 32 images
    of 224 x 224.
    """
    from mobilenet_v2 import MobileNetV2

    model = MobileNetV2(CLASSES).train()
    optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=STEPS)
    for _ in range(STEPS):
        images, directions = _stripes(32, 64)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), directions).backward()
        optimizer.step()
        schedule.step()
    for module in model.modules():
        # statistics of the size that is quantized
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None
    with torch.no_grad():
        for _ in range(2):
            model(_stripes(16, 224)[0])
    return model.eval(), [(image[None],) for image in _stripes(32, 224)[0]]


def _stripes(count: int, size: int) -> tuple[Tensor, Tensor]:
    """Noisy stripes of any color, width and place: images [count,3,size,size], and
    which of ten directions each has.
    """
    directions = torch.randint(CLASSES, (count,))
    angles = ((directions + 0.6 * (torch.rand(count) - 0.5)) * math.pi / CLASSES)[
        :, None, None
    ]
    frequency = (2 * math.pi / (6 + 6 * torch.rand(count)))[:, None, None]
    shift = 2 * math.pi * torch.rand(count)[:, None, None]
    y, x = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    waves = torch.sin(frequency * (x * angles.cos() + y * angles.sin()) + shift)
    return (
        waves[:, None] * torch.randn(count, 3, 1, 1)
        + 0.5 * torch.randn(count, 3, size, size),
        directions,
    )


def mobilenet_v2_random() -> tuple[nn.Module, list[tuple[Tensor, ...]]]:
    from mobilenet_v2 import mobilenet_v2 as make

    return make()[0], _images(224)


def resnet18() -> tuple[nn.Module, list[tuple[Tensor, ...]]]:
    from resnet import resnet18 as make

    return make()[0], _images(224)


def keyword_spotter() -> tuple[nn.Module, list[tuple[Tensor, ...]]]:
    from quantized import keyword_spotter as make

    return make()[0], [(torch.randn(1, 1, 49, 10),) for _ in range(BATCHES)]


def vit_tiny() -> tuple[nn.Module, list[tuple[Tensor, ...]]]:
    from transformer import vit_b16

    return vit_b16(layers=4, width=192)[0], _images(224)


def bert_tiny() -> tuple[nn.Module, list[tuple[Tensor, ...]]]:
    from transformer import bert_base

    model, (ids, mask) = bert_base(layers=2, width=128, length=64)
    return model, [(torch.randint_like(ids, 1000), mask) for _ in range(BATCHES)]


def lstm() -> tuple[nn.Module, list[tuple[Tensor, ...]]]:
    return Tagger().eval(), [(torch.randn(1, 12, 16),) for _ in range(BATCHES)]


def _images(size: int) -> list[tuple[Tensor, ...]]:
    return [(torch.randn(1, 3, size, size),) for _ in range(BATCHES)]


MODELS = {
    "MobileNetV2": mobilenet_v2,
    "MobileNetV2, random": mobilenet_v2_random,
    "ResNet-18": resnet18,
    "keyword spotter": keyword_spotter,
    "ViT, width 192, 4 layers": vit_tiny,
    "BERT, width 128, 2 layers": bert_tiny,
    "LSTM, 12 steps": lstm,
}
COLUMNS = (
    *(
        "network",
        "quantize, s",
        "lower, s",
        "delegates",
        "on the host",
        "equal",
        "within a step",
    ),
    *("SNR, dB", "against floats, dB", "equal top-1", "worst layer alone"),
)


def main() -> None:
    """Print a row for each model."""
    warnings.simplefilter("ignore")
    parser = publishing.parser(__doc__)
    parser.add_argument(
        "networks", nargs="*", metavar="NETWORK", help=", ".join(MODELS)
    )
    given = parser.parse_args()
    rows = []
    for name in given.networks or MODELS:
        torch.manual_seed(0)
        rows.append(publishing.told([name, *measure(*MODELS[name]())]))
    publishing.report(
        given,
        "quantizing",
        ["torch", "torchao", "delegraph-tosa"],
        publishing.Table(COLUMNS, rows),
    )


def measure(model: nn.Module, batches: list[tuple[Tensor, ...]]) -> list[str]:
    """The cells of a row."""
    start = time.perf_counter()
    quantized = delegraph.quantize(model, batches)
    quantizing = time.perf_counter() - start
    start = time.perf_counter()
    lowered = delegraph.lower(quantized, options=OPTIONS)
    lowering = time.perf_counter() - start
    eager = quantized.module(check_guards=False)
    with torch.no_grad():
        rows = [
            tuple(_first(run(*b)) for run in (lowered, eager, model)) for b in batches
        ]
    got, expected, floats = (torch.stack(column) for column in zip(*rows, strict=True))
    step = _step(quantized)
    off = ((got - expected) / step).abs()
    same = (got.argmax(-1) == expected.argmax(-1)).double().mean()
    border = ("quantize_per_tensor", "dequantize_per_tensor")
    left = sum(
        not any(name in refusal.operator for name in border)
        for refusal in lowered.report.refusals
    )
    figures = [
        f"{(off < 0.5).double().mean():.2%}",
        f"{(off < 1.5).double().mean():.2%}",
    ]
    ratios = [
        f"{_ratio(got, expected):.1f}",
        f"{_ratio(got, floats):.1f}",
        f"{same:.0%}",
    ]
    times = [
        f"{quantizing:.1f}",
        f"{lowering:.2f}",
        str(len(lowered.delegates)),
        str(left),
    ]
    return [*times, *figures, *ratios, f"{_worst_layer(quantized, batches[:2]):.3%}"]


def _worst_layer(quantized: Any, batches: list[tuple[Tensor, ...]]) -> float:
    """The smallest share of equal integers of a layer that is given the integers of the
    Q/DQ graph.

    The graph is cut behind each quantize: what it gives is an output, and what its
    users read is an input.
    """
    eager = quantized.module(check_guards=False)
    graph = eager.graph
    layers = [
        node
        for node in graph.nodes
        if "quantize_per_tensor" in str(node.target).split(".")
    ]
    values = [_values(eager, layers, batch) for batch in batches]
    *_, last = graph.find_nodes(op="placeholder")
    for position, layer in reversed(list(enumerate(layers))):
        with graph.inserting_after(last):
            layer.replace_all_uses_with(graph.placeholder(f"layer_{position}"))
    graph.output_node().args = (tuple(layers),)
    graph.set_codegen(CodeGen())
    inputs = [(*batch, *given) for batch, given in zip(batches, values, strict=True)]
    lowered = delegraph.lower(
        torch.export.export(GraphModule(eager, graph), inputs[0]), options=OPTIONS
    )
    shares = []
    for given, wanted in zip(inputs, values, strict=True):
        shares.append(
            [
                (a == b).double().mean()
                for a, b in zip(lowered(*given), wanted, strict=True)
            ]
        )
    return float(torch.tensor(shares).mean(0).min())


def _values(
    module: GraphModule, nodes: list[Node], batch: tuple[Tensor, ...]
) -> list[Tensor]:
    """What the nodes compute."""

    class Recorder(Interpreter):
        def run_node(self, n: Node) -> Any:
            found[n] = super().run_node(n)
            return found[n]

    found: dict[Node, Any] = {}
    with torch.no_grad():
        Recorder(module).run(*batch)
    return [found[node] for node in nodes]


def _first(result: Any) -> Tensor:
    return (result if isinstance(result, Tensor) else result[0]).double()


def _step(quantized: Any) -> float:
    result, *_ = quantized.graph.output_node().args[0]
    return float(result.args[1]) if "dequantize" in str(result.target) else float("nan")


def _ratio(got: Tensor, wanted: Tensor) -> float:
    return float(
        10 * torch.log10(wanted.square().sum() / (got - wanted).square().sum())
    )


if __name__ == "__main__":
    main()

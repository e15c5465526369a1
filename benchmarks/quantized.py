"""Quantized networks as integer TOSA: operators, time, agreement with the Q/DQ graph,
and cycles on an Ethos-U85-256.

    python benchmarks/quantized.py [NAME ...] [--vela VELA] [--executorch]

The networks are quantized by ExecuTorch's TOSAQuantizer (int8, weights per channel), on
one random batch, and lowered for TOSA-1.0+INT. CPU time: the median of three, after a
first one, beside a warm torch.export of the quantized module. "within a step" and
"equal" are shares of the results, of five random inputs, against the Q/DQ graph in
eager. ``--vela`` names the program of ethos-u-vela, for the last two columns.
``--executorch`` adds a row for the file that ExecuTorch makes of the same Q/DQ graph;
it takes minutes.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import delegraph
import publishing
import torch
from torch import nn
from torch.export import ExportedProgram

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import mobilenet_v2
import resnet
import transformer

warnings.simplefilter("ignore")
SPEC = "TOSA-1.0+INT"
COLUMNS = (
    "network", "file", "lower, CPU s", "of export", "operators", "RESCALE", "TRANSPOSE", "RESHAPE", "within a step",
    "equal", "on the NPU", "cycles",
)  # fmt: skip


class KeywordSpotter(nn.Module):
    """The depthwise separable network of https://arxiv.org/abs/1711.07128 (S): [N, 1,
    49, 10] -> [N, 12]
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = self._layer(nn.Conv2d(1, 64, (10, 4), (2, 2), (5, 1), bias=False))
        self.blocks = nn.Sequential(*[self._block() for _ in range(4)])
        self.classifier = nn.Linear(64, 12)

    def _block(self) -> nn.Sequential:
        depthwise = nn.Conv2d(64, 64, 3, padding=1, groups=64, bias=False)
        return nn.Sequential(
            self._layer(depthwise), self._layer(nn.Conv2d(64, 64, 1, bias=False))
        )

    def _layer(self, convolution: nn.Conv2d) -> nn.Sequential:
        return nn.Sequential(convolution, nn.BatchNorm2d(64), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pooled = nn.functional.adaptive_avg_pool2d(self.blocks(self.first(x)), 1)
        return self.classifier(pooled.flatten(1))


def keyword_spotter() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """With the batch-norm statistics of a random batch."""
    torch.manual_seed(0)
    model = KeywordSpotter().train()
    with torch.no_grad():
        model(torch.randn(16, 1, 49, 10))
    return model.eval(), (torch.randn(1, 1, 49, 10),)


NETWORKS: dict[str, Callable[[], tuple[nn.Module, tuple[torch.Tensor]]]] = {
    "keyword spotter": keyword_spotter,
    "MobileNetV2": mobilenet_v2.mobilenet_v2,
    "ResNet-18": resnet.resnet18,
    "ViT, 2 layers": lambda: transformer.vit_b16(layers=2, width=192),
}


def main() -> None:
    """Print the table."""
    parser = publishing.parser(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NETWORKS))
    parser.add_argument("--vela")
    parser.add_argument("--executorch", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in options.names or NETWORKS:
        module, inputs = quantized(*NETWORKS[name]())
        program = torch.export.export(module, inputs)
        rows.append([name, *_ours(module, program, inputs, options.vela)])
        if options.executorch:
            rows.append([name, *_executorch(program, options.vela)])
    packages = [
        "torch",
        "torchao",
        "executorch",
        "delegraph-tosa",
        *publishing.of_vela(options.vela),
    ]
    publishing.report(
        options, "quantized", packages, publishing.Table(COLUMNS, rows, keys=2)
    )


def quantized(
    module: nn.Module, inputs: tuple[torch.Tensor]
) -> tuple[nn.Module, tuple[torch.Tensor]]:
    """The network with quantize and dequantize calls."""
    from executorch.backends.arm.quantizer import (
        TOSAQuantizer,
        get_symmetric_quantization_config,
    )
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    quantizer = TOSAQuantizer(_compile_spec()).set_global(
        get_symmetric_quantization_config()
    )
    prepared = prepare_pt2e(
        torch.export.export(module, inputs).module(check_guards=False), quantizer
    )
    with torch.no_grad():
        for _ in range(4):
            prepared(torch.randn_like(inputs[0]))
    return convert_pt2e(prepared), inputs


def _compile_spec() -> Any:
    from executorch.backends.arm.tosa.compile_spec import TosaCompileSpec
    from executorch.backends.arm.tosa.specification import TosaSpecification

    return TosaCompileSpec(TosaSpecification.create_from_string(SPEC))


def _ours(
    module: nn.Module,
    program: ExportedProgram,
    inputs: tuple[torch.Tensor],
    vela: str | None,
) -> list[str]:
    export = []
    lower = []
    for _ in range(4):
        start = process_time()
        torch.export.export(module, inputs)
        middle = process_time()
        lowered = delegraph.lower(
            program, backends=["tosa"], options={"tosa": {"spec": SPEC}}
        )
        export.append(middle - start)
        lower.append(process_time() - middle)
    assert len(lowered.delegates) == 1, str(lowered.report)
    within, equal = _agreement(lowered, program, inputs)
    counts = judged(bytes(lowered.delegates[0].processed_bytes), vela)
    time = median(lower[1:])
    share = median(lower[1:]) / median(export[1:])
    return [
        "delegraph",
        f"{time:.2f}",
        f"{share:.2f}",
        *counts[:4],
        f"{within:.4f}",
        f"{equal:.4f}",
        *counts[4:],
    ]


def _agreement(
    lowered: Any, program: ExportedProgram, inputs: tuple[torch.Tensor]
) -> tuple[float, float]:
    """Shares of results that are at most one step away, and that are equal."""
    scale: Any = [
        n for n in program.graph.nodes if "dequantize_per_tensor" in str(n.target)
    ][-1].args[1]
    eager = program.module(check_guards=False)
    distances = []
    with torch.no_grad():
        for _ in range(5):
            given = torch.randn_like(inputs[0])
            distances.append(((eager(given) - lowered(given)) / scale).abs().round())
    steps = torch.stack(distances)
    return (steps <= 1).double().mean().item(), (steps == 0).double().mean().item()


def _executorch(program: ExportedProgram, vela: str | None) -> list[str]:
    from executorch.backends.arm.tosa.partitioner import TOSAPartitioner
    from executorch.exir import to_edge_transform_and_lower

    with tempfile.TemporaryDirectory() as folder:
        start = process_time()
        spec = _compile_spec().dump_intermediate_artifacts_to(folder)
        to_edge_transform_and_lower(program, partitioner=[TOSAPartitioner(spec)])
        time = process_time() - start
        (path,) = Path(folder).glob("*.tosa")
        counts = judged(path.read_bytes(), vela)
    return ["ExecuTorch", f"{time:.2f}", "", *counts[:4], "", "", *counts[4:]]


def judged(blob: bytes, vela: str | None) -> list[str]:
    """Operators in all, RESCALE, TRANSPOSE, RESHAPE; the share on the NPU, and cycles."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.tosa"
        path.write_bytes(blob)
        names = _operators(path)
        counts = [
            str(sum(names.values())),
            *(str(names[name]) for name in ("RESCALE", "TRANSPOSE", "RESHAPE")),
        ]
        return [*counts, *(_compiled(vela, path) if vela else ("", ""))]


def _operators(path: Path) -> Counter[str]:
    """Operators of a file but for constants, as flatc of tosa-tools reads them: our
    reader refuses ExecuTorch's.
    """
    import tosa_reference_model

    tools = Path(tosa_reference_model.__file__).parents[1] / "bin"
    arguments = [
        "--json",
        "--raw-binary",
        "--strict-json",
        "-o",
        str(path.parent),
        str(tools / "tosa.fbs"),
        "--",
    ]
    subprocess.run(
        [str(tools / "flatc"), *arguments, str(path)], check=True, capture_output=True
    )
    regions = json.loads(path.with_suffix(".json").read_text())["regions"]
    names = [
        operator["op"]
        for region in regions
        for block in region["blocks"]
        for operator in block["operators"]
    ]
    return Counter(name for name in names if not name.startswith("CONST"))


def _compiled(vela: str, path: Path) -> tuple[str, str]:
    """What Vela says of the file."""
    arguments = [
        str(path),
        "--accelerator-config",
        "ethos-u85-256",
        "--output-dir",
        str(path.parent),
    ]
    output = subprocess.run(
        [vela, *arguments], check=True, capture_output=True, text=True, env={}
    ).stdout
    (share,) = [
        line.split("(")[1].rstrip(")")
        for line in output.splitlines()
        if line.startswith("NPU operators")
    ]
    (summary,) = path.parent.glob("*summary*.csv")
    with open(summary) as file:
        return share, f"{int(float(next(csv.DictReader(file))['cycles_total'])):,}"


if __name__ == "__main__":
    main()

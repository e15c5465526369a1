"""Quantized networks on Ethos-U NPUs, as Vela estimates them: cycles, SRAM and
accuracy, beside ExecuTorch's.

    python benchmarks/ethos_u.py [NAME ...] --vela VELA [--executorch PYTHON] [--into
        FOLDER]

Every network is quantized to int8 by its side's own quantizer (`delegraph.quantize`,
`EthosUQuantizer`) from the same eight random batches, and lowered for the accelerator,
float borders left to the host. ``--vela`` compiles the TOSA files of both sides, with
the system configuration and memory mode that ExecuTorch takes for the accelerator.
``--executorch`` names the interpreter of an environment with `executorch[ethos-u]`,
`delegraph` and `delegraph-tosa`: its extra pins another Vela and other tosa-tools.
SQNR: the quantized program against floats, on eight other batches, in eager. Left over:
operators that the host computes, without quantize and dequantize at the borders; where
a side leaves more than the other, their cycles are not of the same work. What is in
FOLDER already is not made again, so a run that was interrupted goes on; remove the `*
ours*` there to measure delegraph anew.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import publishing
import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import mobilenet_v2
import resnet
import transformer

from plugins.tosa_backend.tests.models.vision import (
    InvertedResidual,
    YOLOHead,
    convolution,
)

warnings.simplefilter("ignore")
COLUMNS = (
    *(
        "network",
        "accelerator",
        "cycles",
        "channels last",
        "ExecuTorch's cycles",
        "SRAM, kB",
        "its SRAM, kB",
    ),
    *("SQNR, dB", "its SQNR, dB", "left over", "its left over"),
)
ACCELERATORS = {
    "ethos-u85-256": ("Ethos_U85_SYS_DRAM_Mid", "Sram_Only"),
    "ethos-u55-128": ("Ethos_U55_High_End_Embedded", "Shared_Sram"),
}
"""Accelerator -> system configuration and memory mode."""
BATCHES = 8
SPECS = {
    "ethos-u85-256": "TOSA-1.0+INT+int16+u85",
    "ethos-u55-128": "TOSA-1.0+INT+int16+u55",
}
"""Accelerator -> the target that delegraph lowers for."""


def mobilenet_v3_small() -> nn.Module:
    """https://arxiv.org/abs/1905.02244, table 2"""
    relu = nn.ReLU
    swish = nn.Hardswish
    gate = nn.Hardsigmoid
    blocks = [
        (16, 16, 16, 3, 2, relu, 8), (16, 72, 24, 3, 2, relu, 0), (24, 88, 24, 3, 1, relu, 0),
        (24, 96, 40, 5, 2, swish, 24), (40, 240, 40, 5, 1, swish, 64), (40, 240, 40, 5, 1, swish, 64),
        (40, 120, 48, 5, 1, swish, 32), (48, 144, 48, 5, 1, swish, 40), (48, 288, 96, 5, 2, swish, 72),
        (96, 576, 96, 5, 1, swish, 144), (96, 576, 96, 5, 1, swish, 144),
    ]  # fmt: skip
    return nn.Sequential(
        convolution(3, 16, stride=2, activation=swish),
        *(InvertedResidual(*block, gate) for block in blocks),
        convolution(96, 576, 1, activation=swish),
        *(
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(576, 1024),
            swish(),
            nn.Linear(1024, 1000),
        ),
    )


def efficientnet_b0() -> nn.Module:
    """https://arxiv.org/abs/1905.11946, table 1"""
    stages = [
        (32, 16, 1, 3, 1, 1), (16, 24, 6, 3, 2, 2), (24, 40, 6, 5, 2, 2), (40, 80, 6, 3, 2, 3),
        (80, 112, 6, 5, 1, 3), (112, 192, 6, 5, 2, 4), (192, 320, 6, 3, 1, 1),
    ]  # fmt: skip
    blocks = []
    for inputs, outputs, expansion, kernel, stride, count in stages:
        for number in range(count):
            i, s = (outputs, 1) if number else (inputs, stride)
            blocks.append(
                InvertedResidual(
                    i,
                    i * expansion,
                    outputs,
                    kernel,
                    s,
                    nn.SiLU,
                    max(1, i // 4),
                    nn.Sigmoid,
                )
            )
    return nn.Sequential(
        convolution(3, 32, stride=2, activation=nn.SiLU),
        *blocks,
        convolution(320, 1280, 1, activation=nn.SiLU),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000)),
    )


class UNet(nn.Module):
    """https://arxiv.org/abs/1505.04597, with 16 to 128 channels: [N,3,H,W] -> [N,4,H,W]"""

    def __init__(self) -> None:
        super().__init__()
        widths = (16, 32, 64, 128)
        self.down = nn.ModuleList(
            self.double(a, b) for a, b in zip((3, *widths), widths, strict=False)
        )
        self.raised = nn.ModuleList(
            nn.ConvTranspose2d(2 * w, w, 2, stride=2) for w in widths[-2::-1]
        )
        self.up = nn.ModuleList(self.double(2 * w, w) for w in widths[-2::-1])
        self.head = nn.Conv2d(widths[0], 4, 1)

    @staticmethod
    def double(inputs: int, outputs: int) -> nn.Module:
        """Two convolutions that keep the size."""
        return nn.Sequential(
            convolution(inputs, outputs), convolution(outputs, outputs)
        )

    def forward(self, x: Tensor) -> Tensor:
        beside = []
        for number, down in enumerate(self.down):
            x = down(F.max_pool2d(x, 2) if number else x)
            beside.append(x)
        for raised, up, skip in zip(self.raised, self.up, beside[-2::-1], strict=True):
            x = up(torch.cat((skip, raised(x)), 1))
        return self.head(x)


class YOLOMaps(YOLOHead):
    """The maps of a YOLO head, without the boxes that ExecuTorch leaves to the host:
    [N,3,H,W] -> [N,37,anchors]
    """

    def decode(
        self, y: Tensor, boxes: nn.Module, classes: nn.Module, stride: int
    ) -> Tensor:
        """y [N,C,H,W] -> [N,37,H*W]"""
        return torch.cat((boxes(y), classes(y)), 1).flatten(2)


class DSCNN(nn.Module):
    """The depthwise separable network of https://arxiv.org/abs/1711.07128 (S):
    [N,1,49,10] -> [N,12]
    """

    def __init__(self) -> None:
        super().__init__()
        first = nn.Conv2d(1, 64, (10, 4), (2, 2), (5, 1), bias=False)
        layers = [first, nn.BatchNorm2d(64), nn.ReLU()]
        for _ in range(4):
            layers += [convolution(64, 64, groups=64), convolution(64, 64, 1)]
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(64, 12)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(F.adaptive_avg_pool2d(self.features(x), 1).flatten(1))


class Recurrent(nn.Module):
    """The last state of a recurrent network, classified: [N,T,inputs] -> [N,12]"""

    def __init__(self, cell: type[nn.Module], inputs: int, width: int) -> None:
        super().__init__()
        self.cells = cell(inputs, width, batch_first=True)
        self.out = nn.Linear(width, 12)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.cells(x)[0][:, -1])


class Encoder(nn.Module):
    """BERT-tiny behind its embeddings: [N,L,128] -> [N,L,128] (2 layers of 2 heads,
    https://arxiv.org/abs/1908.08962)
    """

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(128)
        self.layers = nn.Sequential(
            *(transformer.Layer(128, 2, norm_first=False) for _ in range(2))
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(self.norm(x))


def _image(size: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(1, 3, size, size)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "MobileNetV2": (lambda: mobilenet_v2.mobilenet_v2()[0], _image(224)),
    "ResNet-18": (lambda: resnet.resnet18()[0], _image(224)),
    "MobileNetV3-small": (mobilenet_v3_small, _image(224)),
    "EfficientNet-B0": (efficientnet_b0, _image(224)),
    "U-Net": (UNet, _image(256)),
    "YOLO head": (YOLOHead, _image(64)),
    "YOLO head, maps": (YOLOMaps, _image(64)),
    "DS-CNN": (DSCNN, lambda: torch.randn(1, 1, 49, 10)),
    "LSTM": (lambda: Recurrent(nn.LSTM, 16, 32), lambda: torch.randn(1, 10, 16)),
    "KWS-GRU": (lambda: Recurrent(nn.GRU, 10, 64), lambda: torch.randn(1, 25, 10)),
    "BERT-tiny": (Encoder, lambda: torch.randn(1, 32, 128)),
    "ViT-tiny": (lambda: transformer.vit_b16(layers=12, width=192)[0], _image(224)),
    "ViT-tiny, 2 layers": (
        lambda: transformer.vit_b16(layers=2, width=192)[0],
        _image(224),
    ),
}
"""Name -> what builds the network, and what draws an input."""


def network(name: str) -> tuple[nn.Module, list[tuple[Tensor]]]:
    """The network in eval mode, its batch norms with the statistics of a batch, and
    twice BATCHES inputs.
    """
    build, draw = NETWORKS[name]
    torch.manual_seed(0)
    module = build()
    norms = [part for part in module.modules() if isinstance(part, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None
    batches = [(draw(),) for _ in range(2 * BATCHES)]
    if norms:
        with torch.no_grad():
            module.train()(torch.cat([draw() for _ in range(4)]))
    return module.eval(), batches


def main() -> None:
    """Make what is missing, and print the table."""
    parser = publishing.parser(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NETWORKS))
    parser.add_argument("--vela", required=True)
    parser.add_argument("--executorch", metavar="PYTHON")
    parser.add_argument(
        "--into", type=Path, default=Path(tempfile.gettempdir()) / "delegraph-ethos-u"
    )
    parser.add_argument("--accelerators", nargs="*", default=list(ACCELERATORS))
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.worker:
        side, name = options.worker
        (_ours if side == "ours" else _executorch)(name, options.into)
        return
    options.into.mkdir(exist_ok=True, parents=True)
    rows = []
    for name in options.names or NETWORKS:
        for accelerator in options.accelerators:
            rows.append(
                publishing.told([name, accelerator, *_row(name, accelerator, options)])
            )
    packages = ["torch", "torchao", "delegraph-tosa", *publishing.of_vela(options.vela)]
    publishing.report(
        options, "ethos_u", packages, publishing.Table(COLUMNS, rows, keys=2)
    )


def _row(name: str, accelerator: str, options: argparse.Namespace) -> list[str]:
    """Figures of both sides in the order of COLUMNS; "-" for a side that was not asked,
    else why there are none.
    """
    sides = {"ours": sys.executable} | (
        {"executorch": options.executorch} if options.executorch else {}
    )
    for side, python in sides.items():
        _make(side, python, name, options)
    found = {
        kind: _figures(kind, name, accelerator, options)
        for kind in ("ours", "last", "executorch")
    }
    ours, last, other = found.values()
    cells = [("cycles", kind) for kind in (ours, last, other)]
    cells += [(key, kind) for key in ("sram", "sqnr", "left") for kind in (ours, other)]
    return [_cell(key, kind) for key, kind in cells]


def _cell(key: str, figures: dict[str, Any]) -> str:
    if key in figures:
        digits = 1 if key == "sqnr" else 2 if key == "sram" and figures[key] < 10 else 0
        return f"{figures[key]:,.{digits}f}"
    return str(figures.get("failed", "-"))


def _make(side: str, python: str, name: str, options: argparse.Namespace) -> None:
    """What a side makes of a network for all accelerators, in a process of its own."""
    made = options.into / f"{name} {side}.json"
    if not made.exists():
        arguments = ["--worker", side, name, "--vela", "", "--into", str(options.into)]
        done = subprocess.run(
            [python, "-W", "ignore", __file__, *arguments],
            capture_output=True,
            text=True,
        )
        (options.into / f"{name} {side}.txt").write_text(done.stdout + done.stderr)
        if done.returncode:
            made.write_text(
                json.dumps(
                    {
                        "failed": (done.stderr.strip().splitlines() or ["killed"])[-1][
                            :80
                        ]
                    }
                )
            )


def _figures(
    kind: str, name: str, accelerator: str, options: argparse.Namespace
) -> dict[str, Any]:
    """What is known of the files of a kind, which Vela compiles unless it has; {} of a
    side that was not asked.
    """
    made = (
        options.into / f"{name} {'executorch' if kind == 'executorch' else 'ours'}.json"
    )
    if not made.exists():
        return {}
    figures = json.loads(made.read_text())
    figures |= figures.pop(accelerator, {})
    compiled = options.into / f"{name} {kind} {accelerator}.json"
    if "failed" not in figures and not compiled.exists():
        compiled.write_text(
            json.dumps(_compiled(options, f"{name} {kind}", accelerator))
        )
    return figures | (json.loads(compiled.read_text()) if compiled.exists() else {})


def _compiled(
    options: argparse.Namespace, stem: str, accelerator: str
) -> dict[str, Any]:
    """Cycles and SRAM, as Vela has them, over all files of a network: their sum, and
    the largest.
    """
    files = sorted((options.into / "files").glob(f"{stem} {accelerator} *.tosa"))
    total: dict[str, Any] = {"cycles": 0.0, "sram": 0.0} if files else {}
    system, memory = ACCELERATORS[accelerator]
    settings = [
        "--config",
        "Arm/vela.ini",
        "--system-config",
        system,
        "--memory-mode",
        memory,
    ]
    folder = options.into / "vela"
    folder.mkdir(exist_ok=True)
    for path in files:
        command = [
            options.vela,
            str(path),
            "--accelerator-config",
            accelerator,
            *settings,
            "--verbose-performance",
        ]
        done = subprocess.run(
            [*command, "--output-dir", str(folder)],
            capture_output=True,
            text=True,
            env={},
        )
        (folder / f"{path.stem}.txt").write_text(done.stdout + done.stderr)
        if done.returncode:
            return {
                "failed": [
                    line
                    for line in (done.stdout + done.stderr).splitlines()
                    if line.strip()
                ][-1][:80]
            }
        (summary,) = folder.glob(f"{path.stem}_summary*.csv")
        with open(summary) as file:
            row = next(csv.DictReader(file))
        total["cycles"] += float(row["cycles_total"])
        total["sram"] = max(total["sram"], float(row["sram_memory_used"]))
    return total


def _ours(name: str, into: Path) -> None:
    """Write the TOSA files of delegraph, and the SQNR."""
    import delegraph
    import delegraph_ethosu.hardware  # noqa: F401  # makes u55 and u85 words of targets
    from delegraph_tosa.borders import channels_last_borders

    module, batches = network(name)
    program = delegraph.quantize(module, batches[:BATCHES])
    images = any(tensor.dim() == 4 for tensor in batches[0])
    left = {}
    for accelerator, spec in SPECS.items():
        for kind, transforms in (("ours", []), ("last", [channels_last_borders])):
            if kind == "last" and not images:
                continue
            options = {"tosa": {"spec": spec}}
            lowered = delegraph.lower(
                program, backends=["tosa"], options=options, transforms=transforms
            )
            blobs = [bytes(delegate.processed_bytes) for delegate in lowered.delegates]
            _save(blobs, into, f"{name} {kind} {accelerator}")
            if kind == "ours":
                left[accelerator] = {
                    "left": _left_over(lowered.exported_program().graph)
                }
    _note(
        into / f"{name} ours.json",
        program.module(check_guards=False),
        module,
        batches,
        left,
    )


def _executorch(name: str, into: Path) -> None:
    """Write the TOSA files of ExecuTorch, and the SQNR."""
    from executorch.backends.arm.ethosu import EthosUCompileSpec
    from executorch.backends.arm.quantizer import (
        EthosUQuantizer,
        get_symmetric_quantization_config,
    )
    from executorch.backends.arm.tosa.compile_spec import TosaCompileSpec
    from executorch.backends.arm.tosa.partitioner import TOSAPartitioner
    from executorch.backends.arm.tosa.specification import TosaSpecification
    from executorch.exir import to_edge_transform_and_lower
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    module, batches = network(name)
    left = {}
    for accelerator in ACCELERATORS:
        quantizer = EthosUQuantizer(EthosUCompileSpec(accelerator)).set_global(
            get_symmetric_quantization_config()
        )
        prepared = prepare_pt2e(
            torch.export.export(module, batches[0]).module(check_guards=False),
            quantizer,
        )
        with torch.no_grad():
            for batch in batches[:BATCHES]:
                prepared(*batch)
        quantized = convert_pt2e(prepared)
        spec = "TOSA-1.0+INT+int16+int4" + ("+u55" if "u55" in accelerator else "+cf")
        with tempfile.TemporaryDirectory() as folder:
            target = TosaCompileSpec(TosaSpecification.create_from_string(spec))
            program = torch.export.export(quantized, batches[0])
            dumped = target.dump_intermediate_artifacts_to(folder)
            try:
                edge = to_edge_transform_and_lower(
                    program, partitioner=[TOSAPartitioner(dumped)]
                )
                left[accelerator] = {"left": _left_over(edge.exported_program().graph)}
            except Exception as error:  # whatever it is, it is what its users see
                left[accelerator] = {
                    "failed": f"{type(error).__name__}: {error}".splitlines()[0][:80]
                }
            blobs = [path.read_bytes() for path in sorted(Path(folder).glob("*.tosa"))]
        _save(blobs, into, f"{name} executorch {accelerator}")
    _note(into / f"{name} executorch.json", quantized, module, batches, left)


def _left_over(graph: torch.fx.Graph) -> int:
    """Calls of operators that no delegate computes, without quantize and dequantize,
    and the halves of a delegate.
    """
    names = [str(node.target) for node in graph.nodes if node.op == "call_function"]
    return sum(
        not any(
            word in name for word in ("quantize", "getitem", "executorch_call_delegate")
        )
        for name in names
    )


def _save(blobs: list[bytes], into: Path, stem: str) -> None:
    (into / "files").mkdir(exist_ok=True)
    for number, blob in enumerate(blobs):
        (into / "files" / f"{stem} {number}.tosa").write_bytes(blob)


def _note(
    path: Path,
    quantized: Any,
    module: nn.Module,
    batches: list[tuple[Tensor]],
    known: dict[str, Any],
) -> None:
    """Write the SQNR of ``quantized`` on the batches that calibration has not seen, and
    what is known besides.
    """
    with torch.no_grad():
        found, exact = (
            torch.stack([run(*b).double() for b in batches[BATCHES:]])
            for run in (quantized, module)
        )
    ratio = exact.square().sum() / (found - exact).square().sum()
    path.write_text(json.dumps({"sqnr": 10 * torch.log10(ratio).item(), **known}))


if __name__ == "__main__":
    main()

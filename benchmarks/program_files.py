"""Program files of small whole networks: delegraph against ExecuTorch.

    python benchmarks/program_files.py [MODEL ...]

Run it with an interpreter that has both (`pip install executorch==1.5.1` and
delegraph's plugins). Everything stays on the host, so that both emit the same kernels.
From one exported program: bytes of the file, planned memory, CPU seconds to emit it
(delegraph: `save` to memory; ExecuTorch: `to_executorch` and its buffer, after
`to_edge`, which is not counted), median of 3 runs that take turns, after a throw-away
model. The largest error of delegraph's file in ExecuTorch's runtime, relative to the
largest output, is over all calls of a model, state included.
"""

from __future__ import annotations

import copy
import gc
import logging
import sys
import time
import warnings
from pathlib import Path
from statistics import median
from typing import Any

import publishing
import torch
from torch.utils import _pytree as pytree

sys.path.insert(0, str(Path(__file__).parents[1] / "plugins" / "executorch_backend"))
REPEATS = 3


COLUMNS = (
    *(
        "model",
        "file, bytes",
        "ExecuTorch's file",
        "file ratio",
        "memory",
        "its memory",
        "memory ratio",
    ),
    *("emit, s", "its emit, s", "emit ratio", "error"),
)


def main() -> None:
    """Measure all models, or those that are named, and print the table."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    from tests.support.models import MODELS

    parser = publishing.parser(__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL")
    given = parser.parse_args()
    _measure(MODELS["mlp"]())
    rows = []
    for name in given.models or MODELS:
        ours, theirs, error = _measure(MODELS[name]())
        pairs = zip(ours[:2], theirs[:2], strict=True)
        cells = [
            cell for a, b in pairs for cell in (f"{a:,}", f"{b:,}", f"{a / b:.3f}")
        ]
        cells += [
            f"{ours[2]:.4f}",
            f"{theirs[2]:.3f}",
            f"{ours[2] / theirs[2]:.2f}",
            f"{error:.1e}",
        ]
        rows.append(publishing.told([name, *cells]))
    publishing.report(
        given, "program_files", ["torch", "executorch"], publishing.Table(COLUMNS, rows)
    )


def _measure(
    model: Any,
) -> tuple[tuple[int, int, float], tuple[int, int, float], float]:
    """(bytes, planned memory, seconds) of both, and the error."""
    torch.manual_seed(0)
    with torch.no_grad():
        exported = torch.export.export(
            model.module, model.calls[0], dynamic_shapes=model.shapes
        )
        runs = [(_ours(exported), _theirs(exported)) for _ in range(REPEATS)]
    ours, theirs = runs[0]
    error = _error(ours[3], model)
    seconds = [median(run[k][2] for run in runs) for k in (0, 1)]
    return (ours[0], ours[1], seconds[0]), (theirs[0], theirs[1], seconds[1]), error


def _ours(exported: Any) -> tuple[int, int, float, bytes]:
    import delegraph
    from delegraph_executorch.emit import emit_program

    lowered = delegraph.lower(exported, backends=[])
    gc.collect()
    start = time.process_time()
    emitted = emit_program(lowered)
    content = emitted.file.join()
    return (
        len(content),
        sum(emitted.program.plans[0].memory_sizes),
        time.process_time() - start,
        content,
    )


def _theirs(exported: Any) -> tuple[int, int, float]:
    from executorch.exir import to_edge

    edge = to_edge(exported)
    gc.collect()
    start = time.process_time()
    program = edge.to_executorch()
    content = program.buffer
    spent = time.process_time() - start
    return (
        len(content),
        sum(program.executorch_program.execution_plan[0].non_const_buffer_sizes),
        spent,
    )


def _error(content: bytes, model: Any) -> float:
    from executorch.runtime import Runtime

    program = Runtime.get().load_program(content)
    method = program.load_method("forward")
    eager = copy.deepcopy(model.module)
    largest = 0.0
    for call in model.calls:
        got = method.execute(pytree.tree_leaves(call))
        with torch.no_grad():
            wanted = pytree.tree_leaves(eager(*call))
        largest = max(
            largest,
            *(
                float((g - w).abs().max() / w.abs().max())
                for g, w in zip(got, wanted, strict=True)
            ),
        )
    return largest


if __name__ == "__main__":
    main()

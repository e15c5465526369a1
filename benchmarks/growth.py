"""What a whole lowering costs as programs grow: time and memory of large graphs, many
partitions, one large weight.

    python benchmarks/growth.py [graphs] [layers] [partitions] [weight] [--largest
        32000] [--repeats 3]
                                [--rival-python OTHER/bin/python]

``graphs``: `delegraph.lower` of graphs that torch.fx builds, of 1,000 nodes and twice
as many each time, with a backend that takes every operator but one, which is every
tenth call, and compiles nothing. Each in a fresh process, after a small run: the median
time of ``repeats`` runs, and the memory of the first, because later ones find what it
left. ``layers``: the decoder of examples/transformer.py with ever more layers, lowered
by tosa; the least of ``repeats``. ``partitions``: 1,000 nodes in a chain, every fourth
refused, so 250 partitions; ExecuTorch, once, with a partitioner that tags the same
groups. ``weight``: a linear layer of 8192 by 8192 floats, lowered whole and written to
a file, by backends that give their blob as bytes, as a `Blob` and as named data, and by
tosa.

Time is CPU seconds on one thread, memory the peak resident set while the call runs
minus what it was just before (Linux). ``exponent``: the slope of log(figure) over
log(nodes) over all sizes, by least squares: 1 is linear. ExecuTorch needs an
environment of its own (see rivals.py); without --rival-python or DELEGRAPH_RIVAL_PYTHON
its rows are left out.
"""

from __future__ import annotations

import argparse
import functools
import gc
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

import graphs
import measuring
import publishing

PARTS = ("graphs", "layers", "partitions", "weight")
LAYERS = (4, 8, 16, 32)
GROUPS = 250
SIDE = 8192
HEADER = b"the weight of one linear layer: "


def main() -> None:
    """Measure the parts that are named, or all, and print their tables."""
    parser = publishing.parser(__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument(
        "--largest", type=int, default=32_000, help="nodes of the largest graph"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--rival-python", default=os.environ.get("DELEGRAPH_RIVAL_PYTHON")
    )
    arguments = measuring.parse(parser, lambda kind, name: WORKERS[kind](name))
    tables = [TABLES[part](arguments) for part in arguments.parts or PARTS]
    publishing.report(
        arguments, "growth", ["torch", "delegraph", "delegraph-tosa"], *tables
    )


def _graphs_table(given: argparse.Namespace) -> publishing.Table:
    sizes = graphs.sizes(given.largest)
    runs = {
        (s, n): _runs("graphs", f"{s}:{n}", given.repeats)
        for s in graphs.SHAPES
        for n in sizes
    }
    header = (
        "graph",
        *(f"{n:,} nodes" for n in sizes),
        "exponent",
        "partitions of the largest",
    )
    rows = [
        row
        for shape in graphs.SHAPES
        for row in _shape_rows(shape, [runs[shape, n] for n in sizes], sizes)
    ]
    return publishing.Table(header, rows, "graphs")


def _shape_rows(
    shape: str, runs: list[list[dict[str, float]]], sizes: list[int]
) -> Iterator[list[str]]:
    seconds = [median(run["seconds"] for run in size) for size in runs]
    raised = [size[0]["raised"] for size in runs]
    partitions = f"{runs[-1][0]['partitions']:,.0f}"
    yield [
        f"{shape}, s",
        *(f"{s:.3f}" for s in seconds),
        _exponent(sizes, seconds),
        partitions,
    ]
    yield [
        f"{shape}, MB",
        *(f"{m / 1e6:.1f}" for m in raised),
        _exponent(sizes, raised),
        "",
    ]


def _exponent(sizes: Sequence[float], figures: Sequence[float]) -> str:
    return f"{measuring.exponent(sizes, figures):.2f}" if len(sizes) > 1 else "-"


def _runs(
    kind: str, name: str, repeats: int, python: str | None = None
) -> list[dict[str, float]]:
    worker = measuring.Worker(__file__, kind, name, *([python] if python else []))
    runs = [worker.run() for _ in range(repeats)]
    worker.close()
    return runs


def _layers_table(given: argparse.Namespace) -> publishing.Table:
    seconds = [
        min(run["seconds"] for run in _runs("layers", str(n), given.repeats))
        for n in LAYERS
    ]
    header = ("decoder", *(f"{n} layers" for n in LAYERS), "exponent")
    row = ["tosa, s", *(f"{s:.3f}" for s in seconds), _exponent(LAYERS, seconds)]
    return publishing.Table(header, [row], "layers")


def _partitions_table(given: argparse.Namespace) -> publishing.Table:
    name = str(GROUPS)
    ours = median(run["seconds"] for run in _runs("partitions", name, given.repeats))
    rows = [["delegraph, `lower`", f"{ours:.2f}", ""]]
    if given.rival_python:
        theirs = _runs("partitions-executorch", name, 1, given.rival_python)[0]
        rows += [
            [
                f"ExecuTorch, `{step}`",
                f"{theirs[step]:.2f}",
                f"{theirs[step] / ours:.0f}",
            ]
            for step in ("to_edge", "to_backend")
        ]
    return publishing.Table(
        (f"{4 * GROUPS:,} nodes, {GROUPS} partitions", "s", "ratio"), rows, "partitions"
    )


def _weight_table(given: argparse.Namespace) -> publishing.Table:
    found = {name: _runs("weight", name, 1)[0] for name in WEIGHTS}
    if given.rival_python:
        found["ExecuTorch, bytes"] = _runs(
            "weight-executorch", "bytes", 1, given.rival_python
        )[0]
    rows = [
        [
            name,
            *(f"{run[what] / 1e6:.1f}" for what in ("weight", "file", "raised")),
            f"{run['raised'] / run['weight']:.2f}",
        ]
        for name, run in found.items()
    ]
    return publishing.Table(
        ("blob", "weight, MB", "file, MB", "memory raised, MB", "of weight"),
        rows,
        "weight",
    )


# --- workers of delegraph


def _lowerings(name: str) -> measuring.Run:
    """``name``: the shape and the number of nodes."""
    shape, nodes = name.split(":")
    return _counted(graphs.program(shape, int(nodes), graphs.every(10)))


def _layers(name: str) -> measuring.Run:
    import torch

    def program(layers: int) -> Any:
        return torch.export.export(
            *measuring.example("transformer.py").llama_8(
                layers=layers, width=128, length=32
            )
        )

    _tosa(program(1))
    larger = program(int(name))

    def run() -> dict[str, float]:
        gc.collect()
        return {"seconds": measuring.cpu_seconds(lambda: _tosa(larger))[1]}

    return run


def _partitions(name: str) -> measuring.Run:
    run = _counted(_chain_of_groups(int(name)))

    def checked() -> dict[str, float]:
        found = run()
        _check_count(found["partitions"], int(name))
        return found

    return checked


def _chain_of_groups(count: int) -> Any:
    return graphs.program("chain", 4 * count, graphs.every(4))


def _check_count(found: float, wanted: int) -> None:
    if found != wanted:
        raise SystemExit(f"{found:.0f} partitions, not {wanted}")


def _counted(program: Any) -> measuring.Run:
    _lowered(graphs.program("chain", 100, graphs.every(10)), _nothing)

    def run() -> dict[str, float]:
        timed, raised = measuring.raised_memory(
            lambda: measuring.cpu_seconds(lambda: _lowered(program, _nothing))
        )
        lowered, seconds = timed
        return {
            "seconds": seconds,
            "raised": raised,
            "partitions": len(lowered.delegates),
        }

    return run


def _lowered(program: Any, compiled: Callable[[Any], Any]) -> Any:
    """``program`` lowered with a backend that takes all but the refused operator and
    gives what ``compiled`` makes.
    """
    import delegraph
    from delegraph.backend import BackendDetails
    from delegraph.discovery.registry import Registry
    from delegraph.partitioner import CapabilityPartitioner

    class Measured(BackendDetails):
        @staticmethod
        def preprocess(edge_program: Any, compile_specs: Any) -> Any:
            return compiled(edge_program)

    registry = Registry(discover=False)
    registry.register(Measured)
    taken = CapabilityPartitioner(
        lambda n: "not taken" if n.target is graphs.REFUSED else None, "Measured"
    )
    return delegraph.lower(program, backends=[taken], registry=registry)


def _nothing(program: Any) -> Any:
    from delegraph.backend import PreprocessResult

    return PreprocessResult(b"")


def _weight(name: str) -> measuring.Run:
    """``name``: who holds the weight, and how."""
    lower, write = WEIGHTS[name]
    write(lower(_linear(8)), os.devnull)
    program = _linear(SIDE)

    def run() -> dict[str, float]:
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "model.tosa")
            _, raised = measuring.raised_memory(lambda: write(lower(program), file))
            return {
                "raised": raised,
                "file": os.path.getsize(file),
                "weight": 4 * SIDE * SIDE,
            }

    return run


def _linear(side: int) -> Any:
    import torch

    return torch.export.export(
        torch.nn.Linear(side, side).eval(), (torch.ones(1, side),)
    )


def _in_bytes(program: Any) -> Any:
    from delegraph.backend import PreprocessResult

    return PreprocessResult(b"".join([HEADER, *_weights(program)]))


def _in_blob(program: Any) -> Any:
    from delegraph.backend import PreprocessResult

    return PreprocessResult(_Streamed(_weights(program)))


def _in_store(program: Any) -> Any:
    from delegraph.backend import NamedDataStore, PreprocessResult

    store = NamedDataStore()
    for key, tensor in program.state_dict.items():
        store.add_named_data(key, tensor)
    return PreprocessResult(
        HEADER, data_store_output=store.get_named_data_store_output()
    )


def _weights(program: Any) -> list[memoryview]:
    """The tensors' own memory."""
    return [
        memoryview(t.detach().numpy()).cast("B") for t in program.state_dict.values()
    ]


class _Streamed:
    """A Blob of the weights, which it does not copy."""

    def __init__(self, parts: Sequence[memoryview]) -> None:
        self._parts = [memoryview(HEADER), *parts]

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def write_to(self, file: Any) -> None:
        for part in self._parts:
            file.write(part)


def _save(lowered: Any, file: str) -> None:
    if file != os.devnull:
        lowered.delegates[0].save(file)


def _save_with_data(lowered: Any, file: str) -> None:
    with open(file, "wb") as out:
        out.write(lowered.delegates[0].processed_bytes)
        for data in lowered.named_data.buffers:
            out.write(data) if isinstance(data, bytes) else data.write_to(out)


def _tosa(program: Any) -> Any:
    import delegraph

    return delegraph.lower(program, backends=["tosa"], require_full=True)


WEIGHTS: dict[str, tuple[Callable[[Any], Any], Callable[[Any, str], None]]] = {
    "bytes": (lambda program: _lowered(program, _in_bytes), _save),
    "`Blob`": (lambda program: _lowered(program, _in_blob), _save),
    "named data": (lambda program: _lowered(program, _in_store), _save_with_data),
    "tosa": (_tosa, _save),
}


# --- workers of ExecuTorch


def _partitions_executorch(name: str) -> measuring.Run:
    from executorch.exir import to_edge  # type: ignore[import-not-found]

    to_edge(_chain_of_groups(2)).to_backend(_groups(_empty))
    program = _chain_of_groups(int(name))

    def run() -> dict[str, float]:
        manager, to_edge_seconds = measuring.cpu_seconds(lambda: to_edge(program))
        lowered, seconds = measuring.cpu_seconds(
            lambda: manager.to_backend(_groups(_empty))
        )
        nodes = lowered.exported_program().graph.nodes
        _check_count(sum(n.op == "get_attr" for n in nodes), int(name))
        return {"to_edge": to_edge_seconds, "to_backend": seconds}

    return run


def _weight_executorch(name: str) -> measuring.Run:
    from executorch.exir import to_edge  # type: ignore[import-not-found]

    def write(program: Any, file: str) -> None:
        with open(file, "wb") as out:
            to_edge(program).to_backend(_groups(_joined)).to_executorch().write_to_file(
                out
            )

    write(_linear(8), os.devnull)
    program = _linear(SIDE)

    def run() -> dict[str, float]:
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "model.pte")
            _, raised = measuring.raised_memory(lambda: write(program, file))
            return {
                "raised": raised,
                "file": os.path.getsize(file),
                "weight": 4 * SIDE * SIDE,
            }

    return run


def _empty(program: Any) -> bytes:
    return b""


def _joined(program: Any) -> bytes:
    return b"".join([HEADER, *_weights(program)])


# ExecuTorch finds a backend among the living subclasses by name: there is to be one
@functools.cache
def _groups(compiled: Callable[[Any], bytes]) -> Any:
    """A partitioner that tags what lies between refused calls, all weights included,
    for a backend of ``compiled``.
    """
    from executorch.exir.backend.backend_details import (  # type: ignore[import-not-found]
        BackendDetails,
        PreprocessResult,
    )
    from executorch.exir.backend.partitioner import (  # type: ignore[import-not-found]
        DelegationSpec,
        Partitioner,
        PartitionResult,
    )
    from executorch.exir.backend.utils import tag_constant_data  # type: ignore[import-not-found]

    class Measured(BackendDetails):  # type: ignore[misc]
        @staticmethod
        def preprocess(edge_program: Any, compile_specs: Any) -> Any:
            return PreprocessResult(compiled(edge_program))

    class Groups(Partitioner):  # type: ignore[misc]
        backend = Measured  # kept alive

        def partition(self, exported_program: Any) -> Any:
            number = 0
            tags = {}
            for node in exported_program.graph.nodes:
                if node.op == "call_function" and "sin" in str(node.target):
                    number += 1
                elif node.op == "call_function":
                    tag = node.meta["delegation_tag"] = f"group_{number}"
                    tags[tag] = DelegationSpec("Measured", [])
            tag_constant_data(exported_program)
            return PartitionResult(exported_program, tags)

    return Groups()


TABLES = {
    "graphs": _graphs_table,
    "layers": _layers_table,
    "partitions": _partitions_table,
    "weight": _weight_table,
}
WORKERS = {
    "graphs": _lowerings,
    "layers": _layers,
    "partitions": _partitions,
    "partitions-executorch": _partitions_executorch,
    "weight": _weight,
    "weight-executorch": _weight_executorch,
}

if __name__ == "__main__":
    main()

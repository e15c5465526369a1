"""What a TOSA file has in it: operators by kind and bytes of constants, beside the
files that ExecuTorch makes.

    python benchmarks/operators.py --rival-python OTHER/bin/python [MODEL ...]

The transformers have two layers and a width of 256: each further layer is like those.
Both sides lower the same exported program for TOSA-1.0+FP; "channels last" is
delegraph's after ``channels_last_borders``, of models that take an image. Operators are
counted over all delegates, without CONST and CONST_SHAPE; "on the host" are calls that
no delegate computes. See rivals.py for the environment that ExecuTorch needs; without
--rival-python or DELEGRAPH_RIVAL_PYTHON its rows are left out.
"""

from __future__ import annotations

import logging
import operator
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import measuring
import publishing

SPEC = "TOSA-1.0+FP"
KINDS = ("TRANSPOSE", "RESHAPE", "CAST")
CHANNELS_LAST = "delegraph, channels last"
IMAGES = ("MobileNetV2", "ResNet-50", "ViT")


def main() -> None:
    """Print the table of the models that are named, or of all."""
    parser = publishing.parser(__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument(
        "--rival-python", default=os.environ.get("DELEGRAPH_RIVAL_PYTHON")
    )
    given = measuring.parse(parser, _worker)
    sides = {"delegraph": []} | (
        {"executorch": [given.rival_python]} if given.rival_python else {}
    )
    names = given.models or MODELS
    sides_of = {
        name: sides | ({CHANNELS_LAST: []} if name in IMAGES else {}) for name in names
    }
    rows = [
        _row(name, side, python)
        for name, of_model in sides_of.items()
        for side, python in of_model.items()
    ]
    table = publishing.Table(
        ("model", "delegates", "on the host", "operators", *KINDS, "constants, bytes"),
        rows,
    )
    publishing.report(given, "operators", ["torch", "delegraph-tosa"], table)


def _row(name: str, side: str, python: list[str]) -> list[str]:
    from delegraph_tosa.serialize import read
    from delegraph_tosa.serialize.elements import size_in_file

    with tempfile.TemporaryDirectory() as folder:
        host = measuring.once(__file__, side, f"{name}:{folder}", *python)["host"]
        graphs = [read(file.read_bytes()) for file in Path(folder).iterdir()]
    kinds = Counter(op.name for graph in graphs for op in graph.operators)
    size = sum(size_in_file(v.type) for graph in graphs for v in graph.constants())
    counts = (
        len(graphs),
        host,
        sum(kinds.values()),
        *(kinds[kind] for kind in KINDS),
        size,
    )
    return [f"{name}, {side}", *(f"{count:,.0f}" for count in counts)]


def _transformer(function: str, **sizes: int) -> Callable[[], Any]:
    return lambda: getattr(measuring.example("transformer.py"), function)(
        layers=2, width=256, **sizes
    )


MODELS: dict[str, Callable[[], Any]] = {
    "MobileNetV2": lambda: measuring.model("MobileNetV2"),
    "ResNet-50": lambda: measuring.model("ResNet-50"),
    "ViT": _transformer("vit_b16"),
    "BERT": _transformer("bert_base", length=32),
    "Llama": _transformer("llama_8", length=32),
}


def _channels_last(name: str, folder: Path) -> dict[str, float]:
    from delegraph_tosa.borders import channels_last_borders

    return _delegraph(name, folder, [channels_last_borders])


def _delegraph(
    name: str, folder: Path, transforms: Sequence[Any] = ()
) -> dict[str, float]:
    import delegraph
    import torch

    program = torch.export.export(*MODELS[name]())
    lowered = delegraph.lower(
        program,
        backends=["tosa"],
        options={"tosa": {"spec": SPEC}},
        transforms=transforms,
    )
    for k, delegate in enumerate(lowered.delegates):
        delegate.save(folder / f"{k}.tosa")
    return {"host": lowered.host_operators}


def _executorch(name: str, folder: Path) -> dict[str, float]:
    import torch
    from executorch.backends.arm.tosa.compile_spec import TosaCompileSpec  # type: ignore[import-not-found]
    from executorch.backends.arm.tosa.partitioner import TOSAPartitioner  # type: ignore[import-not-found]
    from executorch.exir import to_edge_transform_and_lower  # type: ignore[import-not-found]

    logging.disable(logging.WARNING)
    program = torch.export.export(*MODELS[name]())
    manager = to_edge_transform_and_lower(
        program, partitioner=[TOSAPartitioner(TosaCompileSpec(SPEC))]
    )
    nodes = manager.exported_program().graph.nodes
    delegates = [n for n in nodes if n.op == "get_attr"]
    for k, node in enumerate(delegates):
        blob = getattr(
            manager.exported_program().graph_module, node.target
        ).processed_bytes
        (folder / f"{k}.tosa").write_bytes(blob)
    calls = [
        n for n in nodes if n.op == "call_function" and n.target is not operator.getitem
    ]
    return {"host": len(calls) - len(delegates)}


def _worker(kind: str, where: str) -> Callable[[], dict[str, float]]:
    name, _, folder = where.partition(":")
    return lambda: WORKERS[kind](name, Path(folder))


WORKERS = {
    "delegraph": _delegraph,
    CHANNELS_LAST: _channels_last,
    "executorch": _executorch,
}

if __name__ == "__main__":
    main()

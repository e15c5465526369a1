"""What a partition as bytes costs: its form written, hashed and read, beside the
lowering of the program it is of.

    python benchmarks/forms.py [--repeats 9]

The models of examples/, lowered by tosa, each as one partition. Milliseconds of CPU
time on one thread, medians; a lowering is of a program that was exported before.
``hashed`` is SHA-256 of all constants, ``read`` the program from its bytes apart from
that; constants of 1 MB and more are used where they are.
"""

from __future__ import annotations

import gc
import hashlib
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import delegraph
import publishing
import torch
from delegraph.compiler import Compiled, Request, compile_here
from delegraph.partitioner import Partitioner, PartitionResult
from delegraph_workers.forms import read, write
from torch.export import ExportedProgram

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
import mobilenet_v2
import resnet
import transformer

MODELS: dict[str, Callable[[], Any]] = {
    "MobileNetV2": mobilenet_v2.mobilenet_v2,
    "ResNet-50": resnet.resnet50,
    "BERT-base": transformer.bert_base,
    "Llama, 8 layers": transformer.llama_8,
}


def milliseconds(call: Callable[[], Any]) -> float:
    gc.collect()
    start = time.process_time()
    call()
    return (time.process_time() - start) * 1e3


class Noting:
    """A compiler, and its session, that compiles here and notes what it is given."""

    notes = ()

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def session(self, registry: delegraph.Registry, backends: Sequence[str]) -> Noting:
        return self

    def __enter__(self) -> Noting:
        return self

    def __exit__(self, *raised: object) -> None:
        pass

    def partition(
        self, partitioner: Partitioner, program: ExportedProgram
    ) -> PartitionResult:
        return partitioner(program)

    def compile(self, requests: Sequence[Request]) -> list[Compiled]:
        self.requests += requests
        return compile_here(requests)


def partition_of(program: Any) -> Any:
    """The program that the backend is given for the whole of ``program``."""
    noting = Noting()
    delegraph.lower(program, backends=["tosa"], compiler=noting)
    return noting.requests[0].extract()


def measure(build: Callable[[], Any], repeats: int) -> list[str]:
    module, inputs = build()
    program = torch.export.export(module, inputs)
    partition = partition_of(program)
    form = write(partition)
    data = b"".join(form.pieces())
    large = {m.digest: bytearray(b"".join(m.pieces())) for m in form.memories}
    inline = [bytes(large[m.digest]) for m in form.memories if m.size < 1 << 20]
    columns = [
        lambda: delegraph.lower(program, backends=["tosa"]),
        lambda: write(partition),
        lambda: [m.digest for m in write(partition).memories],
        lambda: [hashlib.sha256(piece).digest() for piece in inline],
        lambda: read(data, lambda digest, size: large[digest]),
    ]
    rows = [[milliseconds(column) for column in columns] for _ in range(repeats)]
    lower, written, hashed, checked, back = (
        median(column) for column in zip(*rows, strict=True)
    )
    sizes = [
        f"{sum(m.size for m in form.memories) / 1e6:.0f} MB",
        f"{len(form.structure) / 1e3:.0f} kB",
    ]
    share = (written + back - checked) / lower
    figures = [
        f"{lower:.0f}",
        f"{written:.1f}",
        f"{back - checked:.1f}",
        f"{hashed - written:.0f}",
        f"{share:.0%}",
    ]
    return [*sizes, *figures]


COLUMNS = (
    *("model", "constants", "structure"),
    *("lowered", "written", "read", "hashed", "(written + read) / lowered"),
)


def main() -> None:
    parser = publishing.parser(__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = [[name, *measure(build, given.repeats)] for name, build in MODELS.items()]
    publishing.report(
        given,
        "forms",
        ["torch", "delegraph", "delegraph-tosa"],
        publishing.Table(COLUMNS, rows),
    )


if __name__ == "__main__":
    main()

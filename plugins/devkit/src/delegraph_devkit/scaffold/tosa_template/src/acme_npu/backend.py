"""From one part of a program to TOSA, and from TOSA to bytes. Your compiler goes here."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import delegraph
from delegraph.backend import BackendDetails, Blob, CompileSpec, PreprocessResult
from delegraph.formats import write_whole
from delegraph_engines import from_specs, seal
from torch.export import ExportedProgram

from .instructions import WORD

MARK = b"acme-npu 1"
"""What a blob ends with. The number goes up when a blob changes in a way that an older runtime would misread."""


class AcmeNpuBackend(BackendDetails):
    """Compiles the parts that the partitioner chose. delegraph calls it and never makes an instance."""

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        """One blob for one part, with a map back to the user's operators: the numbers of TOSA's.

        Raises Unsupported if the compiler refuses the part: it then goes to the next backend or stays on the host.
        """
        _, tosa = from_specs(compile_specs, f"{WORD}_", {})
        compiled = delegraph.get_backend("tosa").preprocess(edge_program, tosa)
        return replace(compiled, processed_bytes=_compile(compiled.processed_bytes))


def _compile(tosa: bytes | Blob) -> bytes:
    """The bytes for the device, with a digest at their end by which the runtime finds damage.

    A compiler that is a program runs here by ``delegraph_tosa.run_compiler(["npu-compiler", "main.tosa"], folder)``,
    whose refusals and crashes become Unsupported. Without one the blob is the TOSA file.
    """
    with tempfile.TemporaryDirectory(prefix="acme-npu-") as folder:
        file = Path(folder, "main.tosa")
        write_whole(file, tosa)
        return seal(file, MARK, {"compiler": "none"})

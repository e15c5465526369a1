"""Lowers a part of a program to TOSA, and compiles TOSA to a blob. Add your compiler here."""

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
"""The end of each blob. Increase the number if an older runtime would misread the changed blob."""


class AcmeNpuBackend(BackendDetails):
    """Compiles the parts that the partitioner chose. delegraph makes no instance of this class."""

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        """Return the blob of a part, and a map from numbers of TOSA operators to the user's operators.

        Raises Unsupported if the compiler refuses the part. The part then goes to the next backend or to the host.
        """
        _, tosa = from_specs(compile_specs, f"{WORD}_", {})
        compiled = delegraph.get_backend("tosa").preprocess(edge_program, tosa)
        return replace(compiled, processed_bytes=_compile(compiled.processed_bytes))


def _compile(tosa: bytes | Blob) -> bytes:
    """Return the blob: the TOSA file, with a digest at its end so that the runtime finds damage.

    If your compiler is a command, call ``delegraph_tosa.run_compiler(["npu-compiler", "main.tosa"], folder)`` here.
    If the command refuses the file or crashes, this function raises Unsupported.
    """
    with tempfile.TemporaryDirectory(prefix="acme-npu-") as folder:
        file = Path(folder, "main.tosa")
        write_whole(file, tosa)
        return seal(file, MARK, {"compiler": "none"})

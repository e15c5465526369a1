"""Lowers a part of a program to TOSA, and compiles TOSA to a blob. Add your compiler here."""

from __future__ import annotations

from dataclasses import replace

import delegraph
import delegraph_tosa
from delegraph.backend import BackendDetails, CompileSpec, PreprocessResult
from delegraph.io.blob_pieces import join
from delegraph_engines import from_specs
from torch.export import ExportedProgram

from .blob import write
from .instructions import WORD


class AcmeNpuBackend(BackendDetails):
    """Compiles the parts that the partitioner chose. delegraph makes no instance of this class."""

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        """Return the blob of a part, and a map from numbers of TOSA operators to the user's operators.

        Raises Unsupported if the compiler refuses the part. The part then goes to the next backend or to the host.
        """
        _, tosa = from_specs(compile_specs, f"{WORD}_", {})
        compiled = delegraph.get_backend("tosa").preprocess(edge_program, tosa)
        graph = delegraph_tosa.read(join(compiled.processed_bytes))
        return replace(compiled, processed_bytes=write(graph))

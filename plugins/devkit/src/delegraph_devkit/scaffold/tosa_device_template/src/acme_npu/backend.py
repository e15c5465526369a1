"""From one part of a program to TOSA, and from TOSA to bytes. Your compiler goes here."""

from __future__ import annotations

from dataclasses import replace

import delegraph
import delegraph_tosa
from delegraph.backend import BackendDetails, CompileSpec, PreprocessResult
from delegraph.io.lazy_blob import join
from delegraph_engines import from_specs
from torch.export import ExportedProgram

from .blob import write
from .instructions import WORD


class AcmeNpuBackend(BackendDetails):
    """Compiles the parts that the partitioner chose. delegraph calls it and never makes an instance."""

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        """One blob for one part, with a map back to the user's operators: the numbers of TOSA's.

        Raises Unsupported if the compiler refuses the part: it then goes to the next backend or stays on the host.
        """
        _, tosa = from_specs(compile_specs, f"{WORD}_", {})
        compiled = delegraph.get_backend("tosa").preprocess(edge_program, tosa)
        graph = delegraph_tosa.read(join(compiled.processed_bytes))
        return replace(compiled, processed_bytes=write(graph))

"""Compile a partition to the bytecode of a Core AI program."""

from __future__ import annotations

import tempfile
from importlib.metadata import version
from pathlib import Path

from delegraph.backend import BackendDetails, CompileSpec, PreprocessResult
from delegraph.errors import FormatError
from torch.export import ExportedProgram

from .converter import Draft
from .model import bytecode_of, load_function
from .names import MARK


class CoreAIBackend(BackendDetails):
    """Compiles to Core AI programs, which systems with Core AI specialize on device."""

    @staticmethod
    def fingerprint(compile_specs: list[CompileSpec]) -> str:
        return f"coreai-torch {version('coreai-torch')}"

    @staticmethod
    def preprocess(
        edge_program: ExportedProgram, compile_specs: list[CompileSpec]
    ) -> PreprocessResult:
        """Return the sealed bytecode. Raises Unsupported with the reason."""
        draft = Draft(edge_program)
        bytecode = bytecode_of(draft.program)
        try:
            load_function(bytecode)  # only checks: some programs fail when loaded
        except FormatError as error:
            raise draft.refused(error.message) from error
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "main.mlirb")
            path.write_bytes(bytecode)
            blob = draft.signature.seal(path, MARK)
        return PreprocessResult(blob, draft.debug_handles)
